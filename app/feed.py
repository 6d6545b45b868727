"""Events -> deltas: what the token view, the live chart and the live figures are sent.

One `Feed` is made per run. The caller pushes every event and takes a message about 20 times a second:

    {"run": "9f…", "seq": 3, "reset": False, "from": 40, "events": [...], "ghosts": [...],
     "waiting": [...], "figures": {...}, "done": None}

`events[k]` is event number `from + k` of the run. A message repeats what the message before it carried,
so that a client that missed one (a browser may merge updates) misses nothing; the client skips the event
numbers it has. The first message and the last carry everything from event 0 (`reset`), so that a client
that lost more than that repairs itself at the end. Between them the size of a message depends on how many
forwards ran since the last, not on how long the answer is.

A compact event ("—" = key left out when it has its usual value):

    i   number of the forward, of those that commit (a prompt in pieces counts once)
    n   tokens it committed
    t   τ in force, None where the mode knows no τ
    m   metric: p, m or e (first letter)   b   most tokens a forward can commit: B, or 2B − 1 with drafts
    w   window length                   ms  milliseconds
    c   cells (— none)                  p   1: a prefill forward (—)
    v   how many of its tokens were drafts that it verified (— without verification)

A cell is what is drawn as one: usually one token, or the several tokens that make one character.

    x   text                            l   label (— equals the text)
    i   id                              o   place of its last token in the forward, from 1
    d   how decided (— "ar")            s   1: special, adds no text (—)
    r   1: drawn at random (—)          p   probability        h   entropy, nats
    c   confidence (— equals p)         a   alternatives [[label, probability], …] (—)
    q   the tokens before the last that are part of its character [[id, label, forward], …] (—)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from mars_core.events import FinishReason, Statistics, StatisticsCounter, StepEvent, TokenChoice
from mars_core.settings import Metric, one_token_mode

Message = dict[str, Any]
UPDATE_INTERVAL_S = 0.05


class Feed:
    """Collects the events of one run and hands out what the page has not been sent yet.

    Not thread-safe: the generator that listens to the engine both pushes and takes.

    Attributes:
        run: an id that no other run has.
        speedup: measured speed-up against one-token mode; None (the default) hides the figure. The page
            sets it when, and only when, it was measured for this model and device.
        note: the honesty line: device, dtype, attention kernel, model, B, what the clock covers.
    """

    def __init__(self, num_prompt_tokens: int, note: str = "") -> None:
        self.run = uuid.uuid4().hex[:12]
        self.note = note
        self.speedup: float | None = None
        self._counter = StatisticsCounter(num_prompt_tokens)
        self._cells = _CellBuilder()
        self._events: list[dict[str, Any]] = []
        self._answer: list[str] = []
        self._newest: StepEvent | None = None
        self._seq = 0
        self._sent = self._sent_before = 0
        self._num_forwards = 0
        self._error: str | None = None

    def push(self, event: StepEvent) -> None:
        """Add what one forward did."""
        self._counter.add(event)
        cells = self._cells.add(event, self._num_forwards)
        self._events.append(_compact_event(event, cells, self._num_forwards))
        self._num_forwards += bool(event.committed)
        self._answer.append(event.text)
        self._newest = event
        self._error = event.error or self._error

    def take(self) -> Message | None:
        """Everything since the last take; None when nothing is new. The first take is never None: it
        clears the view of the run before."""
        if self._seq and self._sent == len(self._events):
            return None
        message = self._message(self._sent_before)
        self._sent_before, self._sent = self._sent, len(self._events)
        return message

    def snapshot(self) -> Message:
        """The whole state so far, for a view that starts in the middle (replay, a page opened late)."""
        return self._message(0)

    def final(self) -> Message:
        """The last message: the whole state, and how the run ended."""
        message = self._message(0)
        message["ghosts"] = []
        message["done"] = self._done()
        return message

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._answer)

    @property
    def ending(self) -> str:
        """How the run ended, in a sentence or two."""
        return _ending(self._counter.read(), self._error)

    def _message(self, start: int) -> Message:
        message: Message = {
            "run": self.run,
            "seq": self._seq,
            "reset": start == 0,
            "from": start,
            "events": self._events[start:],
            "ghosts": self._ghosts(),
            "waiting": self._cells.waiting(),
            "figures": self._figures(),
            "done": None,
        }
        self._seq += 1
        return message

    def _ghosts(self) -> list[dict[str, Any]]:
        newest = self._newest
        if newest is None or newest.finish_reason is not None:
            return []
        return [_token(choice, newest.metric) for choice in newest.candidates]

    def _figures(self) -> dict[str, Any]:
        read = self._counter.read()
        figures: dict[str, Any] = {
            "num_prompt_tokens": read.num_prompt_tokens,
            "num_prefilled": 0,
            "num_tokens": read.num_tokens,
            "num_forwards": read.num_forwards,
            "tokens_per_forward": round(read.tokens_per_forward, 3),
            "tokens_per_s": round(read.tokens_per_s, 2),
            "time_to_first_token_s": _rounded(read.time_to_first_token_s),
            "prefill_s": round(read.prefill_s, 4),
            "decode_s": round(read.decode_s, 4),
            "finish_reason": read.finish_reason,
            "threshold": None,
            "metric": None,
            "block_size": None,
            "most_tokens": None,
            "speedup": self.speedup,
            "note": self.note,
        }
        if self._newest is not None:
            figures.update(_in_force(self._newest, read))
        return figures

    def _done(self) -> dict[str, Any]:
        """How the run ended, and what makes the cells' text equal to the answer.

        They part where a run ends inside a held-back stop string (cells say more than the answer) or
        inside a character (they say less): `length` UTF-16 units of the cells are right, `tail` follows.
        """
        statistics = self._counter.read()
        answer, cells = self.text, "".join(self._cells.text)
        num_same = _common_prefix(answer, cells)
        return {
            "reason": statistics.finish_reason,
            "message": _ending(statistics, self._error),
            "length": _utf16_length(answer[:num_same]),
            "tail": answer[num_same:],
        }


def messages(
    events: Iterable[StepEvent], feed: Feed, interval_s: float = UPDATE_INTERVAL_S
) -> Iterator[Message]:
    """Run `events` through `feed`: the reset at once, then at most one message an interval, then the
    final one."""
    first = feed.take()
    assert first is not None  # it clears the view of the run before
    yield first
    due = time.monotonic() + interval_s
    for event in events:
        feed.push(event)
        if time.monotonic() >= due:
            if message := feed.take():
                yield message
            due = time.monotonic() + interval_s
    yield feed.final()


class _CellBuilder:
    """Tokens -> cells; holds the tokens of a character that is not complete."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._pieces: list[tuple[int, str, int]] = []

    def add(self, event: StepEvent, forward: int) -> list[dict[str, Any]]:
        """The cells that this event, of this number, completed."""
        cells = []
        for place, choice in enumerate(event.committed, start=1):
            if not choice.text and not choice.special:
                self._pieces.append((choice.id, choice.label, forward))
                continue
            cell = {"x": choice.text, "o": place, **_token(choice, event.metric)}
            if choice.special:
                cell["s"] = 1
            elif self._pieces:
                cell["q"] = [list(piece) for piece in self._pieces]
                self._pieces = []
            self.text.append(choice.text)
            cells.append(cell)
        return cells

    def waiting(self) -> list[str]:
        """Labels of the tokens whose character is not complete."""
        return [label for _, label, _ in self._pieces]


