"""The thread that drives the engine for everybody."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.events import StepEvent
from mars_core.planner import NOMINAL_COSTS
from mars_core.row import Request
from mars_core.settings import DecodeSettings, LiveSettings
from mars_core.worker import Worker
from tests.scripted import always, scripted_loaded
from tests.test_engine import PROMPT, Boom, flat, model, text_of

PATIENCE = 30  # seconds until a thread that hangs is given up


@pytest.fixture
def working() -> Iterator[Callable[..., Engine]]:
    """Makes engines with a running thread, which ends with the test."""
    engines: list[Engine] = []

    def make(loaded: Any = None, **options: Any) -> Engine:
        engine = Engine(loaded or model(), costs=lambda: NOMINAL_COSTS, **options)
        engine.start_worker()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.stop_worker()


class Caller(threading.Thread):
    """Streams a request in a thread of its own; notes its events and what it raised."""

    def __init__(self, engine: Engine, *requests: Request) -> None:
        super().__init__(daemon=True)
        self.engine, self.requests = engine, requests
        self.answers: list[list[StepEvent]] = []
        self.error: BaseException | None = None
        self.began = threading.Event()  # has its first event
        self.start()

    def run(self) -> None:
        try:
            for request in self.requests:
                self.answers.append([])
                for event in self.engine.stream(request):
                    self.answers[-1].append(event)
                    self.began.set()
        except BaseException as error:
            self.error = error

    def finish(self) -> Caller:
        self.join(PATIENCE)
        assert not self.is_alive(), "the caller waits for ever"
        return self


class Gate:
    """Holds a scripted model up in its forward until it is opened."""

    def __init__(self, loaded: Any) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.loaded = loaded
        loaded.model.before = self._hold

    def _hold(self, number: int) -> None:
        self.inside.set()
        assert self.go_on.wait(PATIENCE)

    def wait(self) -> None:
        """Until a forward has begun."""
        assert self.inside.wait(PATIENCE)

    def open(self) -> None:
        self.loaded.model.before = lambda number: None
        self.go_on.set()


def eventually(true: Callable[[], bool]) -> bool:
    """Gives another thread a while to bring this about."""
    end = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < end:
        time.sleep(0.001)
    return true()


def _request(number: int) -> Request:
    """Nine that differ in mode and length; the prompts of some begin alike."""
    base = DecodeSettings(threshold=0.1, max_new_tokens=10)
    how = [
        base,
        replace(base, mode="ar"),
        replace(base, threshold=1.0, verify=True),
        replace(base, verify=True, layout="full"),
        replace(base, block_size=8, max_new_tokens=17),
        replace(base, temperature=1.0, seed=3),
        replace(base, temperature=1.0, seed=3, verify=True, layout="linear"),
        replace(base, metric="entropy", threshold=3.0),
        replace(base, max_new_tokens=1),
    ][number % 9]
    return Request(
        [(7 * i) % 250 for i in range(14 + number)] if number % 2 else PROMPT[: 1 + number % 7], how
    )


@functools.cache
def _solo(number: int) -> tuple[list[int], str]:
    engine = Engine(model(), costs=lambda: NOMINAL_COSTS, prefix_bytes=0)
    return _outcome(list(engine.stream(_request(number))))


def _outcome(events: list[StepEvent]) -> tuple[list[int], str]:
    # how the tokens came in forwards may differ: the layout `auto` goes by how many rows share them
    return flat(events), text_of(events)


def _long(budget: int = 2000) -> Request:
    return Request(PROMPT, DecodeSettings(max_new_tokens=budget, block_size=1))


# --- many callers ---


@pytest.mark.parametrize("max_rows", [64, 3])
def test_eight_threads_with_several_requests_each_get_their_solo_runs(working, max_rows):
    numbers = [[(3 * thread + i) % 27 for i in range(4)] for thread in range(8)]
    engine = working(prefill_chunk=4, max_rows=max_rows)
    callers = [Caller(engine, *map(_request, mine)) for mine in numbers]
    for mine, caller in zip(numbers, callers, strict=True):
        assert caller.finish().error is None
        assert [_outcome(events) for events in caller.answers] == [_solo(number) for number in mine]
    assert engine.rows == [] and not engine.waiting


def test_callers_share_forwards(working):
    loaded = scripted_loaded(always())
    gate = Gate(loaded)
    engine = working(loaded)
    callers = [Caller(engine, _long(20)) for _ in range(3)]
    gate.wait()
    assert eventually(lambda: len(engine.waiting) + len(engine.rows) == 3)
    gate.open()
    for caller in callers:
        assert 3 in [event.num_rows for event in caller.finish().answers[0]]


def test_all_forwards_are_run_by_the_same_thread(working):
    loaded, seen = scripted_loaded(always()), set()
    loaded.model.before = lambda number: seen.add(threading.current_thread().name)
    engine = working(loaded)
    for caller in [Caller(engine, _long(20), _long(20)) for _ in range(3)]:
        caller.finish()
    assert seen == {"mars-engine"}


# --- callers that stop ---


def test_cancelling_ends_behind_the_forward_under_way(working):
    loaded, live = scripted_loaded(always()), LiveSettings()
    gate = Gate(loaded)
    caller = Caller(working(loaded), replace(_long(), live=live))
    gate.wait()
    live.cancel()
    gate.open()
    (events,) = caller.finish().answers
    assert [event.finish_reason for event in events] == [None, "cancelled"]
    assert len(loaded.model.fed) == 1


def test_closing_an_iterator_frees_its_row_while_nothing_else_runs(working):
    engine = working(scripted_loaded(always()))
    stream = engine.stream(_long(3000))
    next(stream)
    stream.close()
    assert eventually(lambda: engine.rows == [])


def test_closing_in_the_middle_of_a_forward_waits_for_nobody(working):
    loaded = scripted_loaded(always())
    engine = working(loaded)
    stream = engine.stream(_long(3000))
    next(stream)
    gate = Gate(loaded)
    gate.wait()
    stream.close()  # would hang here
    gate.open()
    assert eventually(lambda: engine.rows == [])
    assert len(flat(engine.stream(_long(9)))) == 9


def test_a_row_left_while_another_thread_held_the_lock_is_freed_by_that_one():
    engine = Engine(scripted_loaded(always()))
    left, ended = engine.stream(_long()), engine.stream(_long())
    next(left), next(ended)
    remove, calls = engine._remove_ended, []

    def meanwhile() -> None:
        remove()
        calls.append(None)
        if len(calls) == 1:
            other = threading.Thread(target=left.close)  # finds the lock taken
            other.start()
            other.join(PATIENCE)

    engine._remove_ended = meanwhile  # type: ignore[method-assign]
    ended.close()
    assert engine.rows == []


# --- faults ---


def test_what_a_forward_raises_reaches_the_requests_in_it_and_the_thread_goes_on(working):
    loaded = scripted_loaded(always())
    engine = working(loaded, prefill_chunk=2)
    gate = Gate(loaded)
    struck = [Caller(engine, Request(PROMPT[:1], DecodeSettings(max_new_tokens=3000))) for _ in range(2)]
    gate.wait()
    assert eventually(lambda: len(engine.rows) + len(engine.waiting) == 2)
    gate.open()
    assert all(caller.began.wait(PATIENCE) for caller in struck)
    gate = Gate(loaded)
    gate.wait()
    spared = Caller(engine, Request([7] * 20, DecodeSettings(max_new_tokens=5)))
    assert eventually(lambda: len(engine.waiting) == 1)

    def fail_where_two_decode(number: int) -> None:
        if engine._prefilled_last is False and len(engine.rows) == 3:
            loaded.model.before = lambda later: None
            raise Boom("two at once")

    loaded.model.before = fail_where_two_decode
    gate.go_on.set()
    for caller in struck:
        assert isinstance(caller.finish().error, Boom)
    assert spared.finish().error is None and len(flat(spared.answers[0])) == 5
    assert len(flat(engine.stream(_long(9)))) == 9 and engine.rows == []


def test_a_window_that_cannot_be_made_ends_its_row_alone():
    def no_costs() -> Any:
        raise Boom("cannot be measured")

    engine = Engine(scripted_loaded(always()), costs=no_costs)
    plain = engine.stream(_long(30))
    next(plain)
    live = LiveSettings(DecodeSettings(threshold=1.0).live_values())
    drafting = engine.stream(Request(PROMPT, DecodeSettings(threshold=1.0, max_new_tokens=30), live))
    next(drafting)
    live.update(verify=True)  # asks what forwards cost, in one that both share
    with pytest.raises(Boom):
        list(drafting)
    assert len(flat(plain)) == 29 and engine.rows == []


@pytest.mark.parametrize("part", ["_choose_rows", "_admit", "_remove_ended"])
def test_a_fault_of_the_engine_fails_who_waits_and_later_requests_work(working, part):
    loaded = scripted_loaded(always())
    engine = working(loaded, max_rows=2)
    gate = Gate(loaded)
    callers = [Caller(engine, _long()) for _ in range(3)]
    gate.wait()
    assert eventually(lambda: len(engine.rows) + len(engine.waiting) == 3)
    sound = getattr(engine, part)

    def fault(*_: Any) -> Any:
        setattr(engine, part, sound)
        raise Boom("a fault of the engine")

    setattr(engine, part, fault)
    gate.open()
    assert all(isinstance(caller.finish().error, Boom) for caller in callers)
    assert len(flat(engine.stream(_long(9)))) == 9
    assert engine.rows == [] and not engine.waiting


def test_a_fault_that_stays_fails_every_request_and_hangs_none(working):
    engine = working(scripted_loaded(always()))

    def fault() -> None:
        raise Boom

    engine._remove_ended = fault
    for _ in range(2):
        caller = Caller(engine, _long())
        caller.join(PATIENCE)
        assert isinstance(caller.error, Boom)
    del engine._remove_ended
    assert len(flat(engine.stream(_long(9)))) == 9


# --- starting and stopping ---


def test_stopping_gives_those_who_wait_an_error_and_then_callers_drive_themselves(working):
    loaded = scripted_loaded(always())
    engine = working(loaded, max_rows=1)
    gate = Gate(loaded)
    callers = [Caller(engine, _long()) for _ in range(2)]
    gate.wait()
    assert eventually(lambda: len(engine.rows) + len(engine.waiting) == 2)
    stopping = threading.Thread(target=engine.stop_worker)
    stopping.start()
    assert eventually(lambda: engine._worker is None)
    gate.open()
    stopping.join(PATIENCE)
    for caller in callers:
        assert isinstance(caller.finish().error, MarsError) and "stopped" in str(caller.error)
    assert engine.rows == [] and not engine.waiting
    seen = set()
    loaded.model.before = lambda number: seen.add(threading.current_thread())
    assert len(flat(engine.stream(_long(9)))) == 9
    assert seen == {threading.current_thread()}


def test_a_caller_who_comes_just_as_the_thread_is_stopped_is_served_or_told(working):
    engine = working(scripted_loaded(always()))
    worker = engine._worker
    assert worker is not None
    wake = worker.wake

    def stopped_meanwhile() -> None:
        engine.stop_worker()
        wake()

    worker.wake = stopped_meanwhile  # type: ignore[method-assign]
    caller = Caller(engine, _long(9)).finish()
    assert isinstance(caller.error, MarsError)


def test_stopping_between_two_looks_at_the_thread_is_no_fault_of_the_caller(working):
    """Stops as soon as the caller has seen that there is a thread."""
    engine = working(scripted_loaded(always()))

    class Watched(Engine):
        @property
        def _worker(self) -> Any:
            found = self.__dict__["_worker"]
            if found is not None and threading.current_thread() is caller:
                self.__dict__["_worker"] = None
                found.stop()
            return found

        @_worker.setter
        def _worker(self, worker: Any) -> None:
            self.__dict__["_worker"] = worker

    begin = threading.Event()
    outcome: list[Any] = []

    def consume() -> None:
        begin.wait(PATIENCE)
        try:
            outcome.append(len(flat(engine.stream(_long(9)))))
        except Exception as error:
            outcome.append(error)

    caller = threading.Thread(target=consume, daemon=True)
    caller.start()
    engine.__class__ = Watched
    begin.set()
    caller.join(PATIENCE)
    assert isinstance(outcome[0], MarsError) or outcome[0] == 9


def test_starting_and_stopping_while_requests_come_loses_none():
    engine = Engine(scripted_loaded(always()))
    callers = [Caller(engine, *[_long(9)] * 10) for _ in range(6)]
    while any(caller.is_alive() for caller in callers):
        engine.start_worker()
        engine.stop_worker()
    for caller in callers:
        finished = [len(flat(events)) for events in caller.finish().answers]
        assert caller.error is None or isinstance(caller.error, MarsError)
        assert all(count == 9 for count in finished[:-1])
    assert engine.rows == [] and not engine.waiting
    assert len(flat(engine.stream(_long(9)))) == 9


def test_starting_twice_at_once_makes_one_thread(monkeypatch):
    def slow(*arguments: Any) -> Worker:
        time.sleep(0.01)
        made.append(Worker(*arguments))
        return made[-1]

    made: list[Worker] = []
    monkeypatch.setattr("mars_core.engine.Worker", slow)
    engine = Engine(scripted_loaded(always()))
    starters = [threading.Thread(target=engine.start_worker) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(PATIENCE)
    engine.start_worker()
    assert len(made) == 1 and made[0]._thread.is_alive()
    engine.stop_worker()
    assert not made[0]._thread.is_alive()
    engine.stop_worker()


def test_a_request_begun_without_the_thread_goes_on_with_it(working):
    engine = Engine(model(), costs=lambda: NOMINAL_COSTS)
    stream = engine.stream(_request(0))
    events = [next(stream)]
    engine.start_worker()
    try:
        events += stream
    finally:
        engine.stop_worker()
    assert _outcome(events) == _solo(0)


def test_without_work_the_thread_sleeps(working):
    loaded = scripted_loaded(always())
    engine = working(loaded)
    steps, step = [], engine.step

    def counted() -> None:
        steps.append(None)
        step()

    engine.step = counted  # type: ignore[method-assign]
    assert len(flat(engine.stream(_long(9)))) == 9
    time.sleep(0.05)
    # the nine, and perhaps one that finds nothing left
    assert len(steps) <= 10 and len(loaded.model.fed) == 9
