"""Rows, one forward at a time; the only place that calls the model while decoding."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Generator, Sequence

import torch

from .acceptance import MAX_VOCABULARY, Prediction, predict
from .cache import Allocate, CursorCache
from .devices import synchronize
from .errors import MarsError
from .events import StepEvent
from .hugepages import HugeZeros
from .loaded import LoadedModel
from .masks import MaskKinds
from .row import Request, Row, check_request
from .text import Vocabulary
from .window import RowWindow, Window, build_window

# Prompt tokens fed in one forward. Bounds what a long prompt holds up (another row's next token, a stop).
PREFILL_CHUNK = {"cpu": 256, "mps": 512, "cuda": 2048}


class Engine:
    """Decodes any number of requests on one model, a forward for all of them at a time.

    Threads need nothing else: whoever waits for its next event drives a step for everybody, under a lock.

    Args:
        loaded: the model.
        prefill_chunk: prompt tokens a forward; by device if None.
        allocate: makes the cache's zeroed tensors; on huge pages where there are any, if None.
    """

    def __init__(
        self, loaded: LoadedModel, *, prefill_chunk: int | None = None, allocate: Allocate | None = None
    ) -> None:
        self.loaded = loaded
        self.vocabulary = Vocabulary(loaded.tokenizer)
        self.prefill_chunk = prefill_chunk or PREFILL_CHUNK.get(loaded.device.type, 512)
        self.cache = CursorCache(allocate=allocate or HugeZeros())
        self.rows: list[Row] = []  # row i has the cache's row i
        self._suppressed = torch.tensor(loaded.suppressed_token_ids, dtype=torch.long, device=loaded.device)
        self._masks = MaskKinds(loaded.model.config.get_text_config())
        self._prefilled_last = False
        self._lock = threading.Lock()
        if self.num_embeddings > MAX_VOCABULARY:
            raise MarsError(f"A vocabulary of more than {MAX_VOCABULARY} tokens is not supported.")

    @property
    def num_embeddings(self) -> int:
        """Rows of the model's embedding table."""
        return self.loaded.num_embeddings

    def stream(self, request: Request) -> Generator[StepEvent, None, None]:
        """One event a forward, the last with a `finish_reason`.

        Checks the request at once, before the first event is asked for. Closing the iterator ends the
        request and frees its row.

        Raises:
            MarsError: the request cannot work.
            Exception: whatever a forward raised, as itself; the engine goes on without the rows it hit.
        """
        check_request(request, self.loaded)
        return self._events_of(Row(request, self.loaded, self.vocabulary))

    def _events_of(self, row: Row) -> Generator[StepEvent, None, None]:
        with self._lock:
            self.rows.append(row)
        try:
            while event := self._next_event(row):
                yield event
            if row.error is not None:
                raise row.error
        finally:
            self._abandon(row)

    def _next_event(self, row: Row) -> StepEvent | None:
        while not row.events:
            # What a row has come to is read under the lock: halfway through another thread's step it may
            # have ended and not said so yet. That step may as well have brought the event.
            with self._lock:
                if not row.events:
                    if row.ended:
                        return None
                    self.step()
        return row.events.popleft()

    def _abandon(self, row: Row) -> None:
        """Nobody waits for this row any more: free its place now or, if a step is under way, behind that.

        Never waits for the lock. The garbage collector may close an iterator at any moment, even in a
        thread that holds the lock.
        """
        row.abandoned = True
        if self._lock.acquire(blocking=False):
            try:
                row.error = None  # its traceback leads back to this row: a circle that keeps both
                self._remove([row])
            finally:
                self._lock.release()

    @torch.inference_mode()
    def step(self) -> None:
        """One forward for all rows that can share it. The caller holds the lock, if there are threads."""
        start = time.perf_counter()
        self._remove([row for row in self.rows if row.ended])
        for row in [row for row in self.rows if row.live.cancelled]:
            row.cancel()
        self._remove([row for row in self.rows if row.ended])
        rows = self._choose_rows()
        if not rows:
            return
        try:
            self._forward_and_commit(rows, start)
        except Exception as error:
            # the rows of this forward end with it; the others, and the engine, go on
            for row in rows:
                row.error = error
            # the traceback would keep the failed forward's tensors for as long as anybody keeps the error
            traceback.clear_frames(error.__traceback__)
        self._clean_up([row for row in rows if row.error is not None])
        self._remove([row for row in self.rows if row.ended])

    def _clean_up(self, failed: Sequence[Row]) -> None:
        """Leave nothing of failed rows behind: no NaN, no cache of a size that there is no memory for."""
        if not failed:
            return
        if any(row.num_cached for row in self.rows if row not in failed):
            for row in failed:
                if self.rows.index(row) < self.cache.num_rows:
                    self.cache.erase_row(self.rows.index(row))
        else:
            self.cache = CursorCache(allocate=self.cache.allocate)

    def _choose_rows(self) -> list[Row]:
        """All decoding rows, or one row with prompt left to feed; by turns where there are both, so that a
        long prompt neither freezes the others nor pads their windows to its own length."""
        prefilling = [row for row in self.rows if row.in_prefill]
        decoding = [row for row in self.rows if not row.in_prefill]
        self._prefilled_last = bool(prefilling) and not (decoding and self._prefilled_last)
        # by arrival, not by place: rows change places as others leave
        return [min(prefilling, key=lambda row: row.started)] if self._prefilled_last else decoding

    def _forward_and_commit(self, rows: Sequence[Row], start: float) -> None:
        lives = [row.live.read() for row in rows]
        windows = [row.next_window(live, self.prefill_chunk) for row, live in zip(rows, lives, strict=True)]
        predictions = self._predict(rows, windows)
        for row, window, predicted, live in zip(rows, windows, predictions, lives, strict=True):
            try:
                row.commit(window, predicted, live, start, len(rows))
            except Exception as error:  # this row's alone, such as NaN from its prompt
                row.error = error

    def _predict(self, rows: Sequence[Row], windows: Sequence[RowWindow]) -> list[list[Prediction]]:
        places = [self.rows.index(row) for row in rows]
        # rows that joined and are not part of this forward get their room, or fail to, in their own
        self.cache.reserve(max(places) + 1, max(window.end for window in windows))
        window = build_window(windows, self.loaded.mask_token_id, self.cache.scratch_slot, self.loaded.device)
        self.cache.point(places, window.slots, window.num_slots)
        logits = self._forward(window)
        counts = [window.num_predictions for window in windows]
        if not any(counts):
            synchronize(self.loaded.device)
            return [[] for _ in rows]
        num_best = max(row.settings.num_alternatives for row in rows)
        samplers = [row.sampler for row in rows]
        drafts = [window.drafts for window in windows]
        return predict(logits, samplers, self._suppressed, num_best, counts, drafts)

    def _forward(self, window: Window) -> torch.Tensor:
        """Logits [R, K, V] of the window's last K columns."""
        return self.loaded.model(
            input_ids=window.input_ids,
            position_ids=window.position_ids,
            attention_mask=self._masks.of(window),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=window.logits_to_keep,
        ).logits

    @torch.inference_mode()  # the cache's tensors were made in it and can be written only in it
    def _remove(self, gone: Sequence[Row]) -> None:
        """Take rows out; the last row moves into the place of each, so that active rows stay together."""
        for row in gone:
            if row not in self.rows:
                continue
            place, last = self.rows.index(row), self.rows.pop()
            if last is not row:
                self.rows[place] = last
                if last.num_cached:  # one that was never fed may have no place in the cache yet
                    self.cache.move_row(len(self.rows), place, last.num_cached)
