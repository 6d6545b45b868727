"""What a race is drawn with: a view for each lane, and the panel of its result and replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mars_core import StepEvent

from .feed import Feed, Message
from .race_result import (
    LaneRun,
    agreement,
    agreement_words,
    cell_of_token,
    clocks,
    headline,
    is_exact,
    measured,
    names_of,
    reference_first,
    was_turned,
    why,
)
from .token_view import FeedHTML, script

EMPTY = (
    "The same model answers twice: AR writes one token a forward, MARS several. The clock of a lane counts "
    "its own forwards only."
)
WAITING = "Other visitors' races are running. Yours begins when one of them ends."
RUNNING = "The lanes take turns, one forward each. The replay at the end shows both on their own clocks."
HANGING = "The race is stopped, but its last forward has not ended: another can begin when it has."
ROUNDING = (
    "At τ = 1 both lanes follow one rule: where they part, two tokens were as likely within the rounding of "
    "the numbers."
)
SAMPLED = "The texts are sampled (temperature above 0): where they part, it may be by chance."
TURNED = "A dial was turned during the race: the speeds are of the whole run."
CUT_SHORT = "A lane did not come to its end: answers are compared as far as both went."


class LaneView(FeedHTML):
    """A token view with the lane's own figures on top. What is announced of a race the panel says, once.

    Args:
        value: a message of `Feed`; None is the empty state.
        hint: what the empty view says.
        view_name: what assistive technology calls the view.
        view_height: CSS length; the view scrolls inside itself beyond it.
    """

    def __init__(
        self,
        value: Message | None = None,
        *,
        hint: str,
        view_name: str,
        view_height: str = "min(46vh, 25rem)",
        **kwargs: Any,
    ) -> None:
        self.hint, self.view_name, self.view_height = hint, view_name, view_height
        names = ("common.js", "token_text.js", "token_card.js", "token_view.js", "race_lane.js")
        super().__init__(
            value,
            js_on_load=script("token_view.css", *names),
            hint=hint,
            view_name=view_name,
            view_height=view_height,
            **kwargs,
        )


class RacePanel(FeedHTML):
    """Result and replay of a race. It marks and scrolls the lanes' views, which it finds by their ids.

    Args:
        value: of `race_state` or `race_result`.
        note: the honesty line.
    """

    def __init__(self, value: Message | None = None, *, note: str, **kwargs: Any) -> None:
        self.note = note
        super().__init__(
            value,
            js_on_load=script("race.css", "common.js", "race_replay.js", "race.js"),
            note=note,
            **kwargs,
        )


def race_state(state: str, words: str) -> Message:
    """The panel before a result: `empty` or `running`, and what to say of it."""
    return {"state": state, "words": words}


def race_result(runs: Sequence[LaneRun], feeds: Sequence[Feed], views: Sequence[str]) -> Message:
    """The panel at the end of a race.

    Args:
        runs: the lanes.
        feeds: what their views were drawn from.
        views: ids of the views.
    """
    reference, _ = reference_first(runs)
    names = names_of(runs)
    found = agreement(*(run.token_ids for run in runs), ended=all(run.ended for run in runs))
    parted = found.first_difference is not None
    notices = {
        ROUNDING: parted and all(is_exact(run) for run in runs),
        SAMPLED: parted and any(run.settings.temperature for run in runs),
        TURNED: any(was_turned(run) for run in runs),
        CUT_SHORT: not all(run.ended for run in runs),
    }
    lines = [measured(runs), why(runs), agreement_words(found, names[reference])]
    lines += [text for text, applies in notices.items() if applies]
    lines += [f"{name}: {run.error}" for run, name in zip(runs, names, strict=True) if run.error]
    return {
        "state": "done",
        "headline": headline(runs),
        "lines": [line for line in lines if line],
        "difference": _difference(runs, names, found.first_difference),
        "lanes": [_lane(*of_lane) for of_lane in zip(runs, names, feeds, views, strict=True)],
    }


def _lane(run: LaneRun, name: str, feed: Feed, view: str) -> Mapping[str, Any]:
    times, counts = clocks(run.events)
    return {"name": name, "view": view, "run": feed.run, "times": times, "counts": counts}


def _difference(runs: Sequence[LaneRun], names: Sequence[str], position: int | None) -> Message | None:
    """Where the answers part: the token's place from 1, and each lane's cell and token there."""
    if position is None:
        return None
    lanes = [
        {
            "name": name,
            "cell": cell_of_token(run.events, position),
            "label": _label(run.events, position),
        }
        for run, name in zip(runs, names, strict=True)
    ]
    return {"place": position + 1, "lanes": lanes}


def _label(events: Sequence[StepEvent], position: int) -> str | None:
    """The token by itself; None where the answer had ended."""
    labels = [choice.label for event in events for choice in event.committed]
    return labels[position] if position < len(labels) else None
