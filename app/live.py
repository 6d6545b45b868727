"""Running generations of the page's sessions, and their settings that the page may change.

One handle per session. Whatever turns a dial asks here by session, never through a global: one visitor's
Stop must not end another's answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mars_core import LiveSettings, LiveValues


@dataclass
class Running:
    """A generation: its dial, whether its answer is still wanted, and a flag for when all of it is out."""

    live: LiveSettings
    discarded: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class LiveRegistry:
    """Sessions -> the generation each has running."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()

    @contextmanager
    def running(self, session: str, values: LiveValues) -> Iterator[Running]:
        """A generation of this session, from before its first update until after its last.

        One of the same session that is still running is cancelled and its answer discarded: a session has
        one.
        """
        entry = Running(LiveSettings(values))
        with self._lock:
            previous = self._running.get(session)
            self._running[session] = entry
        if previous is not None:
            previous.discarded = True
            previous.live.cancel()
        try:
            yield entry
        finally:
            entry.ended.set()
            with self._lock:
                if self._running.get(session) is entry:
                    del self._running[session]

    def update(self, session: str, **changes: Any) -> None:
        """Turn the dial of what this session has running; nothing where nothing runs."""
        if entry := self._running.get(session):
            entry.live.update(**changes)

    def cancel(self, session: str, wait_s: float = 0.0, *, discard: bool = False) -> bool:
        """Stop what this session has running, and wait until the last of it is out; False if it is not by
        then.

        With `discard` the conversation it belongs to is gone: it must not write its answer there.
        """
        if entry := self._running.get(session):
            entry.discarded = entry.discarded or discard
            entry.live.cancel()
            return entry.ended.wait(wait_s)
        return True

    def is_running(self, session: str) -> bool:
        """True while an answer of this session is being written."""
        return session in self._running

    @property
    def sessions(self) -> list[str]:
        """Sessions with a generation running."""
        return list(self._running)
