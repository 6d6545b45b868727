"""The conversation: a `gr.HTML` that draws messages as they are.

What a user typed shows character by character, whatever it contains; an answer shows as rendered
Markdown. Gradio's own chat component would read both as Markdown and HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mars_core.prompts import Message

from .markdown import to_html
from .token_view import FeedHTML, script


class Conversation(FeedHTML):
    """Messages of one visitor.

    Events: ``edit`` (data: ``index`` of a user's message, its new ``text``), ``retry``, ``taken`` (a question
    was added, and its answer has begun).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            conversation([], running=False),
            js_on_load=script("conversation.css", "common.js", "conversation.js"),
            **kwargs,
        )


def conversation(messages: Sequence[Message], *, running: bool, ending: str = "") -> dict[str, Any]:
    """The component's value.

    Args:
        messages: system messages are not shown.
        running: an answer to the last message is being written (the token view shows it).
        ending: how the last answer ended, in a sentence.
    """
    shown = [
        {"index": index, "role": message["role"], "text": message["content"]}
        | ({"html": to_html(message["content"])} if message["role"] == "assistant" else {})
        for index, message in enumerate(messages)
    ]
    return {"messages": shown, "running": running, "ending": ending}
