"""The components of the Replay tab: the chooser of a run, the view with its scrubber, and a lane of a branch.

Static templates, drawn by script from JSON, as in token_view.py: a trace may come from anywhere, and none of
its text ever reaches a template.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mars_core.traces import MAX_BYTES

from .feed import Message
from .replay_recorded import RecordedRun
from .token_view import ASSETS, FeedHTML, script

_TOKEN_VIEW = ("common.js", "token_text.js", "token_card.js", "token_view.js")


def _with_style(source: str, *names: str) -> str:
    """A script, then the style sheet of this tab and the scripts that need both."""
    style = {"name": "replay.css", "text": (ASSETS / "replay.css").read_text("utf-8")}
    parts = [(ASSETS / name).read_text("utf-8") for name in names]
    return "\n".join([source, f"installStyle({json.dumps(style)});", *parts])


class TraceChooser(FeedHTML):
    """Recorded runs to pick from, and a place for a trace file, which the browser itself reads.

    Value: ``{"chosen": name or None, "error": sentence or ""}``.
    Events: ``pick`` (data: ``name`` of a recorded run), ``open`` (data: ``name`` of the file, its ``text``).

    Args:
        runs: the recorded runs.
    """

    def __init__(self, runs: Sequence[RecordedRun] = (), **kwargs: Any) -> None:
        super().__init__(
            chosen(None),
            js_on_load=script("replay.css", "common.js", "replay_chooser.js"),
            cards=json.dumps([run.card() for run in runs], ensure_ascii=False),
            max_bytes=MAX_BYTES,
            **kwargs,
        )


def chosen(name: str | None, error: str = "") -> Message:
    """The chooser's value: which run is shown, or why a file is not."""
    return {"chosen": name, "error": error}


class ReplayView(FeedHTML):
    """The token view with a scrubber through the forwards, and what the chosen forward did.

    Value: a message of `replay_steps.replay_message`; None is the empty state.
    Event: ``branch`` (data: ``step``, ``place`` and ``id`` of a token; id None keeps what stands before the
    step alone).
    """

    def __init__(self, value: Message | None = None, **kwargs: Any) -> None:
        super().__init__(
            value,
            js_on_load=_with_style(script("token_view.css", *_TOKEN_VIEW), "replay_step.js", "replay.js"),
            hint="Choose a run above.",
            view_name="Recorded answer, token by token",
            view_height="none",
            **kwargs,
        )


class LaneView(FeedHTML):
    """An answer token by token under a heading, the first token where it parts from another one marked.

    Value: a message of `Feed` with ``lane``: ``{"title": …, "mark": number of a token or None, "note": …}``.

    Args:
        view_name: what assistive technology calls it.
    """

    def __init__(self, value: Message | None = None, *, view_name: str, **kwargs: Any) -> None:
        self.view_name = view_name
        super().__init__(
            value,
            js_on_load=_with_style(script("token_view.css", *_TOKEN_VIEW), "replay_lane.js"),
            hint="",
            view_name=view_name,
            view_height="min(60vh, 34rem)",
            **kwargs,
        )
