"""The two answers of a branch side by side, as messages for their lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mars_core import Engine, StepEvent, TokenChoice, Trace
from mars_core.events import Statistics, StatisticsCounter

from .chat import explain
from .feed import Feed, Message
from .notices import warn
from .replay_branch import Branch, Continuation
from .replay_steps import day, how_decoded

_ENDINGS = {"eos": "Branch finished", "stop": "Branch finished at a stop text", "length": "Branch cut"}


class Lanes:
    """The recorded answer, and the branch as it is written.

    Attributes:
        feed: of the branch; starts with the recording's part of it.
        parts_at: number of the first token where the two differ, as far as both go; None while they agree.
    """

    def __init__(self, trace: Trace, branch: Branch, engine: Engine) -> None:
        self._branch, self._name = branch, engine.loaded.name
        self._title = f"Original, recorded {day(trace.recorded)}"
        read = trace.statistics()
        self._recorded_as = f"{how_decoded(trace)} · {_count(read)}, {read.tokens_per_forward:.2f} tok/fwd"
        self._recorded = [choice for event in trace.events for choice in event.committed]
        self._original = _whole(trace)
        self._counter = StatisticsCounter(len(branch.prompt_ids))
        self._continuation = Continuation(branch, engine.vocabulary, engine.loaded.stop_token_ids)
        self.feed = Feed(len(trace.prompt_ids))
        self.parts_at: int | None = None
        self._committed: list[TokenChoice] = []
        for event in self._continuation.recorded():
            self.feed.push(event)
            self._compare(event)

    def follow(self, events: Iterator[StepEvent]) -> Iterator[StepEvent]:
        """The engine's events as part of the whole answer; a failure of the model as the last of them."""
        last: StepEvent | None = None
        try:
            for event in events:
                self._counter.add(event)
                last = self._continuation.continued(event)
                self._compare(last)
                yield last
        except Exception as error:  # whatever happened, the page must come back to rest
            sentence = explain(error)
            warn(sentence)
            live = self._branch.settings.live_values()
            yield StepEvent.without_forward(last, live, "error", error=sentence)

    def _compare(self, event: StepEvent) -> None:
        for choice in event.committed:
            place = len(self._committed)
            self._committed.append(choice)
            if self.parts_at is None and place < len(self._recorded):
                self.parts_at = None if self._recorded[place].id == choice.id else place

    def original(self) -> Message:
        """The recorded answer, whole."""
        return self._original | {"lane": self._lane(self._title, self._recorded_as)}

    def written(self, message: Message) -> Message:
        """A message of `feed`, as the branch's lane takes it."""
        if message["done"] and message["done"]["reason"] != "error":
            message["done"]["message"] = self._ending()
        num_shared = len(self._branch.answer_ids)
        if self.parts_at is not None:  # the token that was chosen is not the recording's
            num_shared = min(num_shared, self.parts_at)
        start = _shared(num_shared)
        return message | {"lane": self._lane(f"Branch, written now by {self._name}", self._note(start))}

    def _lane(self, title: str, note: str) -> dict[str, Any]:
        return {"title": title, "mark": self.parts_at, "note": note}

    def _note(self, start: str) -> str:
        if self.parts_at is None:
            return f"{start}; {'so far ' if not self._counter.finish_reason else ''}it says the same."
        here, there = self._committed[self.parts_at].label, self._recorded[self.parts_at].label
        return f"{start}; the two part at token {self.parts_at + 1}: {here!r} in place of {there!r}."

    def _ending(self) -> str:
        """What the branch itself took; the recording's part of it was computed at another time."""
        read = self._counter.read()
        how = _ENDINGS.get(read.finish_reason or "", "Branch stopped")
        speed = f", {read.tokens_per_s:.1f} tok/s" if read.tokens_per_s else ""
        return f"{how}: {_count(read, 'new ')}, {read.tokens_per_forward:.2f} tok/fwd{speed}."


def _shared(num_tokens: int) -> str:
    if not num_tokens:
        return "From the start"
    first = "first token is" if num_tokens == 1 else f"first {num_tokens} tokens are"
    return f"The {first} the recording's"


def _count(read: Statistics, which: str = "") -> str:
    tokens = f"{read.num_tokens} {which}token{'s' * (read.num_tokens != 1)}"
    return f"{tokens} in {read.num_forwards} forward{'s' * (read.num_forwards != 1)}"


def _whole(trace: Trace) -> Message:
    feed = Feed(len(trace.prompt_ids))
    for event in trace.events:
        feed.push(event)
    return feed.final()
