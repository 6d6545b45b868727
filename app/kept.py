"""The conversation over a reload of the page: kept in the browser tab's own storage, never on the server.

The conversation's script puts it there (assets/conversation.js). The storage belongs to one tab, so that tabs
cannot overwrite each other's. A question whose answer was being written stands in the box again.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from mars_core.prompts import Message

from .conversation import Conversation, conversation
from .live import LiveRegistry

MOST_MESSAGES = 2000
MOST_CHARACTERS = 600_000
ROLES = ("user", "assistant")

# The stored text stands in for the component's value; what is damaged is as good as nothing.
READ_SCRIPT = """(value, messages) => {
  try {
    const kept = sessionStorage.getItem('mars-conversation');
    JSON.parse(kept);
    return [kept ?? value, messages];
  } catch {
    return [value, messages];
  }
}"""


def connect_kept(
    demo: gr.Blocks, messages: gr.State, shown: Conversation, box: gr.Textbox, registry: LiveRegistry
) -> None:
    """Bring back, when the page is loaded, what the tab kept.

    Args:
        messages: the state that the conversation's events read.
        shown: the component that draws it.
        box: where the next question is typed.
        registry: a session that already writes an answer keeps what it has.
    """

    def restore(value: Any, begun: list[Message] | None, request: gr.Request) -> list[Any]:
        kept = kept_messages(value)
        if not kept or begun or registry.is_running(request.session_hash or ""):
            return [gr.skip()] * 3
        question: Any = gr.skip()
        if kept[-1]["role"] == "user":
            asked = kept.pop()["content"]
            # what a link asks has come after it
            question = gr.skip() if "prompt" in request.query_params else asked
        return [kept, conversation(kept, running=False), question]

    demo.load(
        restore,
        [shown, messages],
        [messages, shown, box],
        js=READ_SCRIPT,
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )


def kept_messages(value: Any) -> list[Message]:
    """What a browser sent, as messages; none where it is not what the page keeps."""
    items = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(items, list) or len(items) > MOST_MESSAGES:
        return []
    if not all(_is_message(item) for item in items):
        return []
    if sum(len(item["text"]) for item in items) > MOST_CHARACTERS:
        return []
    return [{"role": item["role"], "content": item["text"]} for item in items]


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") in ROLES and isinstance(item.get("text"), str)
