"""The objective, plainly: the oracle that `lean` is compared with.

arXiv 2604.07023, section on training: one document at a time, the whole of both streams ``[noisy | clean]``,
a dense mask of four terms, all logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax, nll_loss
from transformers import DynamicCache

from .attention import by_layer_type, dense_form
from .batch import Batch, Document
from .inside import BaseModel, causal_lm
from .losses import Losses, ObjectiveSettings, check_base, count_by_offset


def plain_losses(
    model: nn.Module,
    batch: Batch,
    settings: ObjectiveSettings,
    base_model: BaseModel | None = None,
    *,
    num_labels: int | None = None,
) -> Losses:
    """The losses of a batch. Arguments and errors are those of `lean_losses`."""
    settings = settings.of_step(batch.trains_clean)
    check_base(settings, base_model)
    device = batch.labels.device
    noisy = clean = torch.zeros((), device=device)
    counts = torch.zeros(3, settings.block_size - 1, dtype=torch.long, device=device)
    for document in batch.documents:
        noisy_logits, clean_logits = _streams(model, document, settings)
        base_logits = _base_logits(document, base_model) if settings.base_kl_weight and base_model else None
        targets = document.response[1:].nonzero()[:, 0] + 1
        labels, places = document.input_ids[targets], targets - 1  # position i − 1 predicts i
        of_base = None if base_logits is None else base_logits[places]
        clean = clean + _clean_loss(clean_logits[places], labels, of_base, settings)
        if settings.has_noisy_stream:
            weights = settings.weights_of(_offsets(document)[places])
            parts = _noisy_losses(noisy_logits[places], clean_logits[places], labels, settings)
            noisy = noisy + (weights * parts).sum()
            counts += _counts(noisy_logits, clean_logits, document, settings.block_size)
    return Losses.of(noisy, clean, counts, settings, batch.num_labels, num_labels)


def two_stream_mask(blocks: torch.Tensor) -> torch.Tensor:
    """Block starts [L] → boolean [2L, 2L] over ``[noisy | clean]``, True = row may attend to column."""
    length = len(blocks)
    noisy = torch.arange(2 * length, device=blocks.device) < length
    position = torch.arange(length, device=blocks.device).repeat(2)
    block = blocks.repeat(2)
    query_noisy, key_noisy = noisy[:, None], noisy[None, :]
    query_position, key_position = position[:, None], position[None, :]
    query_block, key_block = block[:, None], block[None, :]
    clean_to_clean = ~query_noisy & ~key_noisy & (key_position <= query_position)
    noisy_to_noisy = query_noisy & key_noisy & (query_block == key_block) & (key_position <= query_position)
    noisy_to_clean = query_noisy & ~key_noisy & (key_block < query_block)
    clean_to_noisy = torch.zeros_like(clean_to_clean)
    return clean_to_clean | noisy_to_noisy | noisy_to_clean | clean_to_noisy


def _streams(
    model: nn.Module, document: Document, settings: ObjectiveSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [L, V] of the noisy stream and of the clean one."""
    ids, length = document.input_ids, len(document.input_ids)
    mask = two_stream_mask(document.blocks)
    noisy_ids = torch.where(document.response, settings.mask_token_id, ids)
    if settings.has_noisy_stream and not settings.stop_clean_gradient:
        logits = _logits(model, torch.cat([noisy_ids, ids]), mask, length)
        return logits[:length], logits[length:]
    with torch.set_grad_enabled(torch.is_grad_enabled() and not settings.clean_is_only_read):
        clean = _logits(model, ids, mask[length:, length:], length)
    if not settings.has_noisy_stream:
        return clean, clean
    cache = DynamicCache()
    with torch.no_grad():  # the noisy stream reads clean keys and values that know of no gradient
        _logits(model, ids, mask[length:, length:], length, cache)
    clean_then_noisy = torch.cat([mask[:length, length:], mask[:length, :length]], 1)
    noisy = _logits(model, noisy_ids, clean_then_noisy, length, cache)
    # masks alone read without gradients: what is no mask in the noisy stream is the clean stream's double
    return torch.where(document.response[:, None], noisy, clean), clean


def _logits(
    model: nn.Module, ids: torch.Tensor, allowed: torch.Tensor, length: int, cache: Any = None
) -> torch.Tensor:
    """Logits [Q, V], at least 32 bits, of ids [Q] under a mask [Q, S]; both are whole streams of `length`."""
    positions = torch.arange(length, device=ids.device)
    queries, keys = (positions.repeat(size // length) for size in allowed.shape)

    def form(sliding_window: int | None) -> torch.Tensor:
        near = keys[None, :] > queries[:, None] - (sliding_window or 2 * length)
        return dense_form(inner, (allowed & near)[None, None])

    inner = causal_lm(model)
    logits = model(
        input_ids=ids[None],
        position_ids=queries[None],
        attention_mask=by_layer_type(inner, form),
        cache=cache,
        use_cache=cache is not None,
    ).logits[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _clean_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    base_logits: torch.Tensor | None,
    settings: ObjectiveSettings,
) -> torch.Tensor:
    """Sum over the labels [N] of the clean stream's loss, from logits [N, V]."""
    log_clean = log_softmax(logits, -1)
    hard = nll_loss(log_clean, labels, reduction="sum")
    if base_logits is None:
        return hard
    soft = kl_div(log_clean, log_softmax(base_logits, -1), reduction="sum", log_target=True)
    return (1 - settings.base_kl_weight) * hard + settings.base_kl_weight * soft


def _offsets(document: Document) -> torch.Tensor:
    """[L], how far behind the last token it is sure of the noisy stream predicts: 1 where it is no mask."""
    within = torch.arange(len(document.blocks), device=document.blocks.device) - document.blocks
    return torch.where(document.response, within + 2, 1)


def _noisy_losses(
    logits: torch.Tensor, clean_logits: torch.Tensor, labels: torch.Tensor, settings: ObjectiveSettings
) -> torch.Tensor:
    """The noisy stream's losses of the labels [N]; the clean logits of the same place teach it."""
    log_noisy = log_softmax(logits, -1)
    hard = nll_loss(log_noisy, labels, reduction="none")
    teacher = log_softmax(clean_logits.detach(), -1)
    soft = kl_div(log_noisy, teacher, reduction="none", log_target=True).sum(-1)
    return (1 - settings.soft_weight) * hard + settings.soft_weight * soft


@torch.no_grad()
def _base_logits(document: Document, base_model: BaseModel) -> torch.Tensor:
    length = len(document.input_ids)
    with base_model() as base:
        causal = two_stream_mask(document.blocks)[length:, length:]
        return _logits(base, document.input_ids, causal, length)


def _counts(
    noisy_logits: torch.Tensor, clean_logits: torch.Tensor, document: Document, block_size: int
) -> torch.Tensor:
    """[3, B − 1]: trials, hits of the label, hits of the clean stream's choice; from all logits [L, V]."""
    behind_masks = (document.response[:-1] & document.response[1:]).nonzero()[:, 0]
    offsets = behind_masks - document.blocks[behind_masks] + 2
    choice = noisy_logits[behind_masks].argmax(-1)
    label_hits = choice == document.input_ids[behind_masks + 1]
    clean_hits = choice == clean_logits[behind_masks].argmax(-1)
    hits = (torch.ones_like(label_hits), label_hits, clean_hits)
    return torch.stack([count_by_offset(offsets, hit, block_size) for hit in hits])
