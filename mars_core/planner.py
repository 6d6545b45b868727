"""How many drafts a forward should verify and make: what pays, from costs measured and drafts seen kept.

Every choice here is about speed. With verification at τ = 1 and greedy decoding none changes the text. In
any other mode it may, so there choices follow from the row's own history and from costs that are the same
everywhere: the same request gives the same text, whatever the machine and whoever else is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter, mul

from .costs import ForwardCosts

PROBE_EVERY = 32  # forwards without drafts until one tries again whether they pay by now, at least
_PROBE_SHARE = 0.01  # of the time, what trying again may cost
_EVERY = 4  # forwards between two choices
_MEMORY = 0.94  # of what was seen, how much still counts when the next is seen
_FADED = 0.3  # and when it was last tried that long ago
_DRIFT = 0.02  # how far a place that is not tried goes back to be thought as good as the one before it
_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 2.5  # hopeful, so that a new row tries what may pay
_WORTH = 1.02  # drafts must promise this much more than none
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # of groups of masks that are weighed, beside the largest
# What the measured ones are like while a forward is bound by reading the weights: 4 % a position.
NOMINAL_COSTS = ForwardCosts(lengths=(1, 26), contexts=(1,), seconds=((1.0, 2.0),))


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a choice is made.

    Attributes:
        costs: of forwards on this device; asked only where something is to be weighed.
        num_cached: positions in the row's cache.
        num_rows: rows that share the forward; each adds as much as this one to its cost.
    """

    costs: Callable[[], ForwardCosts]
    num_cached: int
    num_rows: int

    def seconds(self) -> Callable[[float], float]:
        """One row's share of a forward, by the length of window that every row has in it."""
        costs, num_rows = self.costs(), self.num_rows
        line = costs.line(self.num_cached)
        return lambda length: line(num_rows * length) / num_rows


@dataclass(frozen=True, slots=True)
class Plan:
    """What a forward's window is made of.

    Attributes:
        num_drafts: most drafts verified.
        num_masks: masks in a group.
        full: a group after every draft, not only after the last.
    """

    num_drafts: int
    num_masks: int
    full: bool


ONE_TOKEN = Plan(0, 0, False)


class Rates:
    """How often the guess at each place was right, those before it being right; recent ones count more."""

    def __init__(self) -> None:
        self._right: list[float] = []
        self._tried: list[float] = []

    def learn(self, num_right: int, num_tried: int) -> None:
        """The first `num_right` of so many guesses were right and the next, if there was one, wrong."""
        for place in range(min(num_right + 1, num_tried)):
            if place == len(self._tried):
                self._right.append(_PRIOR_RATE * _PRIOR_WEIGHT)
                self._tried.append(_PRIOR_WEIGHT)
            self._right[place] = _MEMORY * self._right[place] + (place < num_right)
            self._tried[place] = _MEMORY * self._tried[place] + 1
        if num_tried:
            # or what was bad once would never be tried again
            for place in range(num_tried, len(self._tried)):
                as_before = self[place - 1] * self._tried[place]
                self._right[place] += _DRIFT * (as_before - self._right[place])

    def fade(self) -> None:
        """What was seen so far is old: what is seen next says more."""
        self._right = [_FADED * right for right in self._right]
        self._tried = [_FADED * tried for tried in self._tried]

    def __getitem__(self, place: int) -> float:
        """The rate at this place; what was never tried is taken to go on as the last that was."""
        if not self._tried:
            return _PRIOR_RATE
        place = min(place, len(self._tried) - 1)
        return self._right[place] / self._tried[place]

    def run(self, length: int) -> list[float]:
        """For each place below `length`: how likely all up to it are right."""
        return list(accumulate((self[place] for place in range(length)), mul))


class Planner:
    """One row's choice, made anew every few forwards.

    Attributes:
        verified: of drafts, by place.
        accepted: of what was predicted behind masks, surer than τ.
    """

    def __init__(self) -> None:
        self.verified = Rates()
        self.accepted = Rates()
        self._plan = ONE_TOKEN
        self._asked: tuple[object, ...] = ()
        self._age = 0
        self._tried = False
        self._waited = PROBE_EVERY - 1  # a new row tries at once
        self._to_verify = 0  # drafts that the forward before was made to try

    def plan(self, situation: Situation, num_masks: int, most_drafts: int, accepts: bool) -> Plan:
        """The window that promises most tokens a second.

        Args:
            situation: where.
            num_masks: most masks in a group.
            most_drafts: most drafts verified.
            accepts: predictions may be committed for their confidence alone.
        """
        plans = _plans(num_masks, most_drafts, accepts)
        if not plans:
            return ONE_TOKEN
        asked = (num_masks, most_drafts, accepts, situation.num_rows)
        self._age += 1
        if asked != self._asked or self._age >= _EVERY:
            self._asked, self._age = asked, 0
            accepted = self.accepted.run(num_masks) if accepts else [0.0] * num_masks
            self._plan = _best(plans, situation, self.verified.run(most_drafts), accepted)
        if self._plan == ONE_TOKEN:
            return self._probe(plans, situation, most_drafts, accepts)
        self._waited, self._to_verify, self._tried = 0, 0, True
        return self._plan

    def promise(self, situation: Situation, num_drafts: int, num_masks: int) -> float:
        """Tokens a second to expect of one forward with so many drafts, and masks in all its groups."""
        kept = sum(self.verified.run(num_drafts))
        return (1 + kept) / situation.seconds()(1 + num_drafts + num_masks)

    def _probe(self, plans: tuple[Plan, ...], situation: Situation, most_drafts: int, accepts: bool) -> Plan:
        """Once in a while masks, and their predictions verified by the next forward."""
        if self._to_verify:
            drafts, self._to_verify = min(self._to_verify, most_drafts), 0
            return Plan(drafts, 0, False)
        self._waited += 1
        if self._waited % PROBE_EVERY:
            return ONE_TOKEN
        seconds = situation.seconds()
        hope = _least(plans, seconds, most_drafts, accepts)
        extra = seconds(1 + hope.num_masks) + seconds(1 + hope.num_drafts) - 2 * seconds(1)
        if hope == ONE_TOKEN or (self._tried and extra > _PROBE_SHARE * self._waited * seconds(1)):
            return ONE_TOKEN
        self._waited, self._to_verify, self._tried = 0, hope.num_drafts, True
        self.verified.fade()
        self.accepted.fade()
        return Plan(0, hope.num_masks, False)


