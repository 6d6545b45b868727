"""All that can be set about a training run, and what the command line says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from .. import default_model
from ..errors import MarsError
from .data import DataSettings, Overlong
from .examples import Phase
from .losses import Objective, ObjectiveSettings
from .options import option
from .reading import BadLines

Tune = Literal["lora", "full"]
LEARNING_RATES: dict[Tune, float] = {"lora": 1e-3, "full": 1e-5}
# What may differ between a run and the one that goes on from its checkpoint.
FREE = (
    "device", "workers", "merge", "resume", "save_dtype", "save_every", "keep", "log_every", "eval_every",
    "eval_decode", "eval_threshold", "eval_new_tokens", "out", "bad_lines",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """A training run. What each field means stands in its help, for people and command line alike."""

    data: tuple[str, ...] = option(
        ...,
        "data",
        "files of JSON lines with `messages`, or with `prompt` and `response` (`finished`: false where the "
        "response was cut off); or Hub data sets, owner/name or owner/name:split",
        "FILE",
    )
    held_out_data: tuple[str, ...] = option(
        (), "data", "likewise, to evaluate on; their questions are taken out of the training data", "FILE"
    )
    held_out: int = option(
        64, "data", "without --held-out-data: examples set aside to evaluate on, by seed and question", "N"
    )
    max_length: int = option(512, "data", "most tokens of an example", "L")
    overlong: Overlong = option(
        "boundary",
        "data",
        "a longer example is cut behind its last answer that fits (boundary), within an answer, where no end "
        "of turn is learned then (answer), or dropped (drop)",
    )
    bad_lines: BadLines = option("skip", "data", "what happens to a line that cannot be used")

    model: str = option(
        default_model.HUB_ID,
        "model",
        "what to train: a local directory or a Hub id; the default is the embedded model without its MARS "
        "adapter",
        "NAME",
    )
    init_adapter: str | None = option(
        None, "model", "LoRA adapter to go on from: a directory or a Hub id; sets rank and layers", "NAME"
    )
    mask_token_id: int | None = option(
        None, "model", "mask token, an id that the embedding table has; found by itself if not given", "ID"
    )
    device: Literal["auto", "cpu"] = option("auto", "model", "auto takes the GPUs that are here")
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto",
        "model",
        "bf16 computes in bfloat16 and keeps what is trained in float32; auto is bf16 on a GPU that has it",
    )
    attention: Literal["auto", "sdpa", "flex_attention", "eager"] = option(
        "auto",
        "model",
        "auto is flex_attention on CUDA, which skips what the mask forbids, else sdpa by document",
    )

    objective: Objective = option("mars", "objective", "ar is ordinary supervised fine-tuning (stage 1)")
    block_size: int = option(4, "objective", "B, the most tokens a forward will commit", "B")
    ar_weight: float = option(
        1.0, "objective", "α, weight of the clean stream's loss; 0 is the paper's ablation", "α"
    )
    phase: Phase = option(
        "random",
        "objective",
        "where blocks start: at a random phase, at the answer's first token (response), or at multiples of B "
        "(absolute, as published)",
    )
    soft_weight: float = option(
        0.0,
        "objective",
        "0 to 1: how much of the noisy loss is the KL to the clean stream's own distribution",
        "W",
    )
    offset_decay: float = option(
        1.0,
        "objective",
        "0 to 1: a mask's loss at offset k weighs this to the power of k − 2; drafts far on matter less",
        "D",
    )
    base_kl_weight: float = option(
        0.0, "objective", "0 to 1: how much of the clean loss is the KL to the untrained model", "W"
    )
    stop_clean_gradient: bool = option(
        False, "objective", "no gradients through the clean keys and values that masks read: cheaper"
    )

    clean_share: float = option(
        1.0,
        "objective",
        "0 to 1: the clean stream is trained in this share of the steps, each weighing as much more: cheaper",
        "P",
    )

    tune: Tune = option("lora", "what is trained", "a LoRA adapter, or all weights (full)")
    lora_rank: int = option(32, "what is trained", "rank of the adapter", "R")
    lora_alpha: float | None = option(
        None, "what is trained", "scale of the adapter (default: twice the rank)", "A"
    )
    lora_dropout: float = option(0.0, "what is trained", "dropout in front of the adapter", "P")
    lora_targets: tuple[str, ...] = option(
        ("all-linear",), "what is trained", "names of the layers to adapt, or all-linear", "NAME"
    )
    train_mask_row: bool = option(
        False, "what is trained", "train the mask token's embedding row as well; the other rows stay frozen"
    )

    epochs: float = option(1.0, "optimisation", "passes through the data", "N")
    max_steps: int | None = option(None, "optimisation", "this many steps, whatever --epochs says", "N")
    learning_rate: float | None = option(
        None, "optimisation", "peak learning rate (default: 1e-3 for LoRA, 1e-5 for full)", "LR"
    )
    schedule: Literal["cosine", "linear", "constant"] = option(
        "cosine", "optimisation", "of the learning rate, behind the warm-up"
    )
    warmup: float = option(0.03, "optimisation", "share of the steps in which the learning rate rises", "P")
    weight_decay: float = option(0.0, "optimisation", "of AdamW", "W")
    max_grad_norm: float = option(1.0, "optimisation", "longest gradient; 0 is off", "G")
    batch_tokens: int = option(
        8192, "optimisation", "most tokens of a batch on one device, masks counted, padding not", "N"
    )
    accumulate: int = option(1, "optimisation", "batches on each device for one step of the optimiser", "N")
    gradient_checkpointing: bool = option(
        False, "optimisation", "compute activations twice instead of keeping them: slower, less memory"
    )
    seed: int = option(0, "optimisation", "of data order, block phases, dropout and new weights", "S")
    workers: int = option(0, "optimisation", "processes that prepare batches beside each training one", "N")

    eval_every: int = option(
        200, "evaluation", "steps between evaluations, the first before training; 0 is at the end only", "N"
    )
    eval_decode: int = option(
        0, "evaluation", "held-out prompts to decode as well, for tokens per forward; 0 is off", "N"
    )
    eval_threshold: float = option(0.9, "evaluation", "τ of that decoding", "τ")
    eval_new_tokens: int = option(64, "evaluation", "most tokens of each answer in it", "N")

    out: str = option(..., "output", "directory for checkpoints and the result", "DIR")
    merge: bool = option(
        False, "output", "also write the adapter merged into its base, to DIR/merged: an ordinary checkpoint"
    )
    save_dtype: Literal["fp32", "bf16"] = option(
        "fp32", "output", "of the adapter in DIR; bf16 halves its size and rounds it"
    )
    resume: bool = option(
        False, "output", "go on from the last checkpoint in DIR, if there is one, exactly as if never ended"
    )
    save_every: int = option(200, "output", "steps between checkpoints", "N")
    keep: int = option(2, "output", "checkpoints that are kept", "N")
    log_every: int = option(10, "output", "steps between two lines of the log", "N")

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_length", "lora_rank", "batch_tokens", "accumulate", "save_every", "keep")
        _at_least(self, 1, "log_every", "eval_new_tokens", "max_steps")
        _at_least(self, 0, "held_out", "workers", "eval_every", "eval_decode", "seed", "weight_decay")
        _at_least(self, 0, "max_grad_norm", "learning_rate", "epochs", "warmup", "lora_dropout", "lora_alpha")
        for name in ("warmup", "lora_dropout"):
            if getattr(self, name) >= 1:
                raise MarsError(f"{name} is {getattr(self, name)!r}; it must be less than 1.")
        if self.epochs == 0 and self.max_steps is None:
            raise MarsError("epochs is 0: there would be nothing to do. Give a number above 0.")
        if (self.stop_clean_gradient or self.clean_share < 1) and self.gradient_checkpointing:
            raise MarsError(
                "stop_clean_gradient, and clean_share below 1, do not go with gradient_checkpointing; leave "
                "one out."
            )
        if self.tune == "full" and (self.init_adapter or self.train_mask_row or self.merge):
            raise MarsError("init_adapter, train_mask_row and merge belong to tune lora; leave them out.")
        if self.tune == "full" and self.base_kl_weight > 0:
            raise MarsError(
                "base_kl_weight needs the untrained model beside the trained one, which an adapter switched "
                "off gives for nothing; take tune lora."
            )
        self.objective_settings(0)

    def objective_settings(self, mask_token_id: int) -> ObjectiveSettings:
        """The part that the objective goes by. Raises `MarsError` for what it does not allow."""
        return ObjectiveSettings(
            objective=self.objective,
            block_size=self.block_size,
            ar_weight=self.ar_weight,
            phase=self.phase,
            soft_weight=self.soft_weight,
            offset_decay=self.offset_decay,
            base_kl_weight=self.base_kl_weight,
            stop_clean_gradient=self.stop_clean_gradient,
            clean_share=self.clean_share,
            mask_token_id=mask_token_id,
        )

    def data_settings(self) -> DataSettings:
        """The part that reading the data goes by."""
        return DataSettings(
            sources=self.data,
            held_out_sources=self.held_out_data,
            held_out=self.held_out,
            max_length=self.max_length,
            overlong=self.overlong,
            bad_lines=self.bad_lines,
            seed=self.seed,
        )

    @property
    def peak_learning_rate(self) -> float:
        """As given, else what suits what is trained."""
        return LEARNING_RATES[self.tune] if self.learning_rate is None else self.learning_rate


def _at_least(settings: TrainSettings, low: int, *names: str) -> None:
    for name in names:
        value: Any = getattr(settings, name)
        if value is not None and not (math.isfinite(value) and value >= low):
            raise MarsError(f"{name} is {value!r}; it must be {low} or more.")
