"""What happens beside training: a bar, a log, an orderly end."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

LOG_FILE = "log.jsonl"


class Bar(ProgressCallback):
    """A bar with steps, time left, losses and label tokens a second; a line for each evaluation."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            # from where an earlier part of the run ended, so that the time left is right
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="Training",
                unit="step",
                dynamic_ncols=True,
            )
        self.current_step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        if "loss" in logs:
            shown = [f"{name} {logs[name]:.3f}" for name in ("noisy", "clean") if name in logs]
            shown.append(f"{logs['label_tokens_per_s']:.0f} tok/s")
            self.training_bar.set_postfix_str(", ".join(shown))
        elif any(name.startswith("eval_") for name in logs):
            self.training_bar.write(evaluation_line(state.global_step, logs), file=sys.stderr)


def evaluation_line(step: int, figures: dict[str, float]) -> str:
    """One line for people: ``step 40: noisy 3.512, clean 0.662, accept 0.41 0.22 0.13``."""
    parts = [
        f"{name} {figures[f'eval_{name}']:.3f}" for name in ("noisy", "clean") if f"eval_{name}" in figures
    ]
    shares = [f"{value:.2f}" for name, value in figures.items() if name.startswith("eval_accept_")]
    parts += [f"accept {' '.join(shares)}"] if shares else []
    names = {"eval_tok_fwd": "tok/fwd", "eval_tok_fwd_verify": "tok/fwd verified"}
    parts += [f"{shown} {figures[name]:.2f}" for name, shown in names.items() if name in figures]
    return f"step {step}: {', '.join(parts)}"


class LogFile(TrainerCallback):
    """Every figure as a line of JSON; a run that goes on from a checkpoint takes back what came after it."""

    def __init__(self, path: Path, epochs: float) -> None:
        self.path = path
        self.epochs = epochs  # of the whole run, which transformers takes for one

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not self.path.exists():
            return
        kept = [
            line for line in self.path.read_text("utf-8").splitlines() if _step(line) <= state.global_step
        ]
        self.path.write_text("".join(f"{line}\n" for line in kept), "utf-8")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs:
            epoch = (state.epoch or 0) * self.epochs
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs, "epoch": epoch}) + "\n")


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # half a line: it goes


class StopWhenAsked(TrainerCallback):
    """The first Ctrl-C (or SIGTERM) ends the run behind the step under way, with a checkpoint; the second at
    once.

    For a run of one process: several would have to agree on the step.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopWhenAsked:
        # signals are the main thread's
        here = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if here else ():
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, self._before[number])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self.asked:
            control.should_save = control.should_training_stop = True
        return control
