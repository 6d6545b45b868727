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
from operator import mul

from .costs import ForwardCosts

PROBE_EVERY = 32  # forwards without drafts until one tries again whether they pay by now
_EVERY = 4  # forwards between two choices
_MEMORY = 0.96  # of what was seen, how much still counts when the next is seen
_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 4.0  # hopeful, so that a new row tries what may pay
_WORTH = 1.02  # drafts must promise this much more than none
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

    def seconds(self, length: float) -> float:
        """One row's share of a forward in which every row has a window of this length."""
        return self.costs().of(self.num_rows * length, self.num_cached) / self.num_rows


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
        accepted: of what was predicted behind masks, surer than τ; stays 0 where nothing can be.
    """

    def __init__(self) -> None:
        self.verified = Rates()
        self.accepted = Rates()
        self._plan = ONE_TOKEN
        self._asked: tuple[object, ...] = ()
        self._age = 0
        self._waited = 0

    def plan(self, situation: Situation, num_masks: int, most_drafts: int, accepts: bool) -> Plan:
        """The window that promises most tokens a second.

        Args:
            situation: where.
            num_masks: most masks in a group.
            most_drafts: most drafts verified.
            accepts: predictions may be committed for their confidence alone.
        """
        asked = (num_masks, most_drafts, accepts, situation.num_rows)
        self._age += 1
        if asked != self._asked or self._age >= _EVERY:
            self._asked, self._age = asked, 0
            self._plan = self._best(situation, num_masks, most_drafts, accepts)
        if self._plan != ONE_TOKEN:
            self._waited = 0
            return self._plan
        return self._probe(num_masks, most_drafts)

    def _probe(self, num_masks: int, most_drafts: int) -> Plan:
        """Once in a while masks, and their predictions verified by the next forward."""
        self._waited += 1
        if self._waited < PROBE_EVERY or not most_drafts:
            return ONE_TOKEN
        if self._waited == PROBE_EVERY:
            return Plan(0, min(num_masks, most_drafts), False)
        self._waited = 0
        return Plan(most_drafts, 0, False)

    def _best(self, situation: Situation, num_masks: int, most_drafts: int, accepts: bool) -> Plan:
        verified = self.verified.run(most_drafts)
        accepted = self.accepted.run(num_masks) if accepts else [0.0] * num_masks

        def speed(plan: Plan) -> float:
            return _speed(plan, situation, verified, accepted)

        best = max(_plans(num_masks, most_drafts, accepts), key=speed, default=ONE_TOKEN)
        return best if speed(best) > _WORTH * speed(ONE_TOKEN) else ONE_TOKEN


@lru_cache
def _plans(num_masks: int, most_drafts: int, accepts: bool) -> tuple[Plan, ...]:
    """What there is to choose from; where nothing is accepted, masks whose draft would not be verified are
    for nothing."""
    longest = num_masks if accepts else min(num_masks, most_drafts)
    sizes = [(min(masks, most_drafts), masks) for masks in range(1, longest + 1)]
    return tuple(Plan(drafts, masks, full) for drafts, masks in sizes for full in (True, False))


def _speed(plan: Plan, situation: Situation, verified: list[float], accepted: list[float]) -> float:
    """Tokens a second to expect from forwards of this plan in the long run.

    In the full layout every forward has drafts to verify. In the linear one a forward has them if all
    drafts of the one before were right, or if that one had none: with probability p of all being right, a
    share 1 / (2 − p) of forwards has them.
    """
    gained = sum(accepted[: plan.num_masks])  # committed at once behind masks, and fed again by the next
    drafts = min(plan.num_drafts, max(0.0, plan.num_masks - gained))
    kept = sum(verified[: plan.num_drafts])
    seconds = situation.seconds
    if plan.full:
        return (1 + kept + gained) / seconds(1 + gained + drafts + (drafts + 1) * plan.num_masks)
    all_right = verified[plan.num_drafts - 1] if plan.num_drafts else 1.0
    with_drafts = 1 / (2 - all_right)
    tokens = 1 + with_drafts * (kept + all_right * gained) + (1 - with_drafts) * gained
    bare = 1 + gained + plan.num_masks
    return tokens / (with_drafts * seconds(bare + drafts) + (1 - with_drafts) * seconds(bare))


class LookupPlanner:
    """How many of the tokens that a lookup found are worth verifying."""

    def __init__(self) -> None:
        self.verified = Rates()
        self._waited = 0

    def num_drafts(self, situation: Situation, most: int, num_masks: int) -> int:
        """The number that promises most tokens a second; once in a while all, lest bad rates stay bad.

        Args:
            situation: where.
            most: tokens that were found.
            num_masks: masks fed behind them.
        """
        kept = [0.0, *accumulate(self.verified.run(most))]

        def speed(drafts: int) -> float:
            return (1 + kept[drafts]) / situation.seconds(1 + drafts + num_masks)

        best = max(range(most + 1), key=speed)
        self._waited = 0 if best else self._waited + 1
        return most if self._waited and self._waited % PROBE_EVERY == 0 else best
