"""Our methods: the engine with the cursor cache, and the paper's block-level cache."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from ..block_cache import block_generate
from ..engine import Engine
from ..events import StepEvent, TokenChoice
from ..loaded import LoadedModel
from ..row import Request
from ..settings import DecodeSettings
from .model_clock import ModelClock
from .outcome import Outcome, RunnerUp
from .places import Places

_SMALLEST = 1e-45  # below the least probability that fp32 holds: keeps a gap finite


@dataclass
class _Followed:
    """A row on its way: its events, and when it was asked for."""

    stream: Generator[StepEvent, None, None]
    asked: float
    events: list[StepEvent] = field(default_factory=list)

    @property
    def first_token_at(self) -> float:
        """When its first token was committed, by `time.perf_counter`."""
        return self.asked + next(event.elapsed for event in self.events if event.committed)

    def events_after(self, moment: float) -> list[StepEvent]:
        """Those of forwards that were run after it.

        A forward's middle is compared, not its end: rows of one forward are told a moment apart.
        """
        return [event for event in self.events if self.asked + event.elapsed - event.seconds / 2 > moment]

    def tokens(self) -> tuple[int, ...]:
        return tuple(choice.id for event in self.events for choice in event.committed)


def run_engine(
    engine: Engine, prompts: Sequence[Sequence[int]], settings: DecodeSettings, max_new_tokens: int
) -> Outcome:
    """Answer a group of prompts, all of whose rows join at once; one thread drives them by turns."""
    settings = dataclasses.replace(settings, max_new_tokens=max_new_tokens)
    with ModelClock(engine.loaded.model) as clock:
        begin = time.perf_counter()
        rows = [
            _Followed(engine.stream(Request(ids, settings)), asked=time.perf_counter()) for ids in prompts
        ]
        _follow(rows)
        wall_s = time.perf_counter() - begin
    prefilled = max(row.first_token_at for row in rows)
    later = [event for row in rows for event in row.events_after(prefilled)]
    num_tokens = sum(len(row.tokens()) for row in rows)
    # every row of a forward tells of it once
    num_decode_forwards = round(sum(1 / event.num_rows for event in later))
    places = Places()
    for event in (event for row in rows for event in row.events):
        places.add(event)
    return Outcome(
        tokens=tuple(row.tokens() for row in rows),
        wall_s=wall_s,
        prefill_s=prefilled - begin,
        num_prefill_tokens=num_tokens - sum(len(event.committed) for event in later),
        num_decode_forwards=num_decode_forwards,
        num_row_forwards=sum(bool(event.committed) for row in rows for event in row.events),
        model_s=clock.seconds(prefilled, num_decode_forwards),
        places=places,
        runners_up=tuple(_runners_up(row) for row in rows) if settings.mode == "ar" else (),
    )


def _follow(rows: Sequence[_Followed]) -> None:
    """Take events by turns until every row has ended; whatever happens, no row stays in the engine."""
    waiting = deque(rows)
    try:
        while waiting:
            row = waiting.popleft()
            event = next(row.stream, None)
            if event is not None:
                row.events.append(event)
                waiting.append(row)
    finally:
        for row in rows:
            row.stream.close()


def _runners_up(row: _Followed) -> tuple[RunnerUp, ...]:
    return tuple(_runner_up(choice) for event in row.events for choice in event.committed)


def _runner_up(choice: TokenChoice) -> RunnerUp:
    """The likeliest token but the chosen one; ln(p₁/p₂) is the difference of their logits."""
    second = next(other for other in choice.alternatives if other.id != choice.id)
    return RunnerUp(second.id, math.log(choice.probability) - math.log(max(second.probability, _SMALLEST)))


def run_block(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: DecodeSettings,
    max_new_tokens: int,
    cache_block: int,
) -> Outcome:
    """Answer a group of prompts with the block-level cache."""
    settings = dataclasses.replace(settings, max_new_tokens=max_new_tokens)
    with ModelClock(loaded.model) as clock:
        begin = time.perf_counter()
        result = block_generate(loaded, prompts, settings, cache_block=cache_block)
        wall_s = time.perf_counter() - begin
    prefill_s = wall_s - result.decode_s
    return Outcome(
        tokens=result.tokens,
        wall_s=wall_s,
        prefill_s=prefill_s,
        num_prefill_tokens=len(result.tokens),  # its prefill commits each row's first token
        num_decode_forwards=result.num_forwards - 1,
        num_row_forwards=clock.num_rows,
        model_s=clock.seconds(begin + prefill_s, result.num_forwards - 1),
    )
