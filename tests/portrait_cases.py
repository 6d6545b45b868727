"""Runs to make portraits of, and texts that break documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mars_core.events import StepEvent, Trace
from tests.scripted_events import answer

HOSTILE = {
    "ends a script": "</script><script>document.title='evil'</script> end",
    "a comment": "<!-- <script> --> ]]> <![CDATA[ x ]]> <?xml version='1.0'?>",
    "templates": "`${document.title='evil'}` {{value}} <%= x %> \\u003c \\' \" '",
    "an image": '<img src="http://evil.invalid/x.png" onerror="document.title=\'evil\'"> &lt; &amp; &#60;',
    "control characters": "a\x00b\x01c\x08d\x0be\x1bf\x7fg\x85h\u2028i\u2029j\ufffek\uffffl",
    "line ends": "one\r\ntwo\rthree\n\n\tfour\n",
    "half a character": "a\ud83db\udc00c",
    "CJK": "你好,世界!这是一个很长的句子,用来看看换行是否正确。" * 4,
    "emoji": "family 👨‍👩‍👧‍👦 flag 🇩🇪 thumb 👍🏽 heart ❤️ end",
    "right to left": "Hebrew: שלום עולם, then English.\nمرحبا بالعالم هذا نص طويل",
    "marks": "e\u0301a\u0308 क्षि हिन्दी Z\u0351\u036b\u0343",
    "one long word": "y" * 400,
    "spaces": "  two  spaces   and\u00a0no-break\u200bzero ",
}


def trace_of(text: str | Sequence[str], events: Sequence[StepEvent] | None = None, **changes: Any) -> Trace:
    """A recorded run that wrote `text` to a question that holds it too."""
    question = text if isinstance(text, str) else "".join(text)
    fields: dict[str, Any] = {
        "prompt": ({"role": "user", "content": f"Say: {question}"},),
        "prompt_ids": (1, 2, 3),
        "settings": {"mode": "mars", "temperature": 0.0, "seed": None},
        "model": {"name": "scripted", "device": "cpu", "dtype": "float32", "attention": "sdpa"},
        "events": tuple(answer(text) if events is None else events),
    }
    return Trace(**(fields | changes))
