"""The tasks there are, and what is chosen of them. Needs no optional package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import MarsError

DEFINITIONS = Path(__file__).parent / "tasks"
TASKS = tuple(sorted(path.stem for path in DEFINITIONS.glob("*.yaml")))


@dataclass(frozen=True)
class Selection:
    """Which examples, and how long answers may be.

    Attributes:
        data_dir: where the tasks' files are.
        limit: only the first so many examples, of whatever is measured.
        max_new_tokens: of an answer, in place of the task's own limit.
    """

    data_dir: Path
    limit: int | None = None
    max_new_tokens: int | None = None


def task_names(text: str) -> tuple[str, ...]:
    """The names in a list with commas. Raises `MarsError` for one that there is no task of.

    Example: ``ifeval,gsm8k`` -> ("ifeval", "gsm8k").
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names:
        raise MarsError(f"--tasks is {text!r}; the tasks are {', '.join(TASKS)}.")
    return names


def definition(name: str) -> dict[str, Any]:
    """What a task's YAML file says."""
    content: dict[str, Any] = yaml.safe_load((DEFINITIONS / f"{name}.yaml").read_text("utf-8"))
    return content


def data_file(name: str, data_dir: Path) -> Path:
    """The file that a task reads. Raises `MarsError` where it is missing."""
    path = data_dir / definition(name)["file"]
    if not path.is_file():
        raise MarsError(f"There is no file {path} for the task {name}. Give its directory with --data-dir.")
    return path
