"""The mask of the two streams in every form that a model takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import MarsError
from .by_document import NAME as BY_DOCUMENT
from .by_document import document_mask
from .columns import Columns, may_attend

KINDS = (BY_DOCUMENT, "sdpa", "eager", "flex_attention")


def dense_mask(columns: Columns, num_queries: int, sliding_window: int | None = None) -> torch.Tensor:
    """Boolean [R, 1, Q, S], True = may attend, for the last `num_queries` columns as queries."""
    num_rows, length = columns.noisy.shape
    row, key = (torch.arange(n, device=columns.noisy.device) for n in (num_rows, length))
    query = key[length - num_queries :]
    index = (row[:, None, None], query[None, :, None], key[None, None, :])
    return may_attend(columns, *index, sliding_window).unsqueeze(1)


def block_mask(columns: Columns, num_queries: int, sliding_window: int | None = None) -> Any:
    """The same as a ``BlockMask`` of ``torch.nn.attention.flex_attention``, whose empty tiles are free."""
    # slow to import, and only GPUs need it
    from torch.nn.attention.flex_attention import create_block_mask

    num_rows, length = columns.noisy.shape
    before = length - num_queries

    def mask_mod(row: Any, head: Any, query: Any, key: Any) -> torch.Tensor:
        return may_attend(columns, row, query + before, key, sliding_window)

    return create_block_mask(mask_mod, num_rows, None, num_queries, length, device=columns.noisy.device)


def attention_mask(model: Any, columns: Columns, num_queries: int) -> Any:
    """What to pass to `model` as ``attention_mask``.

    Models of transformers take a mask of four dimensions, or a ``BlockMask``, as it is, and those whose
    layers differ a dictionary of them (5.24: `masking_utils`, `config.layer_types`).

    Args:
        model: one of transformers, not wrapped.
        columns: the keys, [R, S].
        num_queries: the last so many columns are fed; the others are cached.

    Raises:
        MarsError: layers, or an attention implementation, that cannot keep to these rules.
    """

    kind = attention_kind(model)

    def form(sliding_window: int | None) -> Any:
        if kind == "flex_attention":
            return block_mask(columns, num_queries, sliding_window)
        if kind == BY_DOCUMENT:
            return document_mask(columns, num_queries, sliding_window)
        return dense_form(model, dense_mask(columns, num_queries, sliding_window))

    return by_layer_type(model, form)


def by_layer_type(model: Any, form: Callable[[int | None], Any]) -> Any:
    """`form(sliding window)` for a model whose layers are alike, else a dictionary of them by layer type.

    Raises `MarsError` for layers that are neither full nor sliding-window attention.
    """
    config = model.config.get_text_config()
    layer_types = set(getattr(config, "layer_types", None) or ())
    sliding = getattr(config, "sliding_window", None)
    if unknown := layer_types - {"full_attention", "sliding_attention"}:
        # a state that cannot be kept apart for two streams, or a mask that is not made here
        raise MarsError(f"This model's layers ({', '.join(sorted(unknown))}) are not supported in training.")
    if "sliding_attention" not in layer_types:
        return form(None if layer_types else sliding)
    return {"full_attention": form(None), "sliding_attention": form(sliding)}


def attention_kind(model: Any) -> str:
    """The model's attention implementation, one of `KINDS`. Raises `MarsError` for another."""
    kind = model.config.get_text_config()._attn_implementation
    if kind not in KINDS:
        raise MarsError(
            f"The model's attention is {kind!r}, which takes no mask of two streams; load it with "
            f"attn_implementation one of {', '.join(KINDS)}."
        )
    return kind


def dense_form(model: Any, allowed: torch.Tensor) -> torch.Tensor:
    """A boolean mask as the model takes it: the eager implementation adds its mask to the scores.

    Raises `MarsError` for FlexAttention, which takes no dense mask.
    """
    kind = attention_kind(model)
    if kind == "flex_attention":
        raise MarsError("FlexAttention takes no dense mask; load the model with attn_implementation 'sdpa'.")
    if kind in ("sdpa", BY_DOCUMENT):
        return allowed
    dtype = model.get_input_embeddings().weight.dtype
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
