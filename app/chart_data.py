"""Events of a run -> the numbers that its charts draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mars_core.events import StepEvent
from mars_core.settings import Metric

MOST_POINTS = 400  # a lane; more would be more than one a pixel
NUM_BINS = 20
ENTROPY_BIN = 0.1  # nats, at least


@dataclass(frozen=True)
class Progress:
    """A lane on its own clock.

    Attributes:
        seconds: compute time after each forward behind the prompt, from 0 before the first of them.
        tokens: tokens committed by then, those of the prompt's own forward among them.
    """

    seconds: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, events: Iterable[StepEvent]) -> Progress:
        """From a lane's events; its length is one more than there were decode forwards."""
        first, seconds, counts = 0, [0.0], [0]
        for event in events:
            if event.prefill:
                first += len(event.committed)
            elif event.window_length:  # what ends a run between two forwards takes no time
                seconds.append(event.seconds)
                counts.append(len(event.committed))
        return cls(np.cumsum(seconds), first + np.cumsum(counts))

    @property
    def num_forwards(self) -> int:
        """Forwards after the prompt."""
        return len(self.seconds) - 1

    @property
    def end_s(self) -> float:
        """Compute time at the end."""
        return float(self.seconds[-1])

    @property
    def mean(self) -> float:
        """Tokens per second after the prompt; 0 where no time passed."""
        return float(self.tokens[-1] - self.tokens[0]) / self.end_s if self.end_s > 0 else 0.0

    def rate(self, times: np.ndarray, window_s: float) -> np.ndarray:
        """Tokens per second over the `window_s` before each of `times`; a forward's tokens are spread over
        the time it took."""
        at = np.interp(times, self.seconds, self.tokens)
        before = np.interp(times - window_s, self.seconds, self.tokens)
        return (at - before) / window_s

    def thinned(self) -> Progress:
        """At most about `MOST_POINTS` of its points, the last among them."""
        step = math.ceil(len(self.seconds) / MOST_POINTS)
        kept = np.append(np.arange(0, len(self.seconds) - 1, step), len(self.seconds) - 1)
        return Progress(self.seconds[kept], self.tokens[kept])


def window_of(lanes: Iterable[Progress]) -> float:
    """Seconds that speed is averaged over: a fifteenth of the longest lane, and four forwards of the slowest
    at least, up to the next 1, 2 or 5. 0 where no lane has two forwards."""
    long = [lane for lane in lanes if lane.num_forwards > 1 and lane.end_s > 0]
    if not long:
        return 0.0
    least = max(max(lane.end_s / 15, 4 * lane.end_s / lane.num_forwards) for lane in long)
    unit = 10.0 ** math.floor(math.log10(least))
    return next(unit * step for step in (1, 2, 5, 10) if unit * step >= least * (1 - 1e-9))


def drafts_by_place(forwards: Sequence[StepEvent]) -> tuple[Counter[int], Counter[int]]:
    """How many k-th drafts were fed, and how many of them were verified. Drafts behind the end of a text do
    not count."""
    fed: Counter[int] = Counter()
    verified: Counter[int] = Counter()
    for event in forwards:
        num_fed = min(event.num_drafts, len(event.committed)) if event.finish_reason else event.num_drafts
        fed.update(range(1, num_fed + 1))
        verified.update(range(1, 1 + sum(choice.decided == "verified" for choice in event.committed)))
    return fed, verified


def predictions_by_fate(events: Sequence[StepEvent], metric: Metric) -> dict[str, list[float]]:
    """Confidences of what was predicted behind masks, by what became of it."""
    accepted: list[float] = []
    verified: list[float] = []
    rest: list[float] = []
    for event, following in zip(events, [*events[1:], None], strict=True):
        if event.metric != metric:
            continue
        accepted += [c.confidence(metric) for c in event.committed if c.decided == "accepted"]
        num_verified = _num_verified_next(event, following)
        confidences = [choice.confidence(metric) for choice in event.candidates]
        verified += confidences[:num_verified]
        rest += confidences[num_verified:]
    return {"committed at once": accepted, "verified by the next forward": verified, "not committed": rest}


def _num_verified_next(event: StepEvent, following: StepEvent | None) -> int:
    """How many of this forward's candidates, from the first on, the next one verified: by their ids, as
    drafts may have come from elsewhere."""
    drafts = [] if following is None else [c.id for c in following.committed if c.decided == "verified"]
    number = 0
    for candidate, draft in zip(event.candidates, drafts, strict=False):
        if candidate.id != draft:
            break
        number += 1
    return number


def bin_edges(values: Sequence[float], entropy: bool) -> np.ndarray:
    """Ends of the bins: 0 to 1, or 0 to the largest entropy."""
    if not entropy:
        return np.linspace(0, 1, NUM_BINS + 1)
    width = max(ENTROPY_BIN, math.ceil(max(values) / NUM_BINS / ENTROPY_BIN) * ENTROPY_BIN)
    return np.arange(NUM_BINS + 1) * width
