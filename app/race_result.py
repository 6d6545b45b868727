"""What a race showed: who was faster and why, and how far the answers agree. Pure functions of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mars_core import DecodeSettings, StepEvent
from mars_core.events import statistics
from mars_core.settings import never_accepts

from .lanes import lane_names

MIN_FORWARDS = 4  # behind the prompt; a speed over fewer says nothing
_ENDED = ("eos", "stop", "length")


@dataclass(frozen=True)
class LaneRun:
    """One lane of a race, as it was run.

    Attributes:
        settings: what it started with.
        num_prompt: prompt tokens.
        events: one a forward.
    """

    settings: DecodeSettings
    num_prompt: int
    events: tuple[StepEvent, ...]

    @property
    def token_ids(self) -> list[int]:
        """The answer's tokens, the one that ended it included."""
        return [choice.id for event in self.events for choice in event.committed]

    @property
    def ended(self) -> bool:
        """The answer came to its own end, or to the limit on tokens: it was not stopped and did not fail."""
        return bool(self.events) and self.events[-1].finish_reason in _ENDED

    @property
    def error(self) -> str | None:
        """Why it failed, in a sentence; None where it did not."""
        return self.events[-1].error if self.events else None

    @property
    def decode_events(self) -> list[StepEvent]:
        """Forwards behind the prompt."""
        return [event for event in self.events if event.committed and not event.prefill]


@dataclass(frozen=True)
class Pace:
    """A lane's speed behind the prompt, on its own clock.

    Attributes:
        tokens_per_s: tokens / seconds in forwards.
        seconds_per_forward: what a forward took in the mean.
        tokens_per_forward: what a forward committed in the mean.
        num_tokens: what the lane committed in this time.
    """

    tokens_per_s: float
    seconds_per_forward: float
    tokens_per_forward: float
    num_tokens: int


def pace(run: LaneRun) -> Pace | None:
    """None where the lane had too few forwards to tell."""
    events, figures = run.decode_events, statistics(run.events)
    if len(events) < MIN_FORWARDS or figures.decode_s <= 0:
        return None
    num_tokens = sum(len(event.committed) for event in events)
    return Pace(
        tokens_per_s=figures.tokens_per_s,
        seconds_per_forward=figures.decode_s / len(events),
        tokens_per_forward=num_tokens / len(events),
        num_tokens=num_tokens,
    )


@dataclass(frozen=True)
class Agreement:
    """How two answers agree, position by position.

    Attributes:
        num_compared: positions of the longer answer; where either was stopped or failed, of the shorter, for
            nobody knows what it would have said.
        num_same: positions before the first difference; all where there is none.
        num_equal: positions where both have the same token.
    """

    num_compared: int
    num_same: int
    num_equal: int

    @property
    def first_difference(self) -> int | None:
        """The position, from 0; None where the answers do not part."""
        return self.num_same if self.num_same < self.num_compared else None


def agreement(first: Sequence[int], second: Sequence[int], *, ended: bool = True) -> Agreement:
    """Compare two answers by their tokens.

    Args:
        first, second: token ids.
        ended: both came to their own end, so that one being shorter is a difference.
    """
    lengths = len(first), len(second)
    equal = [a == b for a, b in zip(first, second, strict=False)]
    num_compared = max(lengths) if ended else min(lengths)
    return Agreement(num_compared, equal.index(False) if False in equal else len(equal), sum(equal))


def cell_of_token(events: Sequence[StepEvent], position: int) -> int:
    """Which cell of the token view shows the answer's token at `position`; of those of a character in several
    tokens, the cell of the character.

    Example: tokens ``a``, half of é, other half: cells 0, 1, 1.
    """
    tokens = [choice for event in events for choice in event.committed]
    return sum(bool(choice.text) or choice.special for choice in tokens[:position])


def clocks(events: Sequence[StepEvent]) -> tuple[list[float], list[int]]:
    """The lane's clock, and the tokens it had, behind each forward that committed any; the clock stands at 0
    until the prompt is read."""
    times: list[float] = []
    counts: list[int] = []
    clock, count = 0.0, 0
    for event in events:
        clock += 0.0 if event.prefill else event.seconds
        count += len(event.committed)
        if event.committed:
            times.append(round(clock, 5))
            counts.append(count)
    return times, counts


