"""Rows, one forward at a time."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Empty
from typing import TypeVar

import torch

from .acceptance import MAX_VOCABULARY, Prediction, predict
from .cache import Allocate, CursorCache
from .costs import ForwardCosts, measure_costs
from .devices import synchronize
from .errors import MarsError
from .events import StepEvent
from .fair_lock import FairLock
from .forward import Forward
from .loaded import LoadedModel
from .memory import CacheBudget, twice
from .planner import Situation
from .prefix import PrefixStore
from .row import Request, Row, check_request
from .settings import LiveValues
from .text import Vocabulary
from .window import RowWindow
from .worker import Worker

# Prompt tokens fed in one forward. Bounds what a long prompt holds up (another row's next token, a stop).
PREFILL_CHUNK = {"cpu": 256, "mps": 512, "cuda": 2048}
MAX_ROWS = 64
MAX_WAITING = 256
_PREFIX_SHARE, _PREFIX_BYTES = 0.25, 1 << 30  # of the cache's budget, and at most
_Result = TypeVar("_Result")


class Engine:
    """Decodes any number of requests on one model, a forward for all of them at a time.

    Requests that the cache has no room for wait for those before them to end. Whoever waits for its next
    event drives a step for everybody, under a lock; or one thread drives for all, after `start_worker`.

    Args:
        loaded: the model.
        prefill_chunk: prompt tokens a forward; by device if None.
        allocate: makes the cache's zeroed tensors; on huge pages where there are any, if None.
        costs: tells what forwards cost on this device, for the layout `auto`; called once, when first
            needed; measures if None.
        memory_bytes: what the cache may take; half of what is free if None.
        prefix_bytes: what is kept of ended rows for prompts that begin alike; a quarter of the former,
            at most 1 GB, if None; 0 keeps nothing.
        max_rows: most requests in a forward; others wait.
        max_waiting: most requests that wait; others are refused.

    Raises:
        MarsError: `max_rows` is no number of rows, or the vocabulary is too large.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        prefill_chunk: int | None = None,
        allocate: Allocate | None = None,
        costs: Callable[[], ForwardCosts] | None = None,
        memory_bytes: int | None = None,
        prefix_bytes: int | None = None,
        max_rows: int = MAX_ROWS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.loaded = loaded
        self.vocabulary = Vocabulary(loaded.tokenizer)
        self.prefill_chunk = prefill_chunk or PREFILL_CHUNK.get(loaded.device.type, 512)
        self.forward = Forward(loaded, allocate)
        self.budget = CacheBudget(loaded, memory_bytes)
        share = min(int(_PREFIX_SHARE * self.budget.limit), _PREFIX_BYTES)
        self.prefixes = PrefixStore(share if prefix_bytes is None else prefix_bytes)
        self.max_rows, self.max_waiting = max_rows, max_waiting
        self.rows: list[Row] = []  # row i has the cache's row i
        self.waiting: deque[Row] = deque()
        self._find_costs = costs or partial(measure_costs, loaded)
        self._costs: ForwardCosts | None = None
        self._suppressed = torch.tensor(loaded.suppressed_token_ids, dtype=torch.long, device=loaded.device)
        self._prefilled_last = False
        self._lock, self._worker_lock = FairLock(), threading.Lock()
        self._worker: Worker | None = None
        if max_rows < 1:
            raise MarsError(f"max_rows is {max_rows}; allowed is 1 or more.")
        if self.num_embeddings > MAX_VOCABULARY:
            raise MarsError(f"A vocabulary of more than {MAX_VOCABULARY} tokens is not supported.")

    @property
    def num_embeddings(self) -> int:
        """Rows of the model's embedding table."""
        return self.loaded.num_embeddings

    @property
    def cache(self) -> CursorCache:
        """Keys and values of all rows."""
        return self.forward.cache

    @property
    def measured(self) -> ForwardCosts | None:
        """What forwards cost here, if that was asked for already."""
        return self._costs

    def costs(self) -> ForwardCosts:
        """What forwards cost here; measured now if that was not done."""
        if self._costs is None:
            self._costs = self._find_costs()
        return self._costs

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No forward of this engine runs while the block does; it comes between two of them."""
        with self._lock:
            yield

    def start_worker(self) -> None:
        """From now on one thread drives all requests, until `stop_worker`."""
        with self._worker_lock:
            if self._worker is None:
                self._worker = Worker(self._step_of_worker, self._fail_all)

    def stop_worker(self) -> None:
        """End the thread; requests still running fail with a `MarsError`."""
        with self._worker_lock:
            worker, self._worker = self._worker, None
            if worker is not None:
                worker.stop()

    def stream(self, request: Request) -> Generator[StepEvent, None, None]:
        """One event a forward, the last with a `finish_reason`.

        Checks the request at once, before the first event is asked for. Closing the iterator ends the
        request and frees its row.

        Raises:
            MarsError: the request cannot work, now or ever.
            Exception: whatever a forward raised, as itself; the engine goes on without the rows it hit.
        """
        check_request(request, self.loaded)
        row = Row(request, self.loaded, self.vocabulary)
        if not self.budget.fits([row.most_slots]):
            raise MarsError(
                f"With {row.num_prompt} prompt tokens and max_new_tokens {row.settings.max_new_tokens} the "
                f"cache takes up to {self.budget.bytes([row.most_slots]) >> 20} MB of the "
                f"{self.budget.limit >> 20} there are. Shorten the prompt or ask for fewer tokens."
            )
        self._check_queue(row)
        return self._events_of(row)

    def _check_queue(self, row: Row) -> None:
        num_waiting, slots = len(self.waiting), [r.most_slots for r in (*self.rows, *self.waiting, row)]
        at_once = len(slots) <= self.max_rows and self.budget.fits(slots)
        if num_waiting >= self.max_waiting and not at_once:
            raise MarsError(f"{num_waiting} requests are waiting already. Try again in a moment.")

    def _events_of(self, row: Row) -> Generator[StepEvent, None, None]:
        self._check_queue(row)  # others may have come since the iterator was made
        self.waiting.append(row)
        try:
            while event := self._next_event(row):
                yield event
            if row.error is not None:
                raise row.error
        finally:
            self._abandon(row)

    def _next_event(self, row: Row) -> StepEvent | None:
        """None at the end: whoever takes a row out of the engine puts that behind its events."""
        while True:
            try:
                return row.events.get_nowait()
            except Empty:
                pass
            worker = self._worker  # another thread may be stopping it: that reaches this row as an event
            if worker is not None:
                worker.wake()
                return row.events.get()
            with self._lock:
                # the step of another thread, waited for here, may have brought the event
                if row.events.empty():
                    self.step()

    def _abandon(self, row: Row) -> None:
        """Nobody waits for this row any more: free its place now or, if a step is under way, behind that.

        Never waits for the lock. The garbage collector may close an iterator at any moment, even in a
        thread that holds the lock.
        """
        row.abandoned = True
        while self._lock.acquire(blocking=False):
            try:
                self._remove_ended()
                row.error = None  # its traceback leads back to this row: a circle that keeps both
            finally:
                self._lock.release()
            # who came in vain for the lock meanwhile has left its row to this thread
            if not any(other.ended for other in (*self.rows, *self.waiting)):
                return

    def _step_of_worker(self) -> bool:
        with self._lock:
            self.step()
            return bool(self.rows or self.waiting)

    def _fail_all(self, error: BaseException) -> None:
        """Nothing here may fail itself: everybody waits for it. What is cached goes, whatever its state."""
        with self._lock:
            rows = [*self.rows]
            self.rows.clear()
            while self.waiting:  # others may be appending
                rows.append(self.waiting.popleft())
            self.forward.forget()
            for row in rows:
                if not row.ended:
                    row.error = error
                row.events.put(None)

    @torch.inference_mode()
    def step(self) -> None:
        """One forward for all rows that can share it. The caller holds the lock, if there are threads."""
        start = time.perf_counter()
        self._remove_ended()
        for row in [row for row in (*self.rows, *self.waiting) if row.live.cancelled]:
            row.cancel()
        self._remove_ended()
        self._admit()
        rows = self._choose_rows()
        if not rows:
            return
        try:
            self._forward_and_commit(rows, start)
        except Exception as error:
            # the rows of this forward end with it; the others, and the engine, go on
            for row in rows:
                row.error = row.error or error
        self._clean_up([row for row in rows if row.error is not None])
        self._remove_ended()

    def _admit(self) -> None:
        """Let in who waits, in the order of arrival, while there is room for all to grow to their end."""
        while self.waiting and len(self.rows) < self.max_rows:
            slots = [row.most_slots for row in (*self.rows, self.waiting[0])]
            if not self.budget.fits(slots):
                return
            row = self.waiting.popleft()
            self.rows.append(row)
            self._tell_ceiling()
            row.num_cached = self.prefixes.restore(row.tokens, self.cache, len(self.rows) - 1)

    def _tell_ceiling(self) -> None:
        self.cache.ceiling = len(self.rows), max(row.most_slots for row in self.rows)

    def _clean_up(self, failed: Sequence[Row]) -> None:
        """Leave nothing of failed rows behind: no NaN, no cache of a size that there is no memory for."""
        if not failed:
            return
        for error in filter(None, (row.error for row in failed)):
            # its traceback would keep the failed forward's tensors for as long as anybody keeps the error
            traceback.clear_frames(error.__traceback__)
        if any(row.num_cached for row in self.rows if row not in failed):
            for row in failed:
                if self.rows.index(row) < self.cache.num_rows:
                    self.cache.erase_row(self.rows.index(row))
        else:
            self.forward.forget()

    def _choose_rows(self) -> list[Row]:
        """All decoding rows, or one row with prompt left to feed; by turns where there are both, so that a
        long prompt neither freezes the others nor pads their windows to its own length."""
        prefilling = [row for row in self.rows if row.in_prefill]
        decoding = [row for row in self.rows if not row.in_prefill]
        self._prefilled_last = bool(prefilling) and not (decoding and self._prefilled_last)
        # by arrival, not by place: rows change places as others leave
        return [min(prefilling, key=lambda row: row.started)] if self._prefilled_last else decoding

    def _forward_and_commit(self, rows: Sequence[Row], start: float) -> None:
        lives = [self.budget.affordable(row, self.rows) for row in rows]
        windows = [self._window(row, live, len(rows)) for row, live in zip(rows, lives, strict=True)]
        fed = self._make_room(rows, windows)
        if not fed:
            return
        predictions = self._predict([rows[i] for i in fed], [windows[i] for i in fed])
        for i, predicted in zip(fed, predictions, strict=True):
            row = rows[i]
            try:
                row.commit(windows[i], predicted, lives[i], start, len(fed))
            except Exception as error:  # this row's alone, such as NaN from its prompt
                row.error = error

    def _window(self, row: Row, live: LiveValues, num_rows: int) -> RowWindow:
        situation = Situation(self.costs, row.num_cached, num_rows)
        try:
            return row.next_window(live, self.prefill_chunk, situation)
        except Exception as error:  # this row's alone, such as costs that could not be measured
            row.error = error
            return RowWindow((), row.num_cached)

    def _make_room(self, rows: Sequence[Row], windows: Sequence[RowWindow]) -> list[int]:
        """Which of the rows have their room in the cache now; the others have failed."""
        places = [self.rows.index(row) for row in rows]
        # rows that joined and are not part of this forward get their room, or fail to, in their own
        room = max(places) + 1, max(window.end for window in windows)
        self._tell_ceiling()
        try:
            self._twice(partial(self.cache.reserve, *room))
        except Exception as error:
            for row, place, window in zip(rows, places, windows, strict=True):
                if place >= self.cache.num_rows or window.end > self.cache.capacity:
                    row.error = error
        return [number for number, row in enumerate(rows) if row.error is None]

    def _predict(self, rows: Sequence[Row], windows: Sequence[RowWindow]) -> list[list[Prediction]]:
        generators = [row.sampler.generator for row in rows if row.sampler is not None]
        states = [generator.get_state() for generator in generators]

        def predict_once() -> list[list[Prediction]]:
            # a try that failed may have drawn already
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            return self._predict_once(rows, windows)

        return self._twice(predict_once)

    def _twice(self, work: Callable[[], _Result]) -> _Result:
        """Once more without the prefixes, if there is no memory for it with them."""
        return twice(work, self.prefixes.clear, self.loaded.device)

    def _predict_once(self, rows: Sequence[Row], windows: Sequence[RowWindow]) -> list[list[Prediction]]:
        logits = self.forward.logits([self.rows.index(row) for row in rows], windows)
        counts = [window.num_predictions for window in windows]
        if not any(counts):
            synchronize(self.loaded.device)
            return [[] for _ in rows]
        num_best = max(row.settings.num_alternatives for row in rows)
        samplers = [row.sampler for row in rows]
        drafts = [window.drafts for window in windows]
        return predict(logits, samplers, self._suppressed, num_best, counts, drafts)

    @torch.inference_mode()  # the cache's tensors were made in it and can be written only in it
    def _remove_ended(self) -> None:
        """Take rows out that have ended, and tell their callers."""
        gone = [row for row in (*self.rows, *self.waiting) if row.ended]
        for row in gone:
            if row in self.rows:
                self._take_out(row)
            else:
                self.waiting.remove(row)
            row.events.put(None)
        if gone:
            self.cache.shrink(len(self.rows), max((row.num_cached for row in self.rows), default=0))

    def _take_out(self, row: Row) -> None:
        """The last row moves into its place, so that active rows stay together."""
        place = self.rows.index(row)
        if row.error is None and row.num_cached and place < self.cache.num_rows:
            self.prefixes.keep(row.tokens[: row.num_cached], self.cache, place)
            if row.in_prefill:  # nothing it computed was looked at yet: it may be NaN
                self.cache.erase_row(place)
        last = self.rows.pop()
        if last is not row:
            self.rows[place] = last
            if last.num_cached:  # one that was never fed may have no place in the cache yet
                self.cache.move_row(len(self.rows), place, last.num_cached)
                if last.in_prefill:  # as above
                    self.cache.erase_row(len(self.rows))
