"""A training run from its settings to its result: data, plan, model, trainer, export."""

from __future__ import annotations

import importlib.util
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import ProgressCallback, TrainingArguments, set_seed
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils import logging as transformers_logging

from ..loaded import LoadedModel
from .arguments import TrainSettings
from .batches import Batches, Plan, costs_of, make_plan
from .callbacks import LOG_FILE, Bar, LogFile, StopWhenAsked
from .data import TrainingData, load_data, prompt_ids
from .evaluation import tokens_per_forward
from .export import finish, save_merged
from .inside import base_of_adapter
from .losses import ObjectiveSettings
from .model import load_for_training, trainable, use_bfloat16
from .processes import is_main_process, num_processes
from .record import checkpoint_to_resume, keep_record
from .trainer import MarsTrainer

SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}


def train(settings: TrainSettings) -> dict[str, Any]:
    """Train, evaluate, and write what came out to ``settings.out``.

    Returns:
        what the run did: counts of the data, steps, the last figures, whether it was ended before its time.

    Raises:
        MarsError: something given cannot work, or the loss is no number any more.
    """
    out = Path(settings.out).expanduser()
    checkpoint = checkpoint_to_resume(out, settings)
    if not is_main_process():  # once is enough
        logging.getLogger("mars_core").setLevel(logging.ERROR)
    loaded = load_for_training(settings)
    assert loaded.tokenizer is not None
    objective = settings.objective_settings(loaded.mask_token_id)
    data = load_data(settings.data_settings(), loaded.tokenizer, loaded.stop_token_ids)
    plan = _plan(settings, data, objective)
    set_seed(settings.seed)
    model = trainable(loaded, settings)
    keep_record(out, settings, data, resumed=checkpoint is not None)
    _say_what_comes(loaded, data, plan, checkpoint)
    stop = StopWhenAsked()
    trainer = _trainer(settings, loaded, model, data, plan, objective, stop, checkpoint is not None)
    with stop if num_processes() == 1 else nullcontext(), _no_other_bars():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        result = {"data": data.counts, "steps": trainer.state.global_step, "epochs": plan.epochs}
        if trainer.state.global_step < plan.num_steps:
            return result | {"ended_early": True}
        result |= _last_figures(trainer)
        _export(trainer, loaded, objective, settings, out)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return result | {"ended_early": False}


@contextmanager
def _no_other_bars() -> Iterator[None]:
    """transformers shows one for each file that it writes."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _last_figures(trainer: MarsTrainer) -> dict[str, float]:
    """Those of the evaluation at the last step, which may have been made already."""
    last = next((entry for entry in reversed(trainer.state.log_history) if "eval_clean" in entry), {})
    if last.get("step") != trainer.state.global_step:
        last = trainer.evaluate()
    return {name: value for name, value in last.items() if name.startswith("eval_")}


def _plan(settings: TrainSettings, data: TrainingData, objective: ObjectiveSettings) -> Plan:
    return make_plan(
        costs_of(data.train, objective),
        budget=settings.batch_tokens,
        seed=settings.seed,
        epochs=settings.epochs,
        max_steps=settings.max_steps,
        batches_per_step=settings.accumulate * num_processes(),
    )


def _trainer(
    settings: TrainSettings,
    loaded: LoadedModel,
    model: Any,
    data: TrainingData,
    plan: Plan,
    objective: ObjectiveSettings,
    stop: StopWhenAsked,
    resumed: bool,
) -> MarsTrainer:
    held_out = make_plan(
        costs_of(data.held_out, objective),
        budget=settings.batch_tokens, seed=0, epochs=1, max_steps=None, batches_per_step=1,
    ).batches if data.held_out else ()  # fmt: skip
    prompts = [prompt_ids(example) for example in data.held_out[: settings.eval_decode]]

    def decode(model: Any) -> dict[str, float]:
        return tokens_per_forward(loaded, model, prompts, settings.eval_threshold, settings.eval_new_tokens)

    trainer = MarsTrainer(
        model,
        _arguments(settings, plan, evaluate=bool(held_out and settings.eval_every), resumed=resumed),
        Batches(plan.batches, data.train, objective, settings.seed, plan.batches_per_step),
        Batches(held_out, data.held_out, objective, seed=0),
        base_model=base_of_adapter(model) if settings.base_kl_weight else None,
        decode=decode if prompts else None,
        callbacks=[stop, LogFile(Path(settings.out).expanduser() / LOG_FILE, plan.epochs)],
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Bar())
    return trainer


def _arguments(settings: TrainSettings, plan: Plan, evaluate: bool, resumed: bool) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(Path(settings.out).expanduser()),
        # the plan is all epochs in one list, so that its place in it is all that a run must know to go on
        num_train_epochs=1,
        max_steps=plan.num_steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.peak_learning_rate,
        lr_scheduler_type=SCHEDULES[settings.schedule],
        warmup_steps=math.ceil(settings.warmup * plan.num_steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optim="adamw_torch",
        bf16=use_bfloat16(settings),
        activation_checkpointing=settings.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=settings.device == "cpu",
        seed=settings.seed,
        dataloader_num_workers=settings.workers,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if evaluate else "no",
        eval_on_start=evaluate and not resumed,  # what there was before is what all else is compared with
        eval_steps=settings.eval_every or None,
        save_strategy="steps",
        save_steps=settings.save_every,
        save_total_limit=settings.keep,
        report_to=["tensorboard"] if _has_tensorboard() else [],
    )
    if arguments.n_gpu > 1:
        # one process would otherwise split each batch over the GPUs, which knows nothing of documents
        print("note: one of several GPUs is used; for all, start with accelerate launch.", file=sys.stderr)
        arguments._n_gpu = 1
    return arguments


def _has_tensorboard() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


def _export(
    trainer: MarsTrainer,
    loaded: LoadedModel,
    objective: ObjectiveSettings,
    settings: TrainSettings,
    out: Path,
) -> None:
    trainer.save_model(str(out))  # all processes take part, where the model is in parts; the first writes
    if trainer.is_world_process_zero():
        (out / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle; train.json says more
        finish(out, loaded, objective, settings.save_dtype)
        if settings.merge:
            _export_merged(trainer, loaded, objective, out)
    trainer.accelerator.wait_for_everyone()


def _export_merged(
    trainer: MarsTrainer, loaded: LoadedModel, objective: ObjectiveSettings, out: Path
) -> None:
    if trainer.is_fsdp_enabled:
        notice = "a model in parts is not merged here: load_model merges the adapter, on one device"
        print(f"note: {notice}.", file=sys.stderr)
        return
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    assert isinstance(model, PeftModel)
    save_merged(model, out / "merged", loaded, objective)


def _say_what_comes(loaded: LoadedModel, data: TrainingData, plan: Plan, checkpoint: Path | None) -> None:
    if not is_main_process():
        return
    counts = ", ".join(f"{number} {what}" for what, number in data.counts.items() if number)
    mask = loaded.origins["mask_token_id"]
    steps = f"{plan.num_steps} steps of {plan.batches_per_step} batches, {plan.epochs:.2f} epochs"
    board = "with" if _has_tensorboard() else "without (pip install tensorboard)"
    lines = [
        f"{loaded.name}, mask token {mask}",
        counts,
        f"{steps}, {board} TensorBoard",
    ]
    if checkpoint is not None:
        lines.append(f"going on from {checkpoint}")
    print("\n".join(lines), file=sys.stderr)
