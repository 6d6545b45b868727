"""The objective with no work that need not be done; losses and gradients equal those of `plain`.

- The noisy stream holds only masks that predict something. Noisy copies of other tokens are left out: they
  equal their clean doubles, from which the first token of each answer is read.
- Logits are made only where there is a label, a chunk at a time, and each chunk's gradients are taken before
  the next, so that its logits are freed. (The forward is not run twice, as checkpointing would.)
- Documents share rows; FlexAttention skips what the mask forbids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import kl_div, log_softmax, nll_loss
from transformers import DynamicCache

from ..errors import MarsError
from .attention import attention_mask
from .batch import Batch
from .inside import BaseModel, call_within, causal_lm, final_states, head_logits, trainable_of_head
from .losses import Losses, ObjectiveSettings, check_base, count_by_offset

# Logits in one chunk, of each stream: large enough to fill the device, small against the model.
CHUNK_LOGITS = {"cpu": 2**23, "cuda": 2**27}


def lean_losses(
    model: nn.Module,
    batch: Batch,
    settings: ObjectiveSettings,
    base_model: BaseModel | None = None,
    *,
    num_labels: int | None = None,
    chunk_rows: int | None = None,
) -> Losses:
    """The losses of a batch; with gradients enabled, `total` may be sent backward, once.

    Args:
        model: a causal LM of transformers, one wrapped by PEFT, or either in DistributedDataParallel or FSDP.
            Its attention decides the mask's form: flex_attention (GPU), sdpa or eager.
        batch: from `collate`, with the same settings, on the model's device.
        settings: what to compute.
        base_model: enters a context with the model from before training (`frozen_base`, `base_of_adapter`);
            for `base_kl_weight` above 0.
        num_labels: divide by this instead of the batch's own count of labels: that of a whole step, where it
            is accumulated over several batches.
        chunk_rows: labels whose logits are made at a time; by device and vocabulary if None.

    Raises:
        MarsError: a model, or a combination of settings, that cannot work.
    """
    settings = settings.of_step(batch.trains_clean)
    check_base(settings, base_model)
    _check_checkpointing(model, settings)

    def forward() -> tuple[torch.Tensor, ...]:
        states = _states(model, batch, settings)
        return _Chunks(model, batch, settings, base_model, chunk_rows).sums(*states)

    total, noisy, clean, label_hits, clean_hits = call_within(model, forward)
    hits = (torch.ones_like(label_hits), label_hits, clean_hits)
    counts = torch.stack([count_by_offset(batch.offsets, hit, settings.block_size) for hit in hits])
    return Losses.of(noisy, clean, counts, settings, batch.num_labels, num_labels, total)


def _check_checkpointing(model: nn.Module, settings: ObjectiveSettings) -> None:
    if settings.stop_clean_gradient and model.training and causal_lm(model).is_activation_checkpointing:
        # transformers leaves out the cache that the noisy stream would read
        raise MarsError(
            "stop_clean_gradient, and clean_share below 1, do not go with gradient checkpointing; switch one "
            "of the two off."
        )


def _states(model: nn.Module, batch: Batch, settings: ObjectiveSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Final hidden states at `batch.clean_at`, [N, H], and at `batch.noisy_at`, [K, H]."""
    num_clean = batch.num_clean_columns
    if settings.stop_clean_gradient and batch.input_ids.shape[1] > num_clean:
        clean, noisy = _streams_apart(model, batch, settings)
    else:
        states = _feed(model, batch, slice(None))
        clean, noisy = states[:, :num_clean], states[:, num_clean:]
    return clean[tuple(batch.clean_at)], noisy[tuple(batch.noisy_at)]


