"""How far confidence can be trusted: of tokens accepted at about one confidence, how many AR would choose.

"Would choose" is said by one forward over the finished text, one token at a time with everything before
it in sight. A token behind an accepted one is judged given that one, whether or not AR agreed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...evaluate.intervals import Interval, wilson
from ...settings import Metric
from .answers import SweepAnswer

EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)  # of probability and margin
ENTROPY_EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 100.0)  # nats; ln of any vocabulary is less


@dataclass(frozen=True)
class CalibrationBin:
    """Accepted tokens of about one confidence.

    Attributes:
        low, high: the bin; its upper end belongs to the next, but for the last.
        num_tokens, num_agreeing: how many there were, and how many of them AR would have chosen.
        mean_confidence: of the tokens.
        interval: 95 % (Wilson) of the share that agrees.
    """

    low: float
    high: float
    num_tokens: int
    num_agreeing: int
    mean_confidence: float
    interval: Interval

    @property
    def share(self) -> float:
        """How many of them AR would have chosen."""
        return self.num_agreeing / self.num_tokens


def accepted_tokens(answer: SweepAnswer) -> Iterable[tuple[float, bool]]:
    """(confidence, whether AR would have chosen it) of each token committed for its confidence."""
    place = 0
    for window in answer.windows:
        first = place + window.num_verified + 1
        for guess, agrees in zip(
            window.guesses[: window.num_accepted], answer.ar_choices[first:], strict=False
        ):
            yield guess.confidence, agrees
        place += window.num_committed


def calibration(answers: Iterable[SweepAnswer], metric: Metric) -> list[CalibrationBin]:
    """The bins that hold tokens, in order of confidence's figure.

    Args:
        answers: of points of one metric; those of low τ tell most.
    """
    tokens = [token for answer in answers for token in accepted_tokens(answer)]
    edges = ENTROPY_EDGES if metric == "entropy" else EDGES
    bins = ((low, high, _inside(tokens, low, high, high == edges[-1])) for low, high in pairwise(edges))
    return [_bin(low, high, inside) for low, high, inside in bins if inside]


def _inside(
    tokens: Sequence[tuple[float, bool]], low: float, high: float, is_last: bool
) -> list[tuple[float, bool]]:
    return [token for token in tokens if low <= token[0] < high or (is_last and token[0] >= high)]


def _bin(low: float, high: float, tokens: Sequence[tuple[float, bool]]) -> CalibrationBin:
    num_agreeing = sum(agrees for _, agrees in tokens)
    return CalibrationBin(
        low=low,
        high=high,
        num_tokens=len(tokens),
        num_agreeing=num_agreeing,
        mean_confidence=sum(confidence for confidence, _ in tokens) / len(tokens),
        interval=wilson(num_agreeing, len(tokens)),
    )
