"""A lock that is given in the order in which it was asked for."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

import mars_core.fair_lock
from mars_core.fair_lock import FairLock


def wait_until(condition) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came")


def waiting_threads(lock: FairLock, served: list[int], count: int) -> list[threading.Thread]:
    """Threads that ask for the lock one after another."""
    threads = []
    for number in range(count):

        def serve(number: int = number) -> None:
            with lock:
                served.append(number)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        wait_until(lambda expected=number + 1: len(lock._gates) == expected)
    return threads


def test_those_who_wait_are_served_in_the_order_in_which_they_came():
    lock, served = FairLock(), []
    with lock:
        threads = waiting_threads(lock, served, 5)
    for thread in threads:
        thread.join(10)
    assert served == [0, 1, 2, 3, 4]


def test_a_thread_that_takes_it_again_at_once_lets_the_others_in_between():
    lock, served, turns = FairLock(), [], 0
    with lock:
        threads = waiting_threads(lock, served, 3)
    while len(served) < 3:
        with lock:
            turns += 1
    for thread in threads:
        thread.join(10)
    assert turns <= 3 + 1


def test_one_who_does_not_wait_gets_it_only_when_it_is_free():
    lock = FairLock()
    assert lock.acquire(blocking=False)
    assert not lock.acquire(blocking=False)
    lock.release()
    assert lock.acquire(blocking=False)


def test_one_who_gives_up_waiting_leaves_the_lock_to_the_next():
    lock, served = FairLock(), []
    with lock:
        impatient = threading.Lock()
        lock._gates.append(impatient)
        threads = waiting_threads_behind(lock, served)
        lock._give_up(impatient)
    threads.join(10)
    assert served == ["next"] and lock.acquire(blocking=False)


def waiting_threads_behind(lock: FairLock, served: list[str]) -> threading.Thread:
    def serve() -> None:
        with lock:
            served.append("next")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    wait_until(lambda: len(lock._gates) == 2)
    return thread


def test_one_who_gives_up_when_it_was_given_already_hands_it_on():
    lock = FairLock()
    lock.acquire()
    gate = threading.Lock()
    lock._give_up(gate)  # no gate of those who wait: it had been opened
    assert lock.acquire(blocking=False)


class Collector:
    """Does what the garbage collector may do at any point inside a lock's methods: it closes an iterator
    that asks for the lock without waiting."""

    def __init__(self, lock: FairLock) -> None:
        self.lock = lock
        self.taken: list[bool] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Collector | None:
        if frame.f_code.co_filename != mars_core.fair_lock.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.taken.append(self.lock.acquire(blocking=False))
            if self.taken[-1]:
                self.lock.release()
        return self

    def amid(self, work) -> None:
        """Do the work in a thread that is interrupted before every instruction of the lock's methods."""

        def run() -> None:
            sys.settrace(self)
            try:
                work()
            finally:
                sys.settrace(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "it waits for itself"


def test_the_collector_may_run_anywhere_inside_taking_and_giving_back_a_free_lock():
    lock, kept = FairLock(), []
    collector = Collector(lock)

    def work() -> None:
        lock.acquire()
        kept.append(not lock.acquire(blocking=False))
        lock.release()

    collector.amid(work)
    assert kept == [True]
    assert True in collector.taken and False in collector.taken, "before, and while it was held"
    assert lock.acquire(blocking=False), "nobody has it at the end"


def test_the_collector_may_run_anywhere_inside_giving_the_lock_to_those_who_wait():
    lock, served = FairLock(), []
    lock.acquire()
    threads = waiting_threads(lock, served, 3)
    collector = Collector(lock)
    collector.amid(lock.release)
    for thread in threads:
        thread.join(10)
    assert served == [0, 1, 2] and lock.acquire(blocking=False)


def test_the_collector_may_run_anywhere_inside_waiting_for_the_lock():
    lock, served = FairLock(), []
    lock.acquire()
    giver = threading.Thread(target=lambda: (wait_until(lambda: lock._gates), lock.release()), daemon=True)
    giver.start()
    collector = Collector(lock)

    def work() -> None:
        with lock:
            served.append("waited")

    collector.amid(work)
    assert served == ["waited"] and lock.acquire(blocking=False)


@pytest.mark.parametrize("given", [False, True])
def test_the_collector_may_run_anywhere_inside_giving_up(given):
    lock = FairLock()
    lock.acquire()
    gate = threading.Lock()
    if not given:
        lock._gates.append(gate)
    Collector(lock).amid(lambda: lock._give_up(gate))
    assert not lock._gates
    assert lock.acquire(blocking=False) == given, "it went on only where it had been given"
