"""Attention for windows of a few positions where several query heads share keys: no copy of the cache.

With grouped-query attention transformers (5.24) repeats keys and values for every query head as soon as a
mask is given and a window has more than one position, which copies the whole cache several times over at
every layer of every forward; for a single position it leaves the grouping to PyTorch, whose CPU kernel is
four times slower at it. Here the query heads that share a key head stand one after another as queries of
that head; the numbers are the same.

In 16 bits a position's numbers should not depend on how many positions are fed with it: else a verified
text parts from the one-token text wherever two tokens are nearly as likely. The kernels treat what is left
over behind full blocks of queries and keys in other ways than the blocks, so nothing is left over: both are
filled up. (Seen to be enough on x86 with torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_grouped"
SLOT_STEP = 64  # keys in a forward, a multiple of this
_CALL_IN_KEYS = 192  # a call costs about as much as reading so many keys of one row
_QUERY_STEP = 4  # queries of a key head, likewise


class _Masks:
    """The mask of the forward under way, as the kernel wants it: made once, for all layers."""

    def __init__(self) -> None:
        self._held: tuple[torch.Tensor, int, torch.Tensor] | None = None

    def additive(self, mask: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
        """Boolean or additive [R, 1, W, S] -> additive [R, 1, groups · W, S], and queries that fill it
        up, which see everything."""
        held = self._held
        if held is None or held[0] is not mask or held[1] != groups or held[2].dtype != dtype:
            held = self._held = mask, groups, _additive(mask, groups, dtype)
        return held[2]


def _additive(mask: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
    mask = mask.to(dtype)
    rows, _, width, slots = mask.shape
    repeated = mask[:, :, None].expand(rows, 1, groups, width, slots).reshape(rows, 1, groups * width, slots)
    return pad(repeated, (0, 0, 0, -groups * width % _QUERY_STEP))


_masks = _Masks()


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    row_ends: Sequence[int] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers' own sdpa attention returns: query [R, H, W, D], key and value [R, H / groups, S, D],
    mask [R, 1, W, S] -> [R, W, H, D]. Whatever is not such a window is left to that one.

    Args:
        row_ends: how many of the S keys each row may see at most, multiples of `SLOT_STEP`; where rows differ
            much each gets a product of its own, so that short ones do not read as far as the longest.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    rows, heads, width, size = query.shape
    special = dropout or options.get("position_bias") is not None or options.get("softcap") is not None
    # without a mask several positions are meant to be causal
    no_window = width > 1 if attention_mask is None else attention_mask.shape[1] != 1
    if special or no_window:
        options |= {"dropout": dropout, "scaling": scaling}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    queries = groups * width
    folded = query.reshape(rows, heads // groups, queries, size)
    if queries % _QUERY_STEP:
        folded = pad(folded, (0, 0, 0, -queries % _QUERY_STEP))
    mask = None if attention_mask is None else _masks.additive(attention_mask, groups, query.dtype)
    if mask is not None and row_ends is not None and rows_apart(row_ends):
        output = torch.cat(
            [
                scaled_dot_product_attention(*_row(row, end, folded, key, value, mask), scale=scaling)
                for row, end in enumerate(row_ends)
            ]
        )
    else:
        output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return output[:, :, :queries].reshape(rows, heads, width, -1).transpose(1, 2).contiguous(), None


def rows_apart(row_ends: Sequence[int]) -> bool:
    """True where what rows read for nothing together costs more than a call for each."""
    return len(row_ends) * max(row_ends) - sum(row_ends) > _CALL_IN_KEYS * len(row_ends)


def _row(
    row: int, end: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    one = slice(row, row + 1)
    return query[one], key[one, :, :end], value[one, :, :end], mask[one, :, :, :end]


def use_grouped_attention(model: PreTrainedModel) -> bool:
    """Switch a model that runs with sdpa over; returns whether it did."""
    if model.config.get_text_config()._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return bool(model.config.get_text_config()._attn_implementation == NAME)