def reference_first(runs: Sequence[LaneRun]) -> tuple[int, int]:
    """The numbers of the lane that is compared with, and of the other: the AR lane where there is one, else
    the left one."""
    return (1, 0) if runs[1].settings.mode == "ar" != runs[0].settings.mode else (0, 1)


def names_of(runs: Sequence[LaneRun]) -> list[str]:
    """The lanes' names."""
    return lane_names([run.settings for run in runs])


def headline(runs: Sequence[LaneRun]) -> str:
    """Who was faster, by how much: the ratio of decode speeds on the lanes' own clocks."""
    reference, other = reference_first(runs)
    names, paces = names_of(runs), [pace(run) for run in runs]
    base, compared = paces[reference], paces[other]
    if base is None or compared is None:
        return "Too short to tell a speed: a lane needs a few forwards behind its prompt."
    ratio = compared.tokens_per_s / base.tokens_per_s
    if f"{ratio:.2f}" == "1.00":
        return f"{names[other]} and {names[reference]} were equally fast"
    return f"{names[other]} was {ratio:.2f}× as fast as {names[reference]}"


def measured(runs: Sequence[LaneRun]) -> str:
    """The figures behind the headline; empty where there is none."""
    reference, other = reference_first(runs)
    names, paces = names_of(runs), [pace(run) for run in runs]
    if not all(paces):
        return ""
    parts = [
        f"{names[number]} {figures.tokens_per_s:.1f} tok/s over {_tokens(figures.num_tokens)}"
        for number in (other, reference)
        if (figures := paces[number])
    ]
    clock = "each on the clock of its own forwards, without the prompt and the tokens that came with it"
    return f"{', '.join(parts)}; n = 1 run, {clock}."


def why(runs: Sequence[LaneRun]) -> str:
    """Tokens a forward × cost of a forward, in a sentence; empty where it cannot be told."""
    reference, other = reference_first(runs)
    names, base, compared = names_of(runs), pace(runs[reference]), pace(runs[other])
    if base is None or compared is None:
        return ""
    cost = compared.seconds_per_forward / base.seconds_per_forward
    ratio = compared.tokens_per_s / base.tokens_per_s
    tokens = f"{compared.tokens_per_forward:.2f} tokens"
    if base.tokens_per_forward > 1:
        tokens += f" against {base.tokens_per_forward:.2f}"
    return (
        f"{_windows(runs[other])} took {cost:.2f}× {_one_of(names[reference])} and committed {tokens}, "
        f"so it was {ratio:.2f}× as fast."
    )


def _windows(run: LaneRun) -> str:
    """The lane's forwards, as the subject of a sentence that says what one cost."""
    lengths = [event.window_length for event in run.decode_events]
    mean = sum(lengths) / len(lengths)
    return f"A forward of this window ({mean:.1f} positions in the mean)" if mean > 1 else "A forward"


def _one_of(name: str) -> str:
    return f"an {name} forward" if name.startswith("AR") else f"a forward of {name}"


def is_exact(run: LaneRun) -> bool:
    """The lane was greedy and committed no token for its confidence: its text is AR's but for rounding."""
    if run.settings.temperature:
        return False
    return run.settings.mode == "ar" or all(
        never_accepts(event.threshold, event.metric) for event in run.events
    )


def was_turned(run: LaneRun) -> bool:
    """τ or B changed while the lane ran; AR has neither."""
    dials = {(event.threshold, event.block_size) for event in run.events if event.committed}
    return run.settings.mode != "ar" and len(dials) > 1


def agreement_words(found: Agreement, name: str) -> str:
    """Agreement with the lane of this name, in a sentence or two."""
    if not found.num_compared:
        return "There is no text to compare."
    if found.first_difference is None:
        return f"Agreement with {name}: 100 %, all of {_tokens(found.num_compared)} are the same."
    percent = _percent(found.num_same, found.num_compared)
    equal = _percent(found.num_equal, found.num_compared)
    return (
        f"Agreement with {name}: the first {found.num_same} of {_tokens(found.num_compared)} are the same "
        f"({percent}), and at {found.num_equal} positions ({equal}) both have the same token. Behind the "
        "first difference each goes on from a text of its own, so what is equal there may be so by chance."
    )


def _percent(count: int, total: int) -> str:
    """Never 100 % unless it is all."""
    share = min(100 * count / total, 99.9) if count < total else 100.0
    return f"{share:.1f} %".replace(".0 %", " %")


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count != 1)}"
