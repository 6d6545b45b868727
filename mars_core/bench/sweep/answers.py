"""What is kept of each answer of a sweep: all its figures, the what-if curve and the calibration follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...events import FinishReason, StatisticsCounter, StepEvent
from ...settings import Metric


class Guess(NamedTuple):
    """A prediction.

    Attributes:
        confidence: what τ is compared with.
        ends: it is a control token, behind which nothing would be committed.
    """

    confidence: float
    ends: bool


@dataclass(frozen=True, slots=True)
class Window:
    """What one forward that committed tokens predicted.

    Attributes:
        verify: what it did not commit became drafts.
        num_verified: drafts of the forward before that it confirmed.
        num_own: what else it committed: the AR prediction and what it accepted behind masks. 0 where a
            draft ended the answer.
        first: the AR prediction; the last draft where there is none.
        guesses: its predictions behind masks, in order, those accepted first. What nobody looked at, the
            answer having ended before it, is not among them.
    """

    verify: bool
    num_verified: int
    num_own: int
    first: Guess
    guesses: tuple[Guess, ...]

    @property
    def num_committed(self) -> int:
        """Tokens."""
        return self.num_verified + self.num_own

    @property
    def num_accepted(self) -> int:
        """Predictions behind masks that were committed for their confidence."""
        return max(0, self.num_own - 1)


def window_of(event: StepEvent, metric: Metric | None = None) -> Window | None:
    """What the forward says to a τ that it did not have; None where it committed nothing, and where it
    carried no masks by its own setting (AR, τ at its exact end).

    Args:
        metric: whose confidence is kept; the forward's own if None.
    """
    if event.one_token or not event.committed:
        return None
    num_verified = sum(choice.decided == "verified" for choice in event.committed)
    accepted = event.committed[num_verified + 1 :]
    ended_before_the_rest = event.finish_reason in ("eos", "stop")
    seen = accepted if ended_before_the_rest else (*accepted, *event.candidates)
    chosen = metric or event.metric
    first = event.committed[min(num_verified, len(event.committed) - 1)]
    return Window(
        verify=event.verify,
        num_verified=num_verified,
        num_own=len(event.committed) - num_verified,
        first=Guess(first.confidence(chosen), first.special),
        guesses=tuple(Guess(choice.confidence(chosen), choice.special) for choice in seen),
    )


def windows_of(events: Iterable[StepEvent], metric: Metric | None = None) -> tuple[Window, ...]:
    """Of a whole run; see `window_of`."""
    found = (window_of(event, metric) for event in events)
    return tuple(window for window in found if window is not None)


@dataclass(frozen=True)
class SweepAnswer:
    """One prompt answered at one point of the grid.

    Attributes:
        point, prompt: their numbers, from 0.
        ids: all committed tokens, the end-of-sequence token included.
        text: without what ended it.
        num_forwards: forwards that committed tokens, the prefill being one.
        finish_reason: why it ended.
        decode_tokens, decode_s: of the decode forwards that served this answer alone; with other visitors
            in it a forward takes longer, and would say nothing of the setting.
        num_shared: decode forwards that were shared.
        log_likelihood: Σ ln p of its tokens under the model one token at a time, in nats.
        ar_choices: for each token, whether AR would have chosen it behind the same text.
        windows: its forwards' predictions behind masks.
    """

    point: int
    prompt: int
    ids: tuple[int, ...]
    text: str
    num_forwards: int
    finish_reason: FinishReason
    decode_tokens: int
    decode_s: float
    num_shared: int
    log_likelihood: float
    ar_choices: tuple[bool, ...]
    windows: tuple[Window, ...]

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed; None where no decode forward served it alone."""
        return self.decode_tokens / self.decode_s if self.decode_tokens and self.decode_s > 0 else None


@dataclass
class Recording:
    """An answer on its way."""

    ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    decode_tokens: int = 0
    decode_s: float = 0.0
    num_shared: int = 0
    finish_reason: FinishReason | None = None
    counter: StatisticsCounter = field(default_factory=lambda: StatisticsCounter(0))

    def add(self, event: StepEvent) -> None:
        """Count one forward."""
        self.counter.add(event)
        self.ids += [choice.id for choice in event.committed]
        self.pieces.append(event.text)
        self.windows += windows_of([event])
        self.finish_reason = event.finish_reason
        if event.prefill:
            return
        if event.num_rows == 1:
            self.decode_tokens += len(event.committed)
            self.decode_s += event.seconds
        else:
            self.num_shared += 1

    def answer(
        self, point: int, prompt: int, log_probabilities: Sequence[float], ar_choices: Sequence[bool]
    ) -> SweepAnswer:
        """The whole of it, once it has ended and been scored."""
        assert self.finish_reason is not None
        return SweepAnswer(
            point=point,
            prompt=prompt,
            ids=tuple(self.ids),
            text="".join(self.pieces),
            num_forwards=self.counter.num_forwards,
            finish_reason=self.finish_reason,
            decode_tokens=self.decode_tokens,
            decode_s=self.decode_s,
            num_shared=self.num_shared,
            log_likelihood=sum(log_probabilities),
            ar_choices=tuple(ar_choices),
            windows=tuple(self.windows),
        )
