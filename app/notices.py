"""Toasts: Gradio shows their text as HTML, and what a visitor typed or a link carried may be in it."""

from __future__ import annotations

import html

import gradio as gr

LONGEST = 300
HANGING = (
    "Stopped, but the model is still busy with a last forward: another answer can begin when it has ended."
)


def plain(text: str) -> str:
    """The text as it shows character by character, cut where it is too long to read."""
    return html.escape(text if len(text) <= LONGEST else f"{text[:LONGEST]} …")


def info(text: str) -> None:
    """Something to know."""
    gr.Info(plain(text))


def warn(text: str) -> None:
    """Something did not happen."""
    gr.Warning(plain(text))


def fault(text: str) -> gr.Error:
    """An error to raise from a listener that has nothing else to show."""
    return gr.Error(plain(text), print_exception=False)
