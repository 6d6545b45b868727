"""Many prompts answered on one engine, and what their answers took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..engine import Engine
from ..events import FinishReason, StatisticsCounter, StepEvent
from ..row import Request


@dataclass(frozen=True)
class Answer:
    """One answer, whole.

    Attributes:
        text: without what ended it.
        ids: all committed tokens, the end-of-sequence token included.
        num_forwards: forwards that committed tokens, so that the prefill counts as one.
        finish_reason: why it ended.
    """

    text: str
    ids: tuple[int, ...]
    num_forwards: int
    finish_reason: FinishReason


@dataclass(frozen=True)
class Generation:
    """What a list of answers took.

    Attributes:
        num_cut: answers that ended at the token limit.
    """

    num_answers: int
    num_tokens: int
    num_forwards: int
    num_cut: int

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Generation:
        """Add up."""
        return cls(
            num_answers=len(answers),
            num_tokens=sum(len(answer.ids) for answer in answers),
            num_forwards=sum(answer.num_forwards for answer in answers),
            num_cut=sum(answer.finish_reason == "length" for answer in answers),
        )

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens, end-of-sequence tokens included, over forwards, the prefill being one."""
        return self.num_tokens / max(1, self.num_forwards)


@dataclass
class _Growing:
    number: int
    pieces: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    counter: StatisticsCounter = field(default_factory=lambda: StatisticsCounter(0))

    def add(self, event: StepEvent) -> Answer | None:
        """The whole answer with its last event."""
        self.pieces.append(event.text)
        self.ids += [choice.id for choice in event.committed]
        self.counter.add(event)
        if event.finish_reason is None:
            return None
        forwards = self.counter.num_forwards
        return Answer("".join(self.pieces), tuple(self.ids), forwards, event.finish_reason)


def answers(engine: Engine, requests: Iterable[Request], batch_size: int) -> Iterator[tuple[int, Answer]]:
    """(number of the request, its answer), as they end.

    A pool of `batch_size` requests shares the engine's forwards; one that ends makes room for the next.
    """
    waiting = enumerate(requests)
    pool: dict[Any, _Growing] = {}
    try:
        while True:
            for number, request in islice(waiting, batch_size - len(pool)):
                pool[engine.stream(request)] = _Growing(number)
            if not pool:
                return
            for stream in list(pool):
                answer = pool[stream].add(next(stream))
                if answer is not None:
                    stream.close()
                    yield pool.pop(stream).number, answer
    finally:
        for stream in pool:
            stream.close()
