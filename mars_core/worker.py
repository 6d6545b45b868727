"""The thread that drives an engine for everybody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .errors import MarsError

logger = logging.getLogger(__name__)


class Worker:
    """Calls `step` as long as it says that there is more to do, then sleeps until it is woken.

    One thread for all forwards: PyTorch's CPU kernels keep a team of threads for each thread that calls
    them, and what each of those teams does disturbs the others.

    Args:
        step: does some work; returns whether there is more.
        fail: told, once, what ended the thread while requests may be waiting for it.
    """

    def __init__(self, step: Callable[[], bool], fail: Callable[[BaseException], None]) -> None:
        self._step, self._fail = step, fail
        self._work = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mars-engine", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There may be something to do."""
        self._work.set()

    def stop(self) -> None:
        """End the thread behind the step under way; what waits for it fails with a `MarsError`."""
        self._stopping = True
        self._work.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._work.wait()
            self._work.clear()
            try:
                while not self._stopping and self._step():
                    pass
            except BaseException as error:  # not a forward's, which reaches its rows: a fault of the engine
                logger.exception("The engine's thread failed in a step.")
                self._fail(error)
        self._fail(MarsError("The engine was stopped."))
