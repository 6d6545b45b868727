"""A lock that is given in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class FairLock:
    """As `threading.Lock`, but first come, first served.

    That of Python goes to whoever runs when it is free: a thread that gives it back and takes it again at
    once, as one that makes forwards does, would keep it from all others.
    """

    def __init__(self) -> None:
        # Reentrant: the garbage collector may run inside these methods, and what it closes may ask for the
        # lock, without waiting, in the same thread. Wherever that is, it finds the lock held and changes
        # nothing, or free with nobody waiting and gives it back before it returns.
        self._inner = threading.RLock()
        self._held = False
        self._gates: deque[threading.Lock] = deque()  # of those who wait; each opens its own

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; without `blocking` only if nobody has it or waits for it. True if it was taken."""
        with self._inner:
            if not self._held:
                self._held = True
                return True
            if not blocking:
                return False
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
        try:
            gate.acquire()
        except BaseException:  # Ctrl-C, in the main thread
            self._give_up(gate)
            raise
        return True

    def _give_up(self, gate: threading.Lock) -> None:
        with self._inner:
            if gate in self._gates:
                self._gates.remove(gate)
                return
        self.release()  # it was given a moment ago

    def release(self) -> None:
        """Give it to whoever has waited longest."""
        with self._inner:
            if self._gates:
                self._gates.popleft().release()  # it stays held
            else:
                self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
