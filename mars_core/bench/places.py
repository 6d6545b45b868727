"""How often a prediction held, by its place in the window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..events import StepEvent
from ..settings import never_accepts


@dataclass
class Places:
    """Counts by place, from 1.

    Attributes:
        drafts_fed: drafts at place j that a forward was fed to verify.
        drafts_verified: those among them that were verified, which takes that all before them were.
        predicted: predictions at offset k ≥ 2 that stood up for acceptance at τ.
        accepted: those among them that were accepted, which takes that all before them were.
    """

    drafts_fed: Counter[int] = field(default_factory=Counter)
    drafts_verified: Counter[int] = field(default_factory=Counter)
    predicted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def add(self, event: StepEvent) -> None:
        """Count one forward. What nobody looked at because the answer ended before it does not count."""
        decided = [choice.decided for choice in event.committed]
        if not decided:
            return
        num_verified, num_accepted = decided.count("verified"), decided.count("accepted")
        ended_inside_drafts = event.finish_reason is not None and decided[-1] == "verified"
        num_fed = num_verified if ended_inside_drafts else event.num_drafts
        self.drafts_fed.update(range(1, num_fed + 1))
        self.drafts_verified.update(range(1, num_verified + 1))
        if never_accepts(event.threshold, event.metric):
            return
        cut = event.finish_reason not in (None, "length")
        num_predicted = num_accepted + (0 if cut else len(event.candidates))
        self.predicted.update(range(2, num_predicted + 2))
        self.accepted.update(range(2, num_accepted + 2))

    def merge(self, others: Iterable[Places]) -> Places:
        """The sum of this and others."""
        total = Places()
        for places in (self, *others):
            total.drafts_fed.update(places.drafts_fed)
            total.drafts_verified.update(places.drafts_verified)
            total.predicted.update(places.predicted)
            total.accepted.update(places.accepted)
        return total


@dataclass(frozen=True)
class PlaceShare:
    """How often the prediction at a place held."""

    place: int
    tried: int
    held: int
    share: float


def shares(tried: Counter[int], held: Counter[int]) -> list[PlaceShare]:
    """One for each place that was ever tried, in order."""
    return [
        PlaceShare(place, tried[place], held[place], held[place] / tried[place]) for place in sorted(tried)
    ]
