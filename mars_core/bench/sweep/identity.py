"""Which weights a sweep was measured with: names and places stay the same when an adapter is trained anew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from ...loaded import LoadedModel
from ...packed import PackedLinear, PackedPart

_VALUES = 1024  # of each weight, evenly spread: training changes nearly all


def weights_digest(loaded: LoadedModel) -> str:
    """12 hex digits (of a SHA-256) that differ where weights do, an adapter's merged into them included.

    The same weights in another layout or on another device may have other digits.
    """
    digest = hashlib.sha256()
    for weight in _weights(loaded):
        values = weight.detach().flatten()
        sample = values[:: max(1, values.numel() // _VALUES)].cpu().contiguous()
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _weights(loaded: LoadedModel) -> Iterator[torch.Tensor]:
    """All of the model's, and the mask's embedding to itself: it may be the only row that was trained."""
    yield loaded.model.get_input_embeddings().weight[loaded.mask_token_id]  # type: ignore[index]
    yield from loaded.model.parameters()
    packed = [
        module.packed for module in loaded.model.modules() if isinstance(module, (PackedLinear, PackedPart))
    ]
    for shared in dict.fromkeys(packed):
        yield shared.weight.to_dense()