def _least(
    plans: tuple[Plan, ...], seconds: Callable[[float], float], most_drafts: int, accepts: bool
) -> Plan:
    """The smallest plan that would pay if every guess were right."""
    right = [1.0] * most_drafts, [float(accepts)] * plans[-1].num_masks
    pays = (plan for plan in plans if _speed(plan, seconds, *right) * seconds(1) > _WORTH)
    return next(pays, ONE_TOKEN)


def _best(
    plans: tuple[Plan, ...], situation: Situation, verified: list[float], accepted: list[float]
) -> Plan:
    """The plan that promises most, if that is worth while."""
    seconds = situation.seconds()
    promises = [(_speed(plan, seconds, verified, accepted), plan) for plan in plans]
    speed, plan = max(promises, key=itemgetter(0))
    return plan if speed * seconds(1) > _WORTH else ONE_TOKEN


@lru_cache
def _plans(num_masks: int, most_drafts: int, accepts: bool) -> tuple[Plan, ...]:
    """What there is to choose from; where nothing is accepted, masks whose draft would not be verified are
    for nothing."""
    longest = num_masks if accepts else min(num_masks, most_drafts)
    sizes = [size for size in _SIZES if size < longest] + [longest] * (longest > 0)
    return tuple(Plan(min(size, most_drafts), size, full) for size in sizes for full in (True, False))


def _speed(
    plan: Plan, seconds: Callable[[float], float], verified: list[float], accepted: list[float]
) -> float:
    """Tokens a second to expect from forwards of this plan in the long run.

    Of the predictions behind masks so many are accepted, committed at once and fed again by the next forward,
    and the rest are its drafts. In the full layout that is so after every forward. In the linear one a
    forward has no masks behind a wrong draft, and the next nothing to verify, so it has them again: with
    probability p of all drafts being right, a share 1 / (2 − p) of forwards has them.
    """
    reached = [1.0, *accepted[: plan.num_masks], 0.0]  # how likely so many are accepted, or more
    left = [1 - reached[plan.num_masks - place] for place in range(plan.num_drafts)]
    gained, drafts = sum(reached) - 1, sum(left)
    kept = sum(map(mul, left, verified))
    if plan.full:
        return (1 + kept + gained) / seconds(1 + gained + drafts + (drafts + 1) * plan.num_masks)
    all_right = sum(
        (reached[num] - reached[num + 1]) * right
        for num, right in enumerate(_all_right(plan, verified))
        if right
    )
    share = 1 / (2 - all_right)
    bare = 1 + plan.num_masks
    return (1 + share * (kept + gained)) / (
        share * seconds(bare + gained + drafts) + (1 - share) * seconds(bare)
    )


def _all_right(plan: Plan, verified: list[float]) -> list[float]:
    """For each number of predictions that were accepted: how likely all of the drafts left are right."""
    left = (min(plan.num_drafts, plan.num_masks - num) for num in range(plan.num_masks + 1))
    return [verified[drafts - 1] if drafts else 1.0 for drafts in left]


class LookupPlanner:
    """How many of the tokens that a lookup found are worth verifying."""

    def __init__(self) -> None:
        self.verified = Rates()
        self._tried = False
        self._waited = PROBE_EVERY - 1

    def num_drafts(self, situation: Situation, most: int, num_masks: int, instead: float) -> int:
        """The number that promises most tokens a second; once in a while some, lest bad rates stay bad.

        Args:
            situation: where.
            most: tokens that were found.
            num_masks: masks fed behind them.
            instead: tokens a second that the forward promises without them.
        """
        seconds = situation.seconds()

        def best(kept: list[float]) -> int:
            promises = [(1 + sum(kept[:num])) / seconds(1 + num + num_masks) for num in range(1, most + 1)]
            promise = max(promises, default=0.0)
            return promises.index(promise) + 1 if promise > _WORTH * instead else 0

        num = best(self.verified.run(most))
        if num:
            self._waited, self._tried = 0, True
            return num
        self._waited += 1
        hope = 0 if self._waited % PROBE_EVERY else best([1.0] * most)
        plain = seconds(1 + num_masks)
        extra = seconds(1 + hope + num_masks) - plain
        if not hope or (self._tried and extra > _PROBE_SHARE * self._waited * plain):
            return 0
        self._waited, self._tried = 0, True
        self.verified.fade()
        return hope
