"""Which settings a sweep compares, validated in one place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ...costs import ForwardCosts
from ...errors import MarsError
from ...settings import METRICS, DecodeSettings, Metric, Mode, one_token_mode

Verify = Literal["off", "on", "both"]
VERIFY: tuple[Verify, ...] = get_args(Verify)
MAX_POINTS = 500
THRESHOLDS = (0.5, 0.7, 0.9, 1.0)
ENTROPY_THRESHOLDS = (0.0, 0.2, 0.5, 1.0)
_NATS = {"entropy": " nats"}


@dataclass(frozen=True, order=True)
class GridPoint:
    """One way of decoding; two that are equal decode alike.

    Attributes:
        mode: `ar` for the reference, whose other fields mean nothing.
        metric, block_size, verify, threshold: as in `DecodeSettings`.
    """

    mode: Mode
    metric: Metric
    block_size: int
    verify: bool
    threshold: float

    @property
    def is_ar(self) -> bool:
        return self.mode == "ar"

    @property
    def name(self) -> str:
        """For people. Example: ``τ 0.9, B 4, verify``."""
        if self.is_ar:
            return "AR (one token a forward)"
        metric = "" if self.metric == "probability" else f" {self.metric}"
        return f"τ {self.threshold:.16g}{_NATS.get(self.metric, '')}{metric}, B {self.block_size}" + (
            ", verify" if self.verify else ""
        )

    def settings(self, max_new_tokens: int) -> DecodeSettings:
        """Greedy, and without the alternatives that nothing here looks at."""
        return DecodeSettings(
            mode=self.mode,
            threshold=self.threshold,
            metric=self.metric,
            block_size=self.block_size,
            verify=self.verify,
            max_new_tokens=max_new_tokens,
            num_alternatives=0,
        )


AR = GridPoint("ar", "probability", 1, False, 1.0)


@dataclass(frozen=True)
class SweepPlan:
    """A grid, and how long the answers are.

    Attributes:
        block_sizes: B.
        thresholds: τ on probability and margin.
        metrics: what τ is compared with.
        entropy_thresholds: τ on entropy, in nats; used if `metrics` names it.
        verify: `off`, `on` or `both`.
        max_new_tokens: the most tokens of an answer.
        seed: of the order in which the points answer a prompt.

    Raises:
        MarsError: an empty list, a value that decoding does not take, or too many points.
    """

    block_sizes: Sequence[int]
    thresholds: Sequence[float] = THRESHOLDS
    metrics: Sequence[Metric] = ("probability",)
    entropy_thresholds: Sequence[float] = ENTROPY_THRESHOLDS
    verify: Verify = "both"
    max_new_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.verify not in VERIFY:
            raise MarsError(f"verify is {self.verify!r}; allowed are {', '.join(VERIFY)}.")
        self._check_size()
        for metric in self.metrics:
            if metric not in METRICS:
                raise MarsError(f"metric is {metric!r}; allowed are {', '.join(METRICS)}.")
        for name in ("block_sizes", "metrics"):
            if not getattr(self, name):
                raise MarsError(f"{name} is empty; give one at least.")
        for metric in self.metrics:
            _check_thresholds(metric, self.thresholds_of(metric))
        AR.settings(self.max_new_tokens)
        for point in self.points():
            point.settings(self.max_new_tokens)

    def _check_size(self) -> None:
        """Before anything is counted one by one: a list may be as long as whoever wrote it wished."""
        num_values = sum(len(self.thresholds_of(metric)) for metric in self.metrics)
        num_points = 1 + num_values * len(self.block_sizes) * (2 if self.verify == "both" else 1)
        if num_points > MAX_POINTS:
            raise MarsError(f"The grid has {num_points} points; allowed are {MAX_POINTS}. Give fewer values.")

    def thresholds_of(self, metric: Metric) -> Sequence[float]:
        """The values of τ on this metric's own scale."""
        return self.entropy_thresholds if metric == "entropy" else self.thresholds

    def points(self) -> tuple[GridPoint, ...]:
        """AR first, then the grid. What decodes as AR does (τ at its exact end without verification) is left
        out: AR stands for it."""
        return tuple(dict.fromkeys((AR, *self._grid())))

    def _grid(self) -> Iterator[GridPoint]:
        wanted = {"off": (False,), "on": (True,), "both": (False, True)}[self.verify]
        for metric in self.metrics:
            for verify in wanted:
                for block_size in self.block_sizes:
                    for threshold in sorted(self.thresholds_of(metric)):
                        if not one_token_mode("mars", threshold, metric, verify):
                            yield GridPoint("mars", metric, block_size, verify, float(threshold))


def _check_thresholds(metric: Metric, values: Sequence[Any]) -> None:
    high, allowed = (math.inf, "0 or more, in nats") if metric == "entropy" else (1, "from 0 to 1")
    if not values:
        raise MarsError(f"There is no threshold for {metric}; give one at least.")
    for value in values:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not 0 <= value <= high:
            raise MarsError(f"thresholds of {metric} hold {value!r}; allowed are numbers {allowed}.")


@dataclass(frozen=True)
class Workload:
    """How much a sweep has to do at most.

    Attributes:
        num_answers: prompts times points.
        num_tokens: if every answer is as long as it may be.
        seconds: if, moreover, no forward commits more than one token; None where costs are not known.
    """

    num_answers: int
    num_tokens: int
    seconds: float | None

    @classmethod
    def of(cls, plan: SweepPlan, num_prompts: int, costs: ForwardCosts | None) -> Workload:
        """Of a plan, before it is run."""
        points = plan.points()
        num_tokens = num_prompts * plan.max_new_tokens * len(points)
        seconds = None
        if costs is not None:
            of_one_prompt = plan.max_new_tokens * sum(costs.of(_width(point)) for point in points)
            scoring = len(points) * costs.of(plan.max_new_tokens)
            seconds = num_prompts * (of_one_prompt + scoring)
        return cls(num_prompts * len(points), num_tokens, seconds)


def _width(point: GridPoint) -> int:
    """Positions of a forward that commits one token; with verification the planner feeds about as many."""
    return 1 if point.is_ar else point.block_size


@dataclass(frozen=True)
class SweepPrompt:
    """A prompt, and where it stands, for messages.

    Attributes:
        text: what the user asks.
        ids: ready for the answer.
    """

    text: str
    ids: Sequence[int] = field(repr=False)
