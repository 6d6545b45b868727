"""A race on its way, and what is left of it: what the Compare tab draws from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mars_core import DecodeSettings, StepEvent

from .feed import Feed
from .race_result import LaneRun
from .race_track import LaneEvent


@dataclass
class Race:
    """One prompt, two lanes.

    Attributes:
        prompt: what was asked.
        ids: the prompt's tokens.
        settings: of each lane.
        feeds: of each lane's view.
        events: of each lane.
    """

    prompt: str
    ids: list[int]
    settings: list[DecodeSettings]
    feeds: list[Feed] = field(init=False)
    events: list[list[StepEvent]] = field(init=False)

    def __post_init__(self) -> None:
        self.feeds = [Feed(len(self.ids)) for _ in self.settings]
        self.events = [[] for _ in self.settings]

    def noted(self, events: Iterable[LaneEvent | None]) -> Iterator[LaneEvent | None]:
        """The same events, each kept on its way."""
        for item in events:
            if item is not None:
                self.events[item.lane].append(item.event)
            yield item

    def fail(self, sentence: str) -> None:
        """End the lanes that have not ended, with a word."""
        for settings, feed, events in zip(self.settings, self.feeds, self.events, strict=True):
            before = events[-1] if events else None
            if before is None or before.finish_reason is None:
                last = StepEvent.without_forward(before, settings.live_values(), "error", error=sentence)
                events.append(last)
                feed.push(last)

    @property
    def runs(self) -> list[LaneRun]:
        """The lanes as they were run."""
        return [
            LaneRun(settings, len(self.ids), tuple(events))
            for settings, events in zip(self.settings, self.events, strict=True)
        ]

    def swapped(self) -> Race:
        """The same race with its lanes in each other's place."""
        other = Race(self.prompt, self.ids, self.settings[::-1])
        for feed, kept, events in zip(other.feeds, other.events, self.events[::-1], strict=True):
            kept += events
            for event in events:
                feed.push(event)
        return other
