"""How good the model is on what it was not trained on: losses, drafts, tokens per forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from ..engine import Engine
from ..events import StatisticsCounter
from ..loaded import LoadedModel
from ..row import Request
from ..settings import DecodeSettings, LiveSettings
from .batches import Batches
from .inside import causal_lm
from .losses import Losses, ObjectiveSettings
from .objective import lean_losses


class Sums:
    """Losses of several batches, added up on their device, by the token."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        exact = torch.float32 if device.type == "mps" else torch.float64  # MPS has no more
        self.losses = torch.zeros(4, dtype=exact, device=device)  # noisy, its tokens; clean, its tokens
        self.hits = torch.zeros(3, block_size - 1, dtype=exact, device=device)

    def add(self, losses: Losses, weight: int = 1) -> None:
        """Add a batch's; weight 0 leaves it out."""
        noisy, clean = losses.noisy.detach(), losses.clean.detach()
        sums = [noisy * losses.num_noisy, losses.num_noisy, clean * losses.num_clean, losses.num_clean]
        self.losses += weight * torch.stack([torch.as_tensor(s, device=self.losses.device) for s in sums])
        self.hits += weight * torch.stack([losses.trials, losses.clean_hits, losses.label_hits])

    def figures(self, reduce: Any = None) -> dict[str, float]:
        """Means by the token, and acceptance by offset.

        Args:
            reduce: adds a tensor up over all processes, if there are several.

        Returns:
            `noisy` and `clean` loss; for each offset k `accept_k`, the share of drafts there that are the
            clean stream's own choice, and `text_k`, the share that are the text's next token. What there was
            none of is left out.
        """
        losses, hits = (reduce(t) if reduce else t for t in (self.losses, self.hits))
        noisy, num_noisy, clean, num_clean = losses.tolist()
        figures = {"noisy": noisy / num_noisy} if num_noisy else {}
        if num_clean:
            figures["clean"] = clean / num_clean
        for offset, (trials, kept, right) in enumerate(hits.T.tolist(), start=2):
            if trials:
                figures[f"accept_{offset}"] = kept / trials
                figures[f"text_{offset}"] = right / trials
        return figures


@torch.no_grad()
def held_out_sums(
    model: nn.Module, batches: Batches, process: int, num_processes: int, device: torch.device, context: Any
) -> Sums:
    """This process's share of the losses on held-out batches.

    Cross-entropy with the text for both streams, whatever is trained, so that runs can be compared. All
    processes run as many batches: a model in parts needs all of them.

    Args:
        context: makes the context to compute in (autocast).
    """
    settings = evaluation_settings(batches.settings)
    sums = Sums(settings.block_size, device)
    for first in range(0, len(batches), num_processes):
        number = first + process
        batch = batches[min(number, len(batches) - 1)]["batch"].to(device)
        with context():
            losses = lean_losses(model, batch, settings)
        sums.add(losses, weight=int(number < len(batches)))
    return sums


def evaluation_settings(settings: ObjectiveSettings) -> ObjectiveSettings:
    """The same blocks and masks, hard targets."""
    return dataclasses.replace(
        settings,
        soft_weight=0.0,
        offset_decay=1.0,
        base_kl_weight=0.0,
        stop_clean_gradient=False,
        clean_share=1.0,
    )


def tokens_per_forward(
    loaded: LoadedModel, model: nn.Module, prompts: Sequence[Sequence[int]], threshold: float, new_tokens: int
) -> dict[str, float]:
    """Greedy decoding of prompts with the model as it is now.

    Returns:
        `tok_fwd`: tokens per forward at τ = `threshold`, prefill counted as one forward; `tok_fwd_verify`:
        with verification at τ = 1, where the text is AR's.
    """
    with _ready_to_decode(model, loaded) as ready:
        size = ready.block_size
        modes = {
            "tok_fwd": DecodeSettings(threshold=threshold, block_size=size, max_new_tokens=new_tokens),
            "tok_fwd_verify": DecodeSettings(
                threshold=1.0, verify=True, layout="full", block_size=size, max_new_tokens=new_tokens
            ),
        }
        return {name: _tokens_per_forward(ready, prompts, mode) for name, mode in modes.items()}


def _tokens_per_forward(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], settings: DecodeSettings
) -> float:
    engine = Engine(loaded)
    num_tokens = num_forwards = 0
    for prompt in prompts:
        counter = StatisticsCounter(len(prompt))
        for event in engine.stream(Request(prompt, settings, LiveSettings(settings.live_values()))):
            counter.add(event)
        figures = counter.read()
        num_tokens += figures.num_tokens
        num_forwards += figures.num_forwards
    return num_tokens / max(1, num_forwards)


def _ready_to_decode(model: nn.Module, loaded: LoadedModel) -> AbstractContextManager[LoadedModel]:
    return _decoding(causal_lm(model), loaded)


@contextmanager
def _decoding(inner: Any, loaded: LoadedModel) -> Any:
    """The model under training as one that the engine takes: its attention must know dense masks."""
    attention, was_training = inner.config._attn_implementation, inner.training
    if attention == "flex_attention":
        inner.set_attn_implementation("sdpa")
    try:
        yield dataclasses.replace(loaded, model=inner.eval(), device=inner.device, dtype=inner.dtype)
    finally:
        inner.set_attn_implementation(attention)
        inner.train(was_training)
