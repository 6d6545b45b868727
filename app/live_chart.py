"""The live chart: tokens of each forward as bars, τ as a line on the same x."""

from __future__ import annotations

from typing import Any

from .feed import Message
from .token_view import FeedHTML, script


class LiveChart(FeedHTML):
    """Bars and τ over the last forwards of a run.

    Args:
        value: a message of `Feed`; None is the empty state.
        chart_height: in CSS pixels.
    """

    def __init__(self, value: Message | None = None, *, chart_height: int = 190, **kwargs: Any) -> None:
        self.chart_height = chart_height
        super().__init__(
            value,
            js_on_load=script("figures.css", "common.js", "live_chart.js"),
            chart_height=chart_height,
            **kwargs,
        )

    def part_of(self, message: Message) -> Message:
        """No text: the chart draws counts and τ."""
        slim = [{key: event[key] for key in ("i", "n", "t", "m", "b")} for event in message["events"]]
        return {**message, "events": slim, "ghosts": [], "waiting": []}
