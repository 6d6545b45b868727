"""Text as HTML that Gradio's templates leave alone."""

from __future__ import annotations

import html


def escaped(text: str) -> str:
    """`text` as it is, through Gradio's template too: that reads ``${…}``, ``{{…}}`` and backticks."""
    safe = html.escape(text)
    for character in "${}`\\":
        safe = safe.replace(character, f"&#{ord(character)};")
    return safe
