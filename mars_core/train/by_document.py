"""Attention of the two streams document by document, where no kernel skips what the mask forbids (CPU, MPS).

Documents that share a row never see each other, and clean tokens never see masks. One product of all columns
with all columns would compute both for nothing: a third of a training step for a small model. Here each
document has two products of its own: its clean tokens among themselves, causal, and its masks with what they
may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .columns import PADDING, Columns, may_attend

NAME = "sdpa_by_document"


@dataclass(frozen=True)
class Part:
    """One product: some columns of a row as queries, some as keys.

    Attributes:
        num_queries, num_keys: how many.
        allowed: boolean [num_queries, num_keys]; None where it is causal, keys and queries the same columns.
    """

    num_queries: int
    num_keys: int
    allowed: torch.Tensor | None


@dataclass(frozen=True)
class Parts:
    """All products of R rows.

    Attributes:
        parts: the products.
        queries: [sum of num_queries], places in the flattened [R · Q] of each product's queries in turn.
        keys: [sum of num_keys], places in the flattened [R · S] of each product's keys.
        back: [R · Q], where in `queries` each place stands; behind its end for padding.
    """

    parts: tuple[Part, ...]
    queries: torch.Tensor
    keys: torch.Tensor
    back: torch.Tensor


class DocumentMask(torch.Tensor):
    """A mask [R, 1, Q, S] that holds `parts` in place of numbers: models hand it on as it is."""

    parts: Parts


def document_mask(columns: Columns, num_queries: int, sliding_window: int | None = None) -> DocumentMask:
    """What `attention.dense_mask` says, as products by document."""
    num_rows, length = columns.noisy.shape
    mask = torch.zeros((), device=columns.noisy.device).expand(num_rows, 1, num_queries, length)
    marked = mask.as_subclass(DocumentMask)
    marked.parts = _parts(columns, num_queries, sliding_window)
    return marked


def _parts(columns: Columns, num_queries: int, sliding_window: int | None) -> Parts:
    num_rows, length = columns.noisy.shape
    cached = length - num_queries
    parts, queries, keys = [], [], []
    for row, clean, noisy in _documents(columns):
        for side, seen in ((clean, clean), (noisy, torch.cat([clean, noisy]))):
            asking = side[side >= cached]
            if not len(asking):
                continue
            causal = seen is clean and len(asking) == len(seen) and sliding_window is None
            allowed = None
            if not causal:
                allowed = may_attend(columns, row, asking[:, None], seen[None, :], sliding_window)
            parts.append(Part(len(asking), len(seen), allowed))
            queries.append(row * num_queries + asking - cached)
            keys.append(row * length + seen)
    at = torch.cat(queries)
    back = torch.full((num_rows * num_queries,), len(at), device=at.device)
    back[at] = torch.arange(len(at), device=at.device)
    return Parts(tuple(parts), at, torch.cat(keys), back)


def _documents(columns: Columns) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(row, its clean columns, its noisy columns) of each document."""
    for row, (documents, noisy) in enumerate(zip(columns.document, columns.noisy, strict=True)):
        for number in documents.unique().tolist():
            if number != PADDING:
                own = documents == number
                yield row, (own & ~noisy).nonzero()[:, 0], (own & noisy).nonzero()[:, 0]


def attention_by_document(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers' own sdpa attention returns: query [R, H, Q, D], key and value [R, H / groups, S, D]
    -> [R, Q, H, D]; zeros for padding. Any mask that is no `DocumentMask` is left to that one."""
    if not isinstance(attention_mask, DocumentMask):
        options |= {"dropout": dropout, "scaling": scaling}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if options.get("softcap") is not None or options.get("position_bias") is not None:
        raise ValueError("softcap and position_bias are not supported; use attn_implementation='eager'.")
    rows, heads, width, _ = query.shape
    plan, groups = attention_mask.parts, heads // key.shape[1]
    asked = _flat(query).index_select(0, plan.queries).split([part.num_queries for part in plan.parts])
    of_keys, of_values = (
        _flat(repeat_kv(tensor, groups)).index_select(0, plan.keys).split([p.num_keys for p in plan.parts])
        for tensor in (key, value)
    )
    answers = [
        _product(part, q, k, v, dropout, scaling)
        for part, q, k, v in zip(plan.parts, asked, of_keys, of_values, strict=True)
    ]
    padding = answers[0].new_zeros(1, heads, value.shape[-1])
    output = torch.cat([*answers, padding]).index_select(0, plan.back)
    return output.view(rows, width, heads, -1), None


def _product(
    part: Part,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    scaling: float | None,
) -> torch.Tensor:
    """Queries [Q, H, D], keys and values [S, H, D] -> [Q, H, D]."""
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
    causal = part.allowed is None
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=part.allowed, dropout_p=dropout, is_causal=causal, scale=scaling
    )
    return output[0].transpose(0, 1)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """[R, H, S, D] -> [R · S, H, D]."""
    return tensor.transpose(1, 2).flatten(0, 1)


def use_attention_by_document(model: PreTrainedModel) -> None:
    """Switch a model that runs with sdpa over; another one is left as it is."""
    if model.config.get_text_config()._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, attention_by_document)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