def _streams_apart(
    model: nn.Module, batch: Batch, settings: ObjectiveSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of both streams, the noisy one reading clean keys and values cut off from the graph."""
    cache = DynamicCache()
    with torch.set_grad_enabled(torch.is_grad_enabled() and not settings.clean_is_only_read):
        clean = _feed(model, batch, slice(0, batch.num_clean_columns), cache)
    layer: Any
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
    return clean, _feed(model, batch, slice(batch.num_clean_columns, None), cache)


def _feed(model: nn.Module, batch: Batch, part: slice, cache: Any = None) -> torch.Tensor:
    """Hidden states [R, Q, H] of some columns, which see themselves and those before."""
    ids = batch.input_ids[:, part]
    columns = batch.columns.up_to(part.stop or batch.input_ids.shape[1])
    mask = attention_mask(causal_lm(model), columns, ids.shape[1])
    return final_states(model, ids, batch.columns.position[:, part], mask, cache)


@dataclass(frozen=True)
class _Sums:
    """Of one chunk: losses summed over its labels, and for each of its masks whether it was right."""

    total: torch.Tensor
    noisy: torch.Tensor
    clean: torch.Tensor
    label_hits: torch.Tensor
    clean_hits: torch.Tensor


class _Chunks:
    """Head and losses, some labels at a time."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        settings: ObjectiveSettings,
        base_model: BaseModel | None,
        chunk_rows: int | None,
    ) -> None:
        self.model, self.labels, self.settings = model, batch.labels, settings
        self.weights = settings.weights_of(batch.offsets)
        vocabulary = causal_lm(model).config.get_text_config().vocab_size
        most = CHUNK_LOGITS.get(batch.labels.device.type, 2**25)
        self.chunk_rows = chunk_rows or max(1, most // vocabulary)
        self.base_model = base_model if settings.base_kl_weight else None
        self.base_states = self._base_states(batch)

    @torch.no_grad()
    def _base_states(self, batch: Batch) -> torch.Tensor | None:
        if self.base_model is None:
            return None
        with self.base_model() as base:
            return _feed(base, batch, slice(0, batch.num_clean_columns))[tuple(batch.clean_at)]

    def sums(self, clean: torch.Tensor, noisy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Hidden states [N, H] and [K, H] → total, noisy and clean sums, label and clean hits [K]."""
        if torch.is_grad_enabled():
            weights = trainable_of_head(self.model, clean)
            return _WithGradients.apply(self, clean, noisy, *weights)
        return _joined([self.of_chunk(rows, *parts) for rows, *parts in self.split(clean, noisy)])

    def split(
        self, clean: torch.Tensor, noisy: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """(labels, their clean states, their noisy states), chunk by chunk.

        The first K labels have a mask that predicts them, so the same slice fits both.
        """
        for start in range(0, len(clean), self.chunk_rows):
            rows = slice(start, start + self.chunk_rows)
            yield rows, clean[rows], noisy[rows]

    def of_chunk(self, rows: slice, clean: torch.Tensor, noisy: torch.Tensor) -> _Sums:
        labels, num_noisy = self.labels[rows], len(noisy)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.settings.clean_is_only_read):
            log_clean = log_softmax(head_logits(self.model, clean), -1)
        log_noisy = log_softmax(head_logits(self.model, noisy), -1) if num_noisy else log_clean[:0]
        hard_clean = nll_loss(log_clean, labels, reduction="none")
        clean_loss = self._clean_loss(rows, log_clean, hard_clean)
        noisy_loss = self._noisy_loss(rows, log_noisy, log_clean, hard_clean)
        choice = log_noisy.argmax(-1)
        return _Sums(
            total=self.settings.weighted(noisy_loss, clean_loss),
            noisy=noisy_loss.detach(),
            clean=clean_loss.detach(),
            label_hits=choice == labels[:num_noisy],
            clean_hits=choice == log_clean[:num_noisy].argmax(-1),
        )

    def _clean_loss(self, rows: slice, log_clean: torch.Tensor, hard: torch.Tensor) -> torch.Tensor:
        if self.base_model is None or self.base_states is None:
            return hard.sum()
        with torch.no_grad(), self.base_model() as base:
            log_base = log_softmax(head_logits(base, self.base_states[rows]), -1)
        weight = self.settings.base_kl_weight
        return (1 - weight) * hard.sum() + weight * _divergence(log_base, log_clean)

    def _noisy_loss(
        self, rows: slice, log_noisy: torch.Tensor, log_clean: torch.Tensor, hard_clean: torch.Tensor
    ) -> torch.Tensor:
        if not self.settings.has_noisy_stream:
            return hard_clean.new_zeros(())
        num_noisy, soft = len(log_noisy), self.settings.soft_weight
        weights = self.weights[rows].to(log_noisy.dtype)
        hard = nll_loss(log_noisy, self.labels[rows][:num_noisy], reduction="none")
        # An answer's first token is predicted by a token, no mask, whose noisy copy equals the clean one:
        # the same cross-entropy, and no divergence.
        loss = hard_clean[num_noisy:].sum() + (weights * hard).sum()
        if not soft:
            return loss
        return (1 - soft) * loss + soft * _divergence(log_clean[:num_noisy].detach(), log_noisy, weights)


def _divergence(
    teacher: torch.Tensor, student: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Σ KL(teacher ‖ student) over rows of log-probabilities [N, V], each by its weight [N]."""
    if weights is None:
        return kl_div(student, teacher, reduction="sum", log_target=True)
    return (weights * kl_div(student, teacher, reduction="none", log_target=True).sum(-1)).sum()


def _joined(chunks: list[_Sums]) -> tuple[torch.Tensor, ...]:
    sums = tuple(
        torch.stack([getattr(c, name) for c in chunks]).sum() for name in ("total", "noisy", "clean")
    )
    return *sums, *(torch.cat([getattr(c, name) for c in chunks]) for name in ("label_hits", "clean_hits"))


def _gradients(total: torch.Tensor, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """d total / d input of each; zeros for what it does not depend on."""
    if not total.requires_grad:  # labels without a mask, in a step that only reads the clean stream
        return tuple(torch.zeros_like(tensor) for tensor in inputs)
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


class _WithGradients(torch.autograd.Function):
    """`_Chunks.sums` whose gradients are computed on the way forward, while a chunk's logits exist."""

    @staticmethod
    def forward(
        ctx: Any, chunks: _Chunks, clean: torch.Tensor, noisy: torch.Tensor, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        # many chunks are added up: in 32 bits at least
        of_weights = [torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32)) for w in weights]
        of_states, sums = [], []
        for rows, *parts in chunks.split(clean, noisy):
            with torch.enable_grad():
                leaves = [part.detach().requires_grad_() for part in parts]
                chunk = chunks.of_chunk(rows, *leaves)
                gradients = _gradients(chunk.total, [*leaves, *weights])
            of_states.append(gradients[:2])
            for total, gradient in zip(of_weights, gradients[2:], strict=True):
                total += gradient
            sums.append(replace(chunk, total=chunk.total.detach()))
        of_clean, of_noisy = (torch.cat(part) for part in zip(*of_states, strict=True))
        joined = _joined(sums)
        ctx.mark_non_differentiable(*joined[1:])
        ctx.save_for_backward(of_clean, of_noisy, *of_weights)
        ctx.dtypes = [weight.dtype for weight in weights]
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *unused: Any) -> tuple[Any, ...]:
        of_clean, of_noisy, *of_weights = (gradient * saved for saved in ctx.saved_tensors)
        of_weights = [of.to(dtype) for of, dtype in zip(of_weights, ctx.dtypes, strict=True)]
        return None, of_clean, of_noisy, *of_weights
