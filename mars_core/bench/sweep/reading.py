"""A saved sweep read back: what is damaged is refused in plain words."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from ...errors import MarsError
from ...events import FinishReason
from .answers import Guess, SweepAnswer, Window
from .grid import SweepPlan
from .result import FORMAT, VERSION, SweepResult

MAX_BYTES = 500_000_000
_REASONS = get_args(FinishReason)
_DAMAGE = (KeyError, TypeError, ValueError, OverflowError, RecursionError, MarsError)
# what follows from the rest, and is computed anew
_DERIVED: tuple[str, ...] = (
    "format",
    "version",
    "finished",
    "num_complete_prompts",
    "definitions",
    "figures",
    "what_if",
)
_DERIVED += ("calibration", "plan", "prompts", "answers")
_Value = TypeVar("_Value")


def load_sweep(path: Path) -> SweepResult:
    """Read a file that ``--json`` wrote.

    Raises:
        MarsError: it cannot be read, is no such file, of another version, or damaged.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise MarsError(f"{path} has more than {MAX_BYTES >> 20} MB; a saved sweep has not.")
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise MarsError(f"{path} cannot be read ({error}).") from error
    except (ValueError, RecursionError) as error:
        raise MarsError(f"{path} is not JSON: {error}.") from error
    return sweep_from_json(data)


def sweep_from_json(data: Any) -> SweepResult:
    """The inverse of `SweepResult.to_json`. Figures in the file are not read but computed anew.

    Raises:
        MarsError: another format or version, or damage.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise MarsError("This file is not a saved sweep.")
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        raise MarsError(f"This sweep has version {version!r:.60}; this program reads version {VERSION}.")
    try:
        plan = _plan(data["plan"])
        prompts = _tuple("prompts", data["prompts"], _text)
        answers = _tuple("answers", data["answers"], _answer)
        facts = {name: value for name, value in data.items() if name not in _DERIVED}
        json.dumps(facts, allow_nan=False)
        _check_places(answers, len(plan.points()), len(prompts))
        return SweepResult(facts, plan, prompts, answers)
    except _DAMAGE as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise MarsError(f"This sweep is damaged: {missing:.300}") from error


def _plan(data: Any) -> SweepPlan:
    names = {field.name for field in dataclasses.fields(SweepPlan)}
    if not isinstance(data, dict) or set(data) != names:
        raise ValueError(f"its plan has not the fields {', '.join(sorted(names))}")
    lists = ("block_sizes", "thresholds", "metrics", "entropy_thresholds")
    if not all(isinstance(data[name], list) for name in lists):
        raise ValueError(f"{', '.join(lists)} of its plan are not all lists")
    return SweepPlan(**data | {name: tuple(data[name]) for name in lists})


def _check_places(answers: Sequence[SweepAnswer], num_points: int, num_prompts: int) -> None:
    places = {(answer.point, answer.prompt) for answer in answers}
    if len(places) < len(answers):
        raise ValueError("a point answers a prompt twice")
    for point, prompt in places:
        if point >= num_points or prompt >= num_prompts:
            raise ValueError(f"an answer is of point {point} and prompt {prompt}, which are not there")


def _answer(data: Any) -> SweepAnswer:
    answer = SweepAnswer(
        point=_count(data["point"]),
        prompt=_count(data["prompt"]),
        ids=_tuple("ids", data["ids"], _count),
        text=_text(data["text"]),
        num_forwards=_count(data["num_forwards"]),
        finish_reason=data["finish_reason"],
        decode_tokens=_count(data["decode_tokens"]),
        decode_s=_figure(data["decode_s"]),
        num_shared=_count(data["num_shared"]),
        log_likelihood=_figure(data["log_likelihood"]),
        ar_choices=_tuple("ar_choices", data["ar_choices"], _flag),
        windows=_tuple("windows", data["windows"], _window),
    )
    if answer.finish_reason not in _REASONS:
        raise ValueError(f"an answer ended for {answer.finish_reason!r:.60}")
    if not answer.ids or not answer.num_forwards or len(answer.ids) != len(answer.ar_choices):
        raise ValueError("an answer's tokens, forwards and choices do not go together")
    return answer


def _window(data: Any) -> Window:
    verify, num_verified, num_own, predictions = data
    first, *guesses = _tuple("predictions", predictions, _guess)
    return Window(_flag(verify), _count(num_verified), _count(num_own), first, tuple(guesses))


def _guess(data: Any) -> Guess:
    confidence, ends = data
    return Guess(_figure(confidence), _flag(ends))


def _tuple(name: str, data: Any, of: Callable[[Any], _Value]) -> tuple[_Value, ...]:
    if not isinstance(data, list):
        raise ValueError(f"{name} is {data!r:.60}, not a list")
    return tuple(of(item) for item in data)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r:.60} is no whole number from 0")
    return value


def _flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value!r:.60} is neither 0 nor 1")
    return bool(value)


def _figure(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.60} is no finite number")
    return float(value)
