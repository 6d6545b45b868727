"""transformers' `Trainer` with the MARS objective: batches by a plan, losses by the token, no silent NaN."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from ..errors import MarsError
from .batches import Batches, loader
from .evaluation import Sums, held_out_sums
from .inside import BaseModel
from .objective import lean_losses


class MarsTrainer(Trainer):
    """Trains on `Batches`.

    The data loader, the losses, their normalisation over accumulated batches and processes, the evaluation
    and the refusal to go on with NaN are ours; all else is transformers' (5.24).

    Args:
        model: a causal LM or one wrapped by PEFT.
        args: max_steps is the plan's.
        batches: of the whole run, in order.
        held_out: batches to evaluate on; None or empty: no evaluation.
        base_model: for `base_kl_weight`; see `lean_losses`.
        decode: called with the model in each evaluation of the main process; returns more figures.
        callbacks: as transformers' has them.
    """

    # The loss is divided by the label tokens of the whole step, so not again by the number of batches.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        batches: Batches,
        held_out: Batches | None = None,
        base_model: BaseModel | None = None,
        decode: Any = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        super().__init__(
            model=model, args=args, train_dataset=batches, eval_dataset=held_out, callbacks=callbacks
        )
        self.batches = batches
        self.held_out = held_out
        self.base_model = base_model
        self.decode = decode
        self._sums = self._new_sums()
        self._label_tokens = 0  # of all processes, since the last log
        self._logged_at = time.perf_counter()
        self._names: tuple[str, ...] = ()  # examples of the current step on this process

    def get_train_dataloader(self) -> Any:
        """This process's batches. Not accelerate's to split: the plan says whose each one is."""
        args = self.args
        return loader(self.batches, args.process_index, args.world_size, args.dataloader_num_workers)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """The batches of one step, and the label tokens that they hold in all processes together."""
        samples = list(islice(epoch_iterator, num_batches))
        self._names = tuple(name for sample in samples for name in sample["batch"].names)
        count = torch.tensor(sum(sample["batch"].num_labels for sample in samples), device=device)
        num_labels = self.accelerator.reduce(count, "sum") if self.args.world_size > 1 else count
        self._label_tokens += int(num_labels)
        return samples, num_labels

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The batch's share of the step's loss; gradients are averaged over processes, so it is scaled up by
        their number.

        Raises:
            MarsError: the loss is no number; names the batch's examples.
        """
        batch = inputs["batch"].to(self.args.device)
        with self.accelerator.autocast():
            losses = lean_losses(model, batch, self.batches.settings, self.base_model)
        if not bool(torch.isfinite(losses.total)):
            raise MarsError(self._why_not_finite(f"The loss is {losses.total.item()}", batch.names))
        self._sums.add(losses)
        if num_items_in_batch is None:
            return losses.total
        return losses.total * (batch.num_labels * self.args.world_size / num_items_in_batch)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        if not math.isfinite(float(norm)):
            # caught before the optimiser's step, so that no checkpoint ever holds it
            raise MarsError(self._why_not_finite(f"The gradient's norm is {float(norm)}", self._names))
        return norm

    def _why_not_finite(self, what: str, names: tuple[str, ...]) -> str:
        return (
            f"{what} in step {self.state.global_step + 1}, of which nothing was kept, in the batch of "
            f"{', '.join(names)}. Look at these examples; if nothing is wrong with them, lower learning_rate "
            "or take precision fp32, and resume."
        )

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Held-out losses, acceptance by offset, and what `decode` adds."""
        if not self.held_out:
            return {}
        started = time.perf_counter()
        model = self.model_wrapped if self.is_fsdp_enabled else self.model
        assert model is not None
        model.eval()
        args = self.args
        sums = held_out_sums(
            model, self.held_out, args.process_index, args.world_size, args.device, self.accelerator.autocast
        )
        figures = sums.figures(self._summed)
        # a model in parts cannot be run by one process alone
        if self.decode is not None and self.is_world_process_zero() and not self.is_fsdp_enabled:
            figures |= self.decode(model)
        self.accelerator.wait_for_everyone()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._logged_at += time.perf_counter() - started  # no time of training
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With the streams' losses, acceptance and label tokens a second since the last log of training."""
        if "loss" in logs:
            now = time.perf_counter()
            logs |= self._sums.figures(self._summed)
            logs["label_tokens_per_s"] = self._label_tokens / (now - self._logged_at)
            self._sums, self._label_tokens, self._logged_at = self._new_sums(), 0, now
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: transformers' estimate knows one stream."""
        return 0

    def _summed(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(tensor, "sum") if self.args.world_size > 1 else tensor

    def _new_sums(self) -> Sums:
        return Sums(self.batches.settings.block_size, self.args.device)
