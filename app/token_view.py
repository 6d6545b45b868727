"""The token view: a `gr.HTML` that draws the messages of a `Feed`, and the base that its sisters share.

Gradio evaluates templates as JavaScript, so no text of a model or a user may reach one: templates here
are static, and the scripts build what they draw with `createElement` and `textContent` from the value.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from .feed import Message
from .without_stub import WithoutStub

ASSETS = Path(__file__).resolve().parent.parent / "assets"


@cache
def script(css: str, *names: str) -> str:
    """The files of `assets` as one `js_on_load`, the style sheet in it.

    The style sheet goes in by script, once per page: as `css_template` it would be parsed again at every
    update of every instance.
    """
    style = f"const STYLE = {json.dumps({'name': css, 'text': (ASSETS / css).read_text('utf-8')})};\n"
    sources = [(ASSETS / name).read_text("utf-8") for name in names]
    return '"use strict";\n' + style + "\n".join(sources)


class FeedHTML(gr.HTML, metaclass=WithoutStub):
    """A `gr.HTML` whose value is a message of `Feed`.

    It goes over the wire as one JSON string: Gradio sends the difference between two values of a stream,
    and between two deltas that would be longer than the delta; in the browser a string is not made into a
    tree of proxies. The scripts parse it.
    """

    def __init__(self, value: Message | None = None, *, js_on_load: str, **kwargs: Any) -> None:
        # The template must not mention the value; see the module's docstring.
        super().__init__(
            value,
            html_template='<div class="mars-part"></div>',
            js_on_load=js_on_load,
            apply_default_css=False,
            **kwargs,
        )

    def postprocess(self, value: Message | str | None) -> str | None:  # type: ignore[override]
        if value is None or isinstance(value, str):
            return value
        return json.dumps(self.part_of(value), ensure_ascii=False, separators=(",", ":"))

    def preprocess(self, payload: str | None) -> Message | None:  # type: ignore[override]
        return None if payload is None else json.loads(payload)

    def part_of(self, message: Message) -> Message:
        """The part of a message that this component draws."""
        return message

    def example_payload(self) -> Any:
        return None

    def example_value(self) -> Any:
        return None


class TokenView(FeedHTML):
    """The answer, token by token, grouped by forward.

    Args:
        value: a message of `Feed`; None is the empty state.
        hint: what the empty view says.
        view_name: what assistive technology calls the view; give each of several views its own.
        confidence: whether the confidence switch starts on.
        view_height: CSS length; the view scrolls inside itself beyond it ("none": it grows).
    """

    def __init__(
        self,
        value: Message | None = None,
        *,
        hint: str = "The answer appears here in the gulps the model writes it in: one box a forward pass.",
        view_name: str = "Answer, token by token",
        confidence: bool = False,
        view_height: str = "min(60vh, 34rem)",
        **kwargs: Any,
    ) -> None:
        self.hint, self.view_name = hint, view_name
        self.confidence, self.view_height = confidence, view_height
        super().__init__(
            value,
            js_on_load=script(
                "token_view.css", "common.js", "token_text.js", "token_card.js", "token_view.js"
            ),
            hint=hint,
            view_name=view_name,
            confidence=confidence,
            view_height=view_height,
            **kwargs,
        )
