"""The sweep itself: every point of the grid answers every prompt, one answer at a time.

Prompt by prompt, the points in changing order: what disturbs the machine disturbs all points alike, and what
is stopped early has figures for all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from ...engine import Engine
from ...evaluate.scoring import Scores, behind, score
from ...row import Request, check_request
from ...settings import LiveSettings, LiveValues
from .answers import Recording, SweepAnswer
from .grid import AR, GridPoint, SweepPlan, SweepPrompt

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Progress:
    """Where a sweep is; one after every forward.

    Attributes:
        num_done, num_answers: answers finished, and all there will be.
        point: who answers.
        prompt: the number of the prompt, from 0.
        num_tokens: of the answer under way; 0 once it is finished.
        share: of the work, 0 to 1, the answer under way counted by its tokens.
        elapsed_s: since the sweep began.
        eta_s: seconds to go at the pace so far; None before there is one.
    """

    num_done: int
    num_answers: int
    point: GridPoint
    prompt: int
    num_tokens: int
    share: float
    elapsed_s: float
    eta_s: float | None


class Sweep:
    """One sweep: run `steps`, look at `answers` at any time.

    Args:
        engine: it may serve others too.
        plan: the grid.
        prompts: ready for the answer.
        answers: of an earlier, interrupted sweep of the same plan and prompts; not answered again.

    Attributes:
        answers: those finished. What is under way when the sweep is stopped is dropped.

    Raises:
        MarsError: there is no prompt, or one does not fit the model's context.
    """

    def __init__(
        self,
        engine: Engine,
        plan: SweepPlan,
        prompts: Sequence[SweepPrompt],
        answers: Sequence[SweepAnswer] = (),
    ) -> None:
        self.engine, self.plan, self.prompts = engine, plan, prompts
        self.points = plan.points()
        self.answers = list(answers)
        for prompt in prompts:
            check_request(Request(prompt.ids, AR.settings(plan.max_new_tokens)), engine.loaded)

    def steps(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Answer what is left. Stops between two forwards when `cancelled` says so or the iterator is closed.

        Raises:
            Exception: whatever a forward raised; what was finished before stays.
        """
        jobs = self._jobs()
        pace = _Pace(len(self.points) * len(self.prompts), len(self.answers), self.plan.max_new_tokens)
        if jobs:
            self._warm_up(cancelled)
        for prompt, point in jobs:
            recording = Recording()
            for num_tokens in self._record(prompt, point, self.plan.max_new_tokens, recording, cancelled):
                yield pace.progress(self.points[point], prompt, len(self.answers), num_tokens)
            if recording.finish_reason is None:
                return
            scores = self._score(prompt, recording.ids)
            self.answers.append(recording.answer(point, prompt, scores.log_probabilities, scores.greedy))
            yield pace.progress(self.points[point], prompt, len(self.answers), 0)

    def _jobs(self) -> list[tuple[int, int]]:
        """(prompt, point) in the order in which they run. AR is the first to answer the first prompt, for the
        others are compared with it."""
        order, done = random.Random(self.plan.seed), {(a.prompt, a.point) for a in self.answers}
        jobs: list[tuple[int, int]] = []
        for prompt in range(len(self.prompts)):
            points = order.sample(range(len(self.points)), len(self.points))
            if prompt == 0:
                points.sort(key=lambda number: not self.points[number].is_ar)
            jobs += [(prompt, point) for point in points]
        return [job for job in jobs if job not in done]

    def _warm_up(self, cancelled: Callable[[], bool]) -> None:
        """A few tokens each way of decoding that do not count: the first forwards of a kind are slow."""
        kinds = {(point.is_ar, point.verify): number for number, point in enumerate(self.points)}
        most = min(WARM_UP_TOKENS, self.plan.max_new_tokens)
        for number in kinds.values():
            for _ in self._record(0, number, most, Recording(), cancelled):
                pass

    def _record(
        self, prompt: int, point: int, most: int, recording: Recording, cancelled: Callable[[], bool]
    ) -> Iterator[int]:
        """Fill `recording`; yields the tokens so far, after each forward but the last."""
        settings = self.points[point].settings(most)
        live = _Unless(cancelled, settings.live_values())
        with closing(self.engine.stream(Request(self.prompts[prompt].ids, settings, live))) as events:
            while not cancelled() and (event := next(events, None)) is not None:
                if event.finish_reason == "cancelled":
                    return
                recording.add(event)
                if event.finish_reason is None:
                    yield len(recording.ids)

    def _score(self, prompt: int, ids: Sequence[int]) -> Scores:
        """How likely AR holds the text, in one forward that no other of the engine's runs beside: both would
        be slowed, and the other's clock would not know why."""
        with self.engine.alone():
            return score(self.engine.loaded, [behind(self.prompts[prompt].ids, ids)])[0]


class _Unless(LiveSettings):
    """A row's settings, which nobody turns. It ends with its sweep, also while it waits for its turn: the
    sweep's own thread waits for its next event then and cannot close it."""

    def __init__(self, cancelled: Callable[[], bool], values: LiveValues) -> None:
        super().__init__(values)
        self._sweep_cancelled = cancelled

    @property
    def cancelled(self) -> bool:
        return super().cancelled or self._sweep_cancelled()


class _Pace:
    """How fast a sweep goes."""

    def __init__(self, num_answers: int, num_done: int, max_new_tokens: int) -> None:
        self.num_answers, self.num_before, self.max_new_tokens = num_answers, num_done, max_new_tokens
        self.started = time.perf_counter()

    def progress(self, point: GridPoint, prompt: int, num_done: int, num_tokens: int) -> Progress:
        elapsed_s = time.perf_counter() - self.started
        done = num_done + num_tokens / (self.max_new_tokens + 1)
        new = done - self.num_before
        return Progress(
            num_done=num_done,
            num_answers=self.num_answers,
            point=point,
            prompt=prompt,
            num_tokens=num_tokens,
            share=done / self.num_answers,
            elapsed_s=elapsed_s,
            eta_s=elapsed_s * (self.num_answers - done) / new if new > 0 else None,
        )
