"""A run as one file that needs nothing else: a page that replays it (`html_replay`), and a picture of its
tokens (`svg_portrait`)."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Any

from mars_core.events import Trace

from .feed import Feed
from .portrait_facts import facts, title_of
from .portrait_svg import svg_portrait
from .token_view import ASSETS

__all__ = ["html_replay", "svg_portrait"]

MOST_BYTES = 6_000_000  # of the forwards' data; about 10,000 tokens
MOST_PROMPT = 100_000  # characters


def html_replay(trace: Trace) -> str:
    """One self-contained HTML document that replays the run at its own clock: no network, no model.

    All that comes from the run is in one JSON block, and the script makes elements of it with
    `createElement` and `textContent`; the document's policy lets no other script run. Where the run is longer
    than `MOST_BYTES` hold, the document says how much of it is there.
    """
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<title>Recorded MARS run</title>\n'
        f'<style id="mars-style-portrait">{style}</style>\n</head>\n<body>\n'
        f"{(ASSETS / 'portrait.html').read_text('utf-8')}"
        f'<script type="application/json" id="run">{_embedded(_data(trace))}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _data(trace: Trace) -> dict[str, Any]:
    """What the document's script draws from."""
    steps, done = _steps(trace)
    num_forwards = len(trace.events)
    notice = None
    if len(steps) < num_forwards:
        notice = (
            f"This run is too long for one page: it holds the first {len(steps):,} of {num_forwards:,} "
            "forwards. The saved trace has them all."
        )
    return {
        "title": title_of(trace),
        "prompt": _prompt(trace),
        "facts": facts(trace),
        "steps": steps,
        "done": None if notice else done,
        "notice": notice,
    }


def _steps(trace: Trace) -> tuple[list[dict[str, Any]], Any]:
    """For each forward, as far as they fit: seconds since the request, the forward as the token view knows
    it, what stands after it that is not committed; and how the run ended."""
    feed = Feed(len(trace.prompt_ids))
    steps: list[dict[str, Any]] = []
    size = 0
    for event in trace.events:
        feed.push(event)
        message = feed.take() or {}
        ghosts = [{key: ghost[key] for key in ghost if key != "a"} for ghost in message["ghosts"]]
        step = {
            "t": round(event.elapsed, 4),
            "e": message["events"][-1],
            "g": ghosts,
            "w": message["waiting"],
        }
        size += len(json.dumps(step))
        if size > MOST_BYTES:
            break
        steps.append(step)
    return steps, feed.final()["done"]


def _prompt(trace: Trace) -> list[dict[str, str]]:
    left, messages = MOST_PROMPT, []
    for message in reversed(trace.prompt):  # the last question matters most
        text = message["content"]
        shown = text if len(text) <= left else f"{text[:left]} … (cut)"
        messages.append({"role": message["role"], "content": shown})
        left = max(0, left - len(text))
    return messages[::-1]


def _embedded(data: Any) -> str:
    """JSON that an HTML parser cannot mistake for anything: ASCII without <, > and &."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _style() -> str:
    return "\n".join(_asset(name) for name in ("token_view.css", "figures.css", "portrait.css"))


@cache
def _script() -> str:
    """The page's own token view and live chart, each in a function, and what plays the run to them."""
    view = _part("tokenView", "token_text.js", "token_card.js", "token_view.js")
    return "\n".join(['"use strict";', view, _part("liveChart", "live_chart.js"), _asset("portrait.js")])


def _part(name: str, *assets: str) -> str:
    # the style sheet stands in the head under the name that `installStyle` looks for
    sources = ['const STYLE = { name: "portrait", text: "" };', *map(_asset, ("common.js", *assets))]
    return f"function {name}(element, props, watch) {{\n" + "\n".join(sources) + "\n}"


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")
