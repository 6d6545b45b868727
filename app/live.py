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
class _Running:
    live: LiveSettings
    ended: threading.Event = field(default_factory=threading.Event)


class LiveRegistry:
    """Sessions -> the generation each has running."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()

    @contextmanager
    def running(self, session: str, values: LiveValues) -> Iterator[LiveSettings]:
        """The handle for a generation of this session, for as long as it runs.

        A generation of the same session that is still running is cancelled: a session has one.
        """
        entry = _Running(LiveSettings(values))
        with self._lock:
            previous = self._running.get(session)
            self._running[session] = entry
        if previous is not None:
            previous.live.cancel()
        try:
            yield entry.live
        finally:
            entry.ended.set()
            with self._lock:
                if self._running.get(session) is entry:
                    del self._running[session]

    def update(self, session: str, **changes: Any) -> None:
        """Turn the dial of what this session has running; nothing where nothing runs."""
        if entry := self._running.get(session):
            entry.live.update(**changes)

    def cancel(self, session: str, wait_s: float = 0.0) -> None:
        """Stop what this session has running, and wait until its last figures are out."""
        if entry := self._running.get(session):
            entry.live.cancel()
            entry.ended.wait(wait_s)

    @property
    def sessions(self) -> list[str]:
        """Sessions with a generation running."""
        return list(self._running)
