"""Shares of right answers with their intervals. Needs no optional package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import MarsError
from .answers import Generation
from .intervals import Interval, ratio_interval, wilson

Outcomes = tuple[bool, ...]  # of one example's checks


@dataclass(frozen=True)
class Figure:
    """A metric of a task: the share of checks that were passed.

    Attributes:
        metric: lm-eval's name of it, with that of the filter where there are several.
        outcomes: of each example its checks; most metrics have one an example.
    """

    metric: str
    outcomes: tuple[Outcomes, ...]

    @property
    def num_checks(self) -> int:
        """Of all examples."""
        return sum(map(len, self.outcomes))

    @property
    def value(self) -> float:
        """Share passed."""
        return sum(map(sum, self.outcomes)) / self.num_checks

    @property
    def one_check_each(self) -> bool:
        """Then checks are independent of one another."""
        return all(len(of_one) == 1 for of_one in self.outcomes)

    def interval(self) -> Interval:
        """95 %: Wilson's; where an example has several checks, bootstrap over examples."""
        if self.one_check_each:
            return wilson(sum(map(sum, self.outcomes)), self.num_checks)
        return ratio_interval([sum(of_one) for of_one in self.outcomes], list(map(len, self.outcomes)))

    def difference(self, base: Figure) -> tuple[float, Interval]:
        """This value less the base's, with 95 %: paired bootstrap over examples.

        Raises:
            MarsError: they are not of the same examples.
        """
        lengths = [len(of_one) for of_one in self.outcomes]
        if lengths != [len(of_one) for of_one in base.outcomes] or self.metric != base.metric:
            raise MarsError(f"{self.metric}: the two models were not asked the same; run both again.")
        pairs = zip(self.outcomes, base.outcomes, strict=True)
        gains = [sum(ours) - sum(theirs) for ours, theirs in pairs]
        return self.value - base.value, ratio_interval(gains, lengths)


@dataclass(frozen=True)
class TaskFigures:
    """What a task found of a model under one way of decoding."""

    task: str
    num_examples: int
    figures: Sequence[Figure]
    generation: Generation
