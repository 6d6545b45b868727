"""Which run a directory holds, and from where it can go on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from ..errors import MarsError
from .arguments import FREE, TrainSettings
from .data import TrainingData
from .processes import is_main_process, num_processes

RECORD_FILE = "train.json"


def last_checkpoint(out: Path) -> Path | None:
    """The newest checkpoint that was written whole. (A run may have been killed while it wrote.)"""
    whole = [path for path in out.glob("checkpoint-*") if _is_whole(path)]
    return max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)


def _is_whole(checkpoint: Path) -> bool:
    """transformers (5.24) writes its state last."""
    try:
        TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        return checkpoint.name.split("-")[1].isdecimal()
    except (OSError, ValueError, TypeError, IndexError):
        return False


def checkpoint_to_resume(out: Path, settings: TrainSettings) -> Path | None:
    """The checkpoint to go on from; None for a run that begins.

    Raises:
        MarsError: there is a run already, and it is not to be resumed.
    """
    if out.exists() and not out.is_dir():
        raise MarsError(f"{out} is a file. Give a directory for the result.")
    checkpoint = last_checkpoint(out)
    if settings.resume:
        return checkpoint
    if is_main_process() and (out / RECORD_FILE).exists():  # the others might see what it writes by now
        raise MarsError(
            f"{out} holds a run already. Pass --resume to go on with it, or give another directory."
        )
    return None


def keep_record(out: Path, settings: TrainSettings, data: TrainingData, resumed: bool) -> None:
    """Note what the run is, or check that it is the one that goes on.

    Raises:
        MarsError: with what differs; the run would be another one from there on.
    """
    if not is_main_process():
        return
    names = [(e.name, e.input_ids, e.loss_mask) for part in (data.train, data.held_out) for e in part]
    record = dataclasses.asdict(settings) | {
        "processes": num_processes(),
        "data_digest": hashlib.sha256(repr(names).encode()).hexdigest(),
    }
    path = out / RECORD_FILE
    if resumed and path.exists():
        before = json.loads(path.read_text("utf-8"))
        now = json.loads(json.dumps(record))
        differing = [name for name in now if name not in FREE and now[name] != before.get(name)]
        if differing == ["data_digest"]:
            raise MarsError(f"The run in {out} cannot go on: its data files have changed since it began.")
        if differing := [name for name in differing if name != "data_digest"]:
            were = ", ".join(repr(before.get(name)) for name in differing)
            raise MarsError(
                f"The run in {out} cannot go on with another {', '.join(differing)} (it was {were}). Give "
                "the same, or start anew in another directory."
            )
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