def _compact_event(event: StepEvent, cells: list[dict[str, Any]], number: int) -> dict[str, Any]:
    compact: dict[str, Any] = {
        "i": number,
        "n": len(event.committed),
        "t": threshold_in_force(event),
        "m": event.metric[0],
        "b": _most_tokens(event),
        "w": event.window_length,
        "ms": round(event.seconds * 1000, 1),
    }
    if event.prefill:
        compact["p"] = 1
    if event.verify:
        compact["v"] = sum(choice.decided == "verified" for choice in event.committed)
    if cells:
        compact["c"] = cells
    return compact


def _token(choice: TokenChoice, metric: Metric) -> dict[str, Any]:
    probability = round(choice.probability, 4)
    confidence = round(choice.confidence(metric), 4)
    token: dict[str, Any] = {"i": choice.id, "p": probability, "h": round(choice.entropy, 3)}
    if choice.label != choice.text:
        token["l"] = choice.label
    if choice.decided != "ar":
        token["d"] = choice.decided
    if choice.sampled:
        token["r"] = 1
    if confidence != probability:
        token["c"] = confidence
    if choice.alternatives:
        token["a"] = [[best.label, round(best.probability, 4)] for best in choice.alternatives]
    return token


def threshold_in_force(event: StepEvent) -> float | None:
    """τ, or None in AR mode: a forward without masks that τ does not explain compares with no τ."""
    if event.one_token and not one_token_mode("mars", event.threshold, event.metric, event.verify):
        return None
    return round(event.threshold, 4)


def _most_tokens(event: StepEvent) -> int:
    """The most tokens a forward can commit: B, and with verification as many drafts before them."""
    return 2 * event.block_size - 1 if event.verify else event.block_size


def _in_force(event: StepEvent, read: Statistics) -> dict[str, Any]:
    still_reading = event.prefill and not event.committed
    num_fed = event.num_cached + event.window_length if still_reading else read.num_prompt_tokens
    return {
        "num_prefilled": min(num_fed, read.num_prompt_tokens),
        "threshold": threshold_in_force(event),
        "metric": event.metric,
        "block_size": event.block_size,
        "most_tokens": _most_tokens(event),
    }


def _ending(read: Statistics, error: str | None) -> str:
    """One plain sentence or two, for the end of the view and for screen readers."""
    tokens = f"{read.num_tokens} token{'s' * (read.num_tokens != 1)}"
    count = f"{tokens} in {read.num_forwards} forward{'s' * (read.num_forwards != 1)}"
    sentences: dict[FinishReason | None, str] = {
        "eos": f"Answer finished: {count}.",
        "stop": f"Answer finished at a stop text: {count}.",
        "length": f"Answer cut at the limit on tokens: {count}.",
        "error": error or "The model failed; the answer ends here.",
    }
    return sentences.get(read.finish_reason, f"Stopped. {count[0].upper()}{count[1:]}.")


def _common_prefix(first: str, second: str) -> int:
    shorter = min(len(first), len(second))
    for i in range(shorter):
        if first[i] != second[i]:
            return i
    return shorter


def _utf16_length(text: str) -> int:
    """Length as JavaScript counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
