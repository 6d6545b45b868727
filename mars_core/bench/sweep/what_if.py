"""What a run would have taken at another τ, estimated from the confidences it logged, at no cost.

The assumption: the text would stay the same. Then decoding at another τ walks over the same tokens with other
strides: where the run opened a window, the predictions of that window which pass say how far the stride goes;
where it opened none, the confidences are those of the window before, and for a token that no window foretold,
the confidence it was written with.

At the run's own τ the walk is the run's own, so the estimate is exact. A run that accepted little opened a
window at nearly every token and is good for every lower τ for as long as the text would not change; one that
accepted much opened few, and for a higher τ the estimate is rougher.

For a verified run a stride also takes what the run itself proved right: the drafts that its next forward
confirmed, and all that it accepted. So above its own τ the estimate is an upper bound: what was accepted may
have been wrong, and would not be confirmed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ...settings import Metric, never_accepts
from .answers import Guess, Window


def what_if(
    runs: Sequence[Sequence[Window]], thresholds: Sequence[float], metric: Metric
) -> list[float] | None:
    """Estimated tok/fwd at each τ; None where the runs opened no windows. See the module's docstring.

    Args:
        runs: one run or several of one setting, each its forwards in order.
        thresholds: values of τ on the metric's scale.
        metric: whose confidences the windows hold.
    """
    walks = [Walk(run) for run in runs if run]
    num_tokens = sum(walk.num_tokens for walk in walks)
    if not num_tokens:
        return None
    return [num_tokens / sum(walk.num_forwards(tau, metric) for walk in walks) for tau in thresholds]


class Walk:
    """One run's text and its windows, to be walked over at any τ.

    Places are numbers of tokens, from 0. Each window stands at the place of its own first token, the AR one.
    """

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = windows
        self.places = [
            end - window.num_own
            for end, window in zip(accumulate(w.num_committed for w in windows), windows, strict=True)
        ]
        self.num_tokens = sum(window.num_committed for window in windows)
        self._most = max(len(window.guesses) for window in windows)
        # a draft ended the answer: that forward has no token of its own to stand at
        self._num_beside = sum(not window.num_own for window in windows)

    def num_forwards(self, threshold: float, metric: Metric) -> int:
        """Forwards from the first token to the last."""
        count, place = self._num_beside, 0
        while place < self.num_tokens:
            place += 1 + self._num_ahead(place, threshold, metric)
            count += 1
        return count

    def _num_ahead(self, place: int, threshold: float, metric: Metric) -> int:
        """Tokens that a forward at this place commits beside its first."""
        number = bisect_right(self.places, place) - 1
        passing = num_passing(self._guesses(place, number), threshold, metric)
        return max(passing, self._num_proven(place, number))

    def _num_proven(self, place: int, number: int) -> int:
        """Tokens behind this place that a verified run's window proved right: up to where the next one is."""
        if not self.windows[number].verify:
            return 0
        following = self.places[number + 1] if number + 1 < len(self.places) else self.num_tokens
        return following - place - 1

    def _guesses(self, place: int, number: int) -> Sequence[Guess]:
        """What a forward at this place would have predicted behind masks; `number` of the window at or before
        it."""
        here = self.windows[number]
        if self.places[number] == place:
            return here.guesses
        known = list(here.guesses[place - self.places[number] :])
        behind = range(place + 1 + len(known), min(place + 1 + self._most, self.num_tokens))
        return known + [self._written(token) for token in behind]

    def _written(self, place: int) -> Guess:
        """The nearest to a prediction of this token from afar: by the window it was written from."""
        number = bisect_right(self.places, place) - 1
        offset = place - self.places[number]
        window = self.windows[number]
        return window.guesses[offset - 1] if 0 < offset <= len(window.guesses) else window.first


def num_passing(guesses: Sequence[Guess], threshold: float, metric: Metric) -> int:
    """How many predictions behind masks are committed at τ: left to right, up to the first that does not pass
    or that ends the answer.

    Example: confidences 0.95, 0.7, 0.99 at τ = 0.9 -> 1.
    """
    if never_accepts(threshold, metric):
        return 0
    for number, guess in enumerate(guesses):
        passes = guess.confidence <= threshold if metric == "entropy" else guess.confidence >= threshold
        if not passes:
            return number
        if guess.ends:
            return number + 1
    return len(guesses)
