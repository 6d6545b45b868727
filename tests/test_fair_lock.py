"""A lock that is given in the order in which it was asked for."""

from __future__ import annotations

import threading
import time

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
