"""Events of a race -> messages for the views of its lanes, merged into one stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from .feed import UPDATE_INTERVAL_S, Feed, Message
from .race_track import LaneEvent

LaneMessages = dict[int, Message]  # lane -> what its view is sent


def race_messages(
    events: Iterable[LaneEvent | None],
    feeds: Sequence[Feed],
    interval_s: float = UPDATE_INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[LaneMessages]:
    """Run a race's events through its lanes' feeds: the resets at once; then, at most once an interval, what
    is new of either lane; the final message of a lane as soon as it has ended. Empty where nothing happened
    for a while.

    Args:
        events: of the race; None while it waits for its turn.
        feeds: one for each lane, nothing pushed yet.
        interval_s: seconds between two messages, at least.
        clock: tells the seconds.
    """
    yield {lane: feed.snapshot() for lane, feed in enumerate(feeds)}
    ended, finished = set[int](), set[int]()

    def news() -> LaneMessages:
        found: LaneMessages = {}
        for lane, feed in enumerate(feeds):
            if lane in ended - finished:
                found[lane] = feed.final()
                finished.add(lane)
            elif lane not in finished and (message := feed.take()):
                found[lane] = message
        return found

    due = clock() + interval_s
    for item in events:
        if item is None:
            yield {}
            continue
        feeds[item.lane].push(item.event)
        if item.event.finish_reason:
            ended.add(item.lane)
        if clock() >= due and (messages := news()):
            yield messages
            due = clock() + interval_s
    ended.update(range(len(feeds)))
    if messages := news():
        yield messages
