"""What may be set about the objective, and what comes out of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from ..errors import MarsError
from ..settings import MAX_BLOCK_SIZE
from .examples import PHASES, Phase

Objective = Literal["mars", "ar"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is trained (arXiv 2604.07023, section on training; soft targets and base KL go beyond it).

    Attributes:
        objective: `mars`, the loss of both streams; `ar`, ordinary supervised fine-tuning: the clean
            stream's loss alone.
        block_size: B, 1 to 64: so many masks in a row before the clean text is seen again.
        ar_weight: α, the weight of the clean stream's loss; 0 leaves it out (the paper's ablation).
        phase: where an answer's blocks start. `random`: the first has 1 to B tokens, drawn anew each time,
            so that the model sees every alignment; `response`: at the answer's first token; `absolute`: at
            multiples of B of the whole text, as published.
        soft_weight: 0 to 1, how much of the noisy stream's loss is KL(clean ‖ noisy) to the clean stream's
            own distribution; the rest is cross-entropy with the data.
        offset_decay: 0 to 1, the weight of a mask's loss at offset k is offset_decay^(k − 2): what is drafted
            further on counts only where all before it was right (as Medusa weighs its heads, arXiv
            2401.10774); 1 weighs all alike, as published.
        base_kl_weight: 0 to 1, how much of the clean stream's loss is KL(base ‖ clean) to the model from
            before training; the rest is cross-entropy with the data. Above 0 it needs the base model.
        stop_clean_gradient: masks read the clean stream's keys and values without sending gradients back
            through them: cheaper, and the clean stream is trained by its own loss alone. Does not go with
            gradient checkpointing.
        clean_share: above 0, 1 at most: the clean stream has a loss in this share of a run's steps, and it
            weighs 1 / clean_share as much there. In the others it is only read: no loss, no gradients, no
            base. Below 1 it does not go with gradient checkpointing.
        mask_token_id: the token that stands for "not known yet".

    Raises:
        MarsError: a value that is not allowed.
    """

    objective: Objective = "mars"
    block_size: int = 4
    ar_weight: float = 1.0
    phase: Phase = "random"
    soft_weight: float = 0.0
    offset_decay: float = 1.0
    base_kl_weight: float = 0.0
    stop_clean_gradient: bool = False
    clean_share: float = 1.0
    mask_token_id: int

    def __post_init__(self) -> None:
        _one_of("objective", self.objective, OBJECTIVES)
        _one_of("phase", self.phase, PHASES)
        _whole("block_size", self.block_size, 1, MAX_BLOCK_SIZE)
        _whole("mask_token_id", self.mask_token_id, 0, None)
        _real("ar_weight", self.ar_weight, math.inf)
        _real("soft_weight", self.soft_weight, 1)
        _real("offset_decay", self.offset_decay, 1)
        _real("base_kl_weight", self.base_kl_weight, 1)
        _real("clean_share", self.clean_share, 1)
        if self.clean_share == 0 or (self.clean_share < 1 and not self.has_noisy_stream):
            raise MarsError(
                f"clean_share is {self.clean_share!r}; it must be above 0, and 1 for the objective ar, which "
                "has no other loss. To leave the clean stream's loss out, set ar_weight to 0."
            )
        if not isinstance(self.stop_clean_gradient, bool):
            raise MarsError(f"stop_clean_gradient is {self.stop_clean_gradient!r}; allowed is True or False.")

    @property
    def has_noisy_stream(self) -> bool:
        """False for ordinary supervised fine-tuning."""
        return self.objective == "mars"

    @property
    def clean_is_only_read(self) -> bool:
        """True where no gradient at all goes into the clean stream."""
        return self.has_noisy_stream and self.stop_clean_gradient and self.ar_weight == 0

    def of_step(self, trains_clean: bool) -> ObjectiveSettings:
        """These settings in a step whose clean stream has a loss, or has none (`clean_share`)."""
        if self.clean_share == 1:
            return self
        if trains_clean:
            return dataclasses.replace(self, ar_weight=self.ar_weight / self.clean_share, clean_share=1.0)
        return dataclasses.replace(
            self, ar_weight=0.0, base_kl_weight=0.0, stop_clean_gradient=True, clean_share=1.0
        )

    def weights_of(self, offsets: torch.Tensor) -> torch.Tensor:
        """Offsets [K], 1 or more → the weight of the loss there [K]."""
        return self.offset_decay ** (offsets - 2).clamp(min=0).float()

    def weighted(self, noisy: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
        """What is minimised, of the two streams' losses."""
        return noisy + self.ar_weight * clean if self.has_noisy_stream else clean


@dataclass(frozen=True)
class Losses:
    """What one batch gave. Of the tensors only `total` carries gradients.

    Attributes:
        total: noisy + α · clean, or clean alone for the objective `ar`; a scalar.
        noisy: loss of the noisy stream, per response token.
        clean: loss of the clean stream, per response token.
        num_noisy: response tokens that the noisy stream predicts; 0 for the objective `ar`.
        num_clean: response tokens that the clean stream is trained to predict; 0 where it is only read.
        trials: [B − 1], entry k − 2: predictions that masks made at offset k = 2 … B, those that decoding
            with B − 1 masks makes. (The last mask of a block predicts offset B + 1; it is trained, and
            not counted here.)
        label_hits: [B − 1], those whose likeliest token is the text's.
        clean_hits: [B − 1], those whose likeliest token is the clean stream's: a draft that verification
            would keep.
    """

    total: torch.Tensor
    noisy: torch.Tensor
    clean: torch.Tensor
    num_noisy: int
    num_clean: int
    trials: torch.Tensor
    label_hits: torch.Tensor
    clean_hits: torch.Tensor

    @classmethod
    def of(
        cls,
        noisy: torch.Tensor,
        clean: torch.Tensor,
        counts: torch.Tensor,
        settings: ObjectiveSettings,
        num_labels: int,
        divisor: int | None,
        total: torch.Tensor | None = None,
    ) -> Losses:
        """From sums over the labels.

        Args:
            noisy, clean: the streams' losses, scalars.
            counts: [3, B − 1], trials, label hits and clean hits.
            settings: what the weights are.
            num_labels: so many there are.
            divisor: divide by this instead.
            total: the weighted sum, where it is there already.
        """
        divisor = divisor or num_labels
        if total is None:
            total = settings.weighted(noisy, clean)
        return cls(
            total=total / divisor,
            noisy=noisy.detach() / divisor,
            clean=clean.detach() / divisor,
            num_noisy=num_labels if settings.has_noisy_stream else 0,
            num_clean=0 if settings.clean_is_only_read else num_labels,
            trials=counts[0],
            label_hits=counts[1],
            clean_hits=counts[2],
        )

    def detached(self) -> Losses:
        """The same figures without the graph, to keep for a log."""
        return dataclasses.replace(self, total=self.total.detach())


def check_base(settings: ObjectiveSettings, base_model: object) -> None:
    """Raise `MarsError` where the settings need a base model and there is none."""
    if settings.base_kl_weight and base_model is None:
        raise MarsError(
            f"base_kl_weight is {settings.base_kl_weight}, which needs the model from before training; "
            "give base_model, or set base_kl_weight to 0."
        )


def count_by_offset(offsets: torch.Tensor, hits: torch.Tensor, block_size: int) -> torch.Tensor:
    """Hits [M] at offsets [M] → how many there are at each of the offsets 2 … B, [B − 1], whole numbers."""
    counts = torch.zeros(block_size + 2, dtype=torch.long, device=offsets.device)
    return counts.index_add(0, offsets, hits.long())[2 : block_size + 1]


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise MarsError(f"{name} is {value!r}; allowed are {', '.join(allowed)}.")


def _whole(name: str, value: Any, low: int, high: int | None) -> None:
    if type(value) is not int or value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise MarsError(f"{name} is {value!r}; allowed is a whole number, {allowed}.")


def _real(name: str, value: Any, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and 0 <= value <= high):
        allowed = "0 or more" if math.isinf(high) else f"0 to {high}"
        raise MarsError(f"{name} is {value!r}; allowed is a number, {allowed}.")
