"""Who may attend to whom among the columns of the two streams, in every form that a model takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MarsError

PADDING = -1  # the document of columns that hold nothing; they see each other, and nobody sees them
KINDS = ("sdpa", "eager", "flex_attention")


@dataclass(frozen=True)
class Columns:
    """Where each column of R rows stands.

    Attributes:
        noisy: [R, S], True in the noisy stream.
        document: [R, S], number of the example it belongs to, or `PADDING`.
        position: [R, S], in its document; the same in both streams.
        block: [R, S], position at which its block starts; of noisy columns.
    """

    noisy: torch.Tensor
    document: torch.Tensor
    position: torch.Tensor
    block: torch.Tensor

    def up_to(self, stop: int) -> Columns:
        """The first columns of each row."""
        return Columns(*(tensor[:, :stop] for tensor in vars(self).values()))


def may_attend(
    columns: Columns, row: Any, query: Any, key: Any, sliding_window: int | None = None
) -> torch.Tensor:
    """True where column `query` of a row may attend to column `key` of it.

    The rules of arXiv 2604.07023, section on training, within one document:

    - clean → clean: causal;
    - noisy → noisy: same block, causal;
    - noisy → clean: strictly before the query's block;
    - clean → noisy: never.

    With a sliding window of w positions a query also sees none further back than w − 1. Row, query and key
    are indices (whole-number tensors) that broadcast; so this is FlexAttention's ``mask_mod`` too.
    """
    query_noisy, key_noisy = columns.noisy[row, query], columns.noisy[row, key]
    query_position, key_position = columns.position[row, query], columns.position[row, key]
    query_block, key_block = columns.block[row, query], columns.block[row, key]
    causal = key_position <= query_position
    clean_to_clean = ~query_noisy & ~key_noisy & causal
    noisy_to_noisy = query_noisy & key_noisy & (query_block == key_block) & causal
    noisy_to_clean = query_noisy & ~key_noisy & (key_position < query_block)
    allowed = clean_to_clean | noisy_to_noisy | noisy_to_clean
    allowed = allowed & (columns.document[row, query] == columns.document[row, key])
    if sliding_window is not None:
        allowed = allowed & (key_position > query_position - sliding_window)
    return allowed


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
    if kind == "sdpa":
        return allowed
    dtype = model.get_input_embeddings().weight.dtype
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
