"""Where lanes race: each on an engine of its own, all their forwards one after the other in one thread.

In one engine two rows share forwards, and a forward for two takes longer than one for either: no clock of a
lane could be told from it. So every lane has an engine (the same model, a cache of its own) that it is alone
in, and one thread lets the lanes of all races take turns, a forward each, and takes turns itself with the
engine that everybody shares: no two forwards run at once, and none waits for another while it is timed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from mars_core import Engine, MarsError, Request, StepEvent
from mars_core.settings import LiveSettings
from mars_core.worker import Worker

logger = logging.getLogger(__name__)

MAX_RACES = 2
MAX_LANES = 2
# All lanes together may take half as much memory for their caches as the engine that everybody shares.
_MEMORY_SHARE = 1 / (2 * MAX_RACES * MAX_LANES)
_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class LaneEvent:
    """What one forward did for one lane.

    Attributes:
        lane: its number, from 0.
        event: the last of each lane has a `finish_reason`.
    """

    lane: int
    event: StepEvent


class RaceTrack:
    """Runs races; several visitors' at once take turns too, forward by forward.

    Args:
        engine: the one that everybody shares: its model, its costs, its limits, and the pauses between its
            forwards.
        explain: what is told of a lane's failure, in one plain sentence.
        max_races: more wait until one has ended.
    """

    def __init__(
        self, engine: Engine, explain: Callable[[Exception], str] = str, max_races: int = MAX_RACES
    ) -> None:
        self._engine, self._explain = engine, explain
        self._places = threading.BoundedSemaphore(max_races)
        self._lock = threading.Lock()
        self._idle: list[Engine] = []
        self._lanes: deque[_Lane] = deque()  # the next to have a forward first
        self._worker: Worker | None = None

    def run(self, requests: Sequence[Request]) -> Generator[LaneEvent | None, None, None]:
        """The lanes' events in the order of their forwards; None about twice a second while it waits for
        another race to end, and nothing if it is cancelled meanwhile. Closing the iterator ends the race.

        Raises:
            MarsError: a request cannot work, now or ever.
        """
        if not 0 < len(requests) <= MAX_LANES:
            raise MarsError(f"There are {len(requests)} lanes; allowed are 1 to {MAX_LANES}.")
        while not self._places.acquire(timeout=_WAIT_S):
            if all(request.live is not None and request.live.cancelled for request in requests):
                return
            yield None
        race = self._enter(requests)
        try:
            num_running = len(requests)
            while num_running:
                item = race.events.get()
                num_running -= item.event.finish_reason is not None
                yield item
        finally:
            race.abandoned = True

    def stop(self) -> None:
        """End the thread; races still running fail."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    @property
    def num_lanes(self) -> int:
        """Lanes that are running."""
        return len(self._lanes)

    def _enter(self, requests: Sequence[Request]) -> _Race:
        race = _Race(len(requests))
        engines: list[Engine] = []
        lanes: list[_Lane] = []
        try:
            for number, request in enumerate(requests):
                engines.append(self._take_engine())
                lanes.append(_Lane(number, race, engines[-1], request))
        except BaseException:
            with self._lock:
                self._idle += engines
            self._places.release()
            raise
        with self._lock:
            self._lanes.extend(lanes)
            self._worker = self._worker or Worker(self._step, self._fail)
        self._worker.wake()
        return race

    def _take_engine(self) -> Engine:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        shared = self._engine
        # no prefixes are kept: both lanes of a race read the whole prompt
        return Engine(
            shared.loaded,
            prefill_chunk=shared.prefill_chunk,
            costs=shared.costs,
            memory_bytes=int(_MEMORY_SHARE * shared.budget.limit),
            prefix_bytes=0,
            max_rows=1,
        )

    def _step(self) -> bool:
        """One forward of the lane whose turn it is; True while there are lanes."""
        if not self._lanes:
            return False
        lane = self._lanes[0]
        goes_on = self._advance(lane)
        with self._lock:
            self._lanes.popleft()
            if goes_on:
                self._lanes.append(lane)
        if not goes_on:
            self._leave(lane)
        return True

    def _advance(self, lane: _Lane) -> bool:
        """True where the lane goes on."""
        if lane.race.abandoned:
            return False
        try:
            # two forwards at once would each count the other's time as their own
            with self._engine.alone():
                event = next(lane.events)
        except Exception as error:
            event = lane.failed(self._explain(error))
        lane.last = event
        lane.race.events.put(LaneEvent(lane.number, event))
        return event.finish_reason is None

    def _leave(self, lane: _Lane) -> None:
        """Raises nothing: other races wait for this one's place, and other lanes for the thread."""
        try:
            lane.events.close()
        except Exception:
            logger.exception("A lane's engine could not be cleared; it is not used again.")
        else:
            with self._lock:
                self._idle.append(lane.engine)
        lane.race.num_lanes -= 1
        if not lane.race.num_lanes:
            self._places.release()

    def _fail(self, error: BaseException) -> None:
        """The thread ended: nobody may wait for it for ever."""
        sentence = self._explain(error) if isinstance(error, Exception) else "The comparison was stopped."
        with self._lock:
            lanes = [*self._lanes]
            self._lanes.clear()
        for lane in lanes:
            lane.race.events.put(LaneEvent(lane.number, lane.failed(sentence)))
            self._leave(lane)


class _Race:
    """What the lanes of one race share."""

    def __init__(self, num_lanes: int) -> None:
        self.events: SimpleQueue[LaneEvent] = SimpleQueue()
        self.num_lanes = num_lanes
        self.abandoned = False  # nobody reads on; set from any thread


class _Lane:
    """One request under way. Raises `MarsError` where it cannot work."""

    def __init__(self, number: int, race: _Race, engine: Engine, request: Request) -> None:
        self.number, self.race, self.engine = number, race, engine
        self.live = request.live or LiveSettings(request.settings.live_values())
        self.events = engine.stream(request)
        self.last: StepEvent | None = None

    def failed(self, sentence: str) -> StepEvent:
        """The event that says so."""
        return StepEvent.without_forward(self.last, self.live.read(), "error", error=sentence)
