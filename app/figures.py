"""The live figures: what a run measured, each with its unit, and the line that says how."""

from __future__ import annotations

from typing import Any

from .feed import Message
from .token_view import FeedHTML, script


class Figures(FeedHTML):
    """Tokens per forward, speed, counts, time to first token, and the honesty line.

    Args:
        value: a message of `Feed`; None is the empty state.
        note: the honesty line until a message brings its own.
    """

    def __init__(self, value: Message | None = None, *, note: str = "", **kwargs: Any) -> None:
        self.note = note
        super().__init__(
            value, js_on_load=script("figures.css", "common.js", "figures.js"), note=note, **kwargs
        )

    def part_of(self, message: Message) -> Message:
        """The figures alone."""
        return {**message, "events": [], "ghosts": [], "waiting": []}
