"""A sweep as a whole: what was asked, what was answered, and what follows from it. JSON and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...settings import Metric
from .answers import SweepAnswer, Window
from .calibration import CalibrationBin, calibration
from .figures import DEFINITIONS, PointFigures, complete, figures_of
from .grid import GridPoint, SweepPlan
from .what_if import what_if

FORMAT, VERSION = "mars-sweep", 1
_FACTS_IN_CSV = ("model", "device", "dtype", "hardware", "date")


@dataclass(frozen=True)
class SweepResult:
    """All of it, or as much as there is.

    Attributes:
        facts: where it was measured (`bench.facts.facts_of`), plain values.
        plan: the grid.
        prompts: what was asked.
        answers: those finished.
    """

    facts: dict[str, Any]
    plan: SweepPlan
    prompts: tuple[str, ...]
    answers: tuple[SweepAnswer, ...]

    @property
    def finished(self) -> bool:
        """Every point has answered every prompt."""
        return len(self.answers) == len(self.prompts) * len(self.plan.points())

    @property
    def num_complete(self) -> int:
        """Prompts that all points have answered."""
        return len(complete(len(self.plan.points()), self.answers))

    def only_complete(self) -> SweepResult:
        """Without the answers to prompts that not all points have answered."""
        whole = complete(len(self.plan.points()), self.answers)
        kept = tuple(answer for answer in self.answers if answer.prompt in whole)
        return dataclasses.replace(self, answers=kept)

    @cached_property
    def figures(self) -> list[PointFigures]:
        """One row for each point that has answered."""
        return figures_of(self.plan.points(), self.answers)

    def of(self, point: GridPoint) -> list[SweepAnswer]:
        """The answers of one point."""
        number = self.plan.points().index(point)
        return [answer for answer in self.answers if answer.point == number]

    def recorded(self, point: GridPoint) -> list[tuple[Window, ...]]:
        """The windows of its runs."""
        return [answer.windows for answer in self.of(point)]

    def estimable(self) -> list[GridPoint]:
        """Points whose runs a what-if curve can be taken from, best first: unverified ones before verified,
        and surer before looser, for their text is nearest to AR's and they opened most windows."""
        found = [row.point for row in self.figures if any(self.recorded(row.point))]
        return sorted(found, key=lambda point: (point.verify, -_strictness(point)))

    def loosest(self, metric: Metric) -> GridPoint | None:
        """The point whose accepted tokens say most about this metric: the one that accepts at the lowest
        confidence, without verification if there is one."""
        found = [point for point in self.estimable() if point.metric == metric]
        return min(found, key=lambda point: (point.verify, _strictness(point)), default=None)

    def calibration_of(self, point: GridPoint) -> list[CalibrationBin]:
        """How often what one point accepted is what AR would have chosen."""
        return calibration(self.of(point), point.metric)

    def to_json(self) -> dict[str, Any]:
        """Plain values: what was asked, every answer, and the figures that follow from them."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **self.facts,
            "finished": self.finished,
            "num_complete_prompts": self.num_complete,
            "plan": dataclasses.asdict(self.plan),
            "definitions": DEFINITIONS,
            "figures": [dataclasses.asdict(row) for row in self.figures],
            "what_if": [_curve(point, self.recorded(point)) for point in self.estimable()],
            "calibration": [
                {"point": dataclasses.asdict(point), "bins": _bins(self.calibration_of(point))}
                for point in self.estimable()
            ],
            "prompts": list(self.prompts),
            "answers": [_answer(answer) for answer in self.answers],
        }

    def to_csv(self) -> str:
        """A header and a row for each point's figures, each with where they were measured."""
        where: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        where |= {name: self.facts.get(name) for name in _FACTS_IN_CSV}
        where["max_new_tokens"] = self.plan.max_new_tokens
        rows = [where | _flat(dataclasses.asdict(row)) for row in self.figures]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(where | _flat(_COLUMNS)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


# How the fields of a row's figures that are not plain values are spread over columns.
_COLUMNS: dict[str, Any] = {field.name: None for field in dataclasses.fields(PointFigures)}
_PARTS: dict[str, tuple[str, ...]] = {
    "point": tuple(field.name for field in dataclasses.fields(GridPoint)),
    "tokens_per_s": ("median", "first", "third"),
    "speedup": ("median", "first", "third"),
}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """One column for each plain value. Intervals become ``…_low`` and ``…_high``."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_interval"):
            low, high = value or (None, None)
            flat |= {name.replace("interval", "low"): low, name.replace("interval", "high"): high}
        elif name in _PARTS:
            prefix = "" if name == "point" else f"{name}_"
            flat |= {f"{prefix}{part}": (value or {}).get(part) for part in _PARTS[name]}
        else:
            flat[name] = value
    return flat


def _strictness(point: GridPoint) -> float:
    return -point.threshold if point.metric == "entropy" else point.threshold


def _curve(point: GridPoint, runs: list[tuple[Window, ...]]) -> dict[str, Any]:
    thresholds = curve_thresholds(point)
    return {
        "point": dataclasses.asdict(point),
        "thresholds": thresholds,
        "estimated_tokens_per_forward": what_if(runs, thresholds, point.metric),
    }


def curve_thresholds(point: GridPoint) -> list[float]:
    """101 values over the metric's scale: 0 to 1, or 0 to 2 nats; and the point's own τ."""
    high = 2.0 if point.metric == "entropy" else 1.0
    return sorted({*(round(high * step / 100, 4) for step in range(101)), point.threshold})


def _bins(bins: Iterable[CalibrationBin]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(item) | {"share": item.share} for item in bins]


def _answer(answer: SweepAnswer) -> dict[str, Any]:
    """Windows as lists: there are many."""
    windows = [
        [
            int(w.verify),
            w.num_verified,
            w.num_own,
            [[g.confidence, int(g.ends)] for g in (w.first, *w.guesses)],
        ]
        for w in answer.windows
    ]
    fields = {name: getattr(answer, name) for name in (field.name for field in dataclasses.fields(answer))}
    return fields | {"ar_choices": [int(flag) for flag in answer.ar_choices], "windows": windows}
