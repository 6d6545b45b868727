"""How fast this device's memory is, and how much of it a forward reads."""

from __future__ import annotations

import time

import torch
from torch import nn

from ..devices import synchronize
from ..packed import Packed

NUM_BYTES = 2**28  # far more than any cache holds
REPEATS = 7


def copy_rate(device: torch.device, num_bytes: int = NUM_BYTES) -> float:
    """Bytes a second that a large copy reads and writes, both counted; the best of several."""
    source = torch.ones(num_bytes // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    best = min(_seconds_of_copy(source, target) for _ in range(REPEATS))
    return 2 * source.nbytes / best


def _seconds_of_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    synchronize(source.device)
    begin = time.perf_counter()
    target.copy_(source)
    synchronize(source.device)
    return time.perf_counter() - begin


def weight_bytes(model: nn.Module) -> int:
    """Bytes of weights that one forward reads: all of them, but of an embedding table only some rows.

    A table that is the output head too is read as that. Packed layers (`packed.py`) keep their weights
    outside the parameters.
    """
    weights = list(model.parameters())
    packed = [
        part for module in model.modules() if isinstance(part := getattr(module, "packed", None), Packed)
    ]
    weights += [part.weight for part in packed]
    unique = {id(weight): weight for weight in weights}
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    head = model.get_output_embeddings()  # type: ignore[operator]
    if getattr(head, "weight", None) is not embedding:
        unique.pop(id(embedding), None)
    return sum(weight.numel() * weight.element_size() for weight in unique.values())
