"""Linear layers in the layout that the CPU's matrix kernels want, and those of one input as one product.

A decode forward multiplies a few positions with every weight. In PyTorch's row-major layout oneDNN reads
the weights at less than half the speed of memory; reordered once at load it reads them faster, and one
position costs nearly what four cost. Layers that read the same input (query, key, value; gate, up) become
one product. In bfloat16 the results are bit for bit the same, in float32 they differ by rounding.

Where the kernel for a single position rounds otherwise than the one for several, a single one is fed twice: a
verified text must not part from the one-token text wherever two tokens are nearly as likely.

PyTorch has the two operations for its own compiler (`torch._inductor`, freezing), not as public API; they
are used in this file only. Written against torch 2.13.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

logger = logging.getLogger(__name__)

# Names under which models of transformers keep layers that are called one after another on one input.
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_TRIED_ROWS = 64
_ROWS_HINT = 4  # the layout is chosen for about this many positions; seen to suit 1 to 256


class Packed:
    """A reordered weight [sum of sizes, in], and its product with inputs [..., in]."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        weight = layers[0].weight if len(layers) == 1 else torch.cat(tuple(layer.weight for layer in layers))
        biases = [layer.bias for layer in layers]
        self.bias = torch.cat(tuple(biases)).detach() if biases[0] is not None else None
        self.sizes = [layer.out_features for layer in layers]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS_HINT)
        self._held: tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None = None
        self._twice = _rounds_otherwise_alone(self, tuple(weight.shape), weight.dtype)

    def product(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., sum of sizes]."""
        if self._twice and inputs.shape[:-1].numel() == 1:
            return self._multiply(inputs.expand(2, *inputs.shape))[0]
        return self._multiply(inputs)

    def _multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")

    def part(self, inputs: torch.Tensor, number: int) -> torch.Tensor:
        """One layer's part of the product, which is computed once for layers called in turn on one tensor.

        Any other order of calls, or of threads, costs another product and is as right.
        """
        held = self._held
        if held is None or held[0] is not inputs:
            held = self._held = inputs, self.product(inputs).split(self.sizes, -1)
        if number == len(self.sizes) - 1:
            self._held = None
        return held[1][number]


_known_to_round_otherwise: dict[tuple[tuple[int, ...], torch.dtype], bool] = {}


def _rounds_otherwise_alone(packed: Packed, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Tried once for each shape: whether a position's product depends on there being another one."""
    key = shape, dtype
    if key not in _known_to_round_otherwise:
        inputs = torch.randn(_TRIED_ROWS, shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
        together = packed._multiply(inputs)
        alone = torch.cat([packed._multiply(row[None]) for row in inputs])
        _known_to_round_otherwise[key] = not torch.equal(together, alone)
    return _known_to_round_otherwise[key]


class PackedLinear(nn.Module):
    """Stands for a linear layer that has a packed weight to itself. For inference only."""

    def __init__(self, packed: Packed) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.packed.product(inputs)


class PackedPart(nn.Module):
    """Stands for a linear layer that shares a packed weight with others. For inference only."""

    def __init__(self, packed: Packed, number: int) -> None:
        super().__init__()
        self.packed, self.number = packed, number

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.packed.part(inputs, self.number)


def can_pack(dtype: torch.dtype) -> bool:
    """True where this processor and this PyTorch have the kernels."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    try:
        Packed([nn.Linear(64, 64, bias=False, dtype=dtype)]).product(torch.ones(1, 64, dtype=dtype))
    except (RuntimeError, NotImplementedError) as error:
        logger.info("Weights cannot be packed here: %s", error)
        return False
    return True


@torch.no_grad()
def pack_weights(model: nn.Module) -> int:
    """Replace the model's linear layers on the CPU by packed ones; returns how many.

    The layers' own weights are freed as it goes, but for those that something else holds (embeddings tied
    to the head). What is left runs, and no longer trains or saves.
    """
    count = 0
    for module in list(model.modules()):
        for names in GROUPS:
            count += _pack_group(module, [getattr(module, name, None) for name in names], names)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and _is_plain(child):
                setattr(module, name, PackedLinear(Packed([child])))
                count += 1
    return count


def _pack_group(module: nn.Module, layers: list[Any], names: Sequence[str]) -> int:
    if not all(_is_plain(layer) for layer in layers):
        return 0
    kinds = {(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in layers}
    if len(kinds) > 1:
        return 0
    packed = Packed(layers)
    for number, name in enumerate(names):
        setattr(module, name, PackedPart(packed, number))
    return len(names)


def _is_plain(module: Any) -> bool:
    """A linear layer as PyTorch has it; what derives from it may do more than multiply."""
    return type(module) is nn.Linear and module.weight.device.type == "cpu" and not _has_hooks(module)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
