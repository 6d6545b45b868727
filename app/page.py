"""The page put together. The only file that knows every tab."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import gradio as gr

from mars_core import Engine, LoadedModel

from .baseline import OneTokenBaseline
from .chat import ChatTab
from .honesty import dtype_name
from .live import LiveRegistry

ASSETS = Path(__file__).resolve().parent.parent / "assets"
TITLE = "MARS: several tokens a forward"
CACHE_LIFE_S = 3600
QUEUE_SIZE = 64


def build_page(engine: Engine, registry: LiveRegistry, baseline: OneTokenBaseline) -> gr.Blocks:
    """The whole page for one loaded model."""
    with gr.Blocks(
        title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(CACHE_LIFE_S, CACHE_LIFE_S)
    ) as demo:
        gr.HTML(_header(engine.loaded), elem_id="header", apply_default_css=False)
        chat = ChatTab(engine, registry, baseline)
        chat.connect(demo)
    demo.queue(max_size=QUEUE_SIZE, default_concurrency_limit=8)
    return demo


def launch_options() -> dict[str, Any]:
    """How the page wants to be launched, for `Blocks.launch`."""
    # no part of the page takes a file
    return {"theme": theme(), "head": head(), "footer_links": [], "max_file_size": 1}


def theme() -> gr.themes.Base:
    """Quiet, system fonts (nothing is fetched), and a contrast of 4.5 or more for every text."""
    look = gr.themes.Default(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    )
    return look.set(
        body_text_color_subdued="#5a6474",
        button_primary_background_fill="#2563c4",
        button_primary_background_fill_hover="#1f5fb8",
        button_cancel_background_fill="#c62828",
        button_cancel_background_fill_hover="#a61f1f",
    )


def head() -> str:
    """The page's style sheet and script, for the document's head.

    Not through Gradio's `css`: it rewrites every selector, and breaks those with a comma in brackets.
    """
    style, script = ((ASSETS / name).read_text("utf-8") for name in ("page.css", "page.js"))
    return f"<style>{style}</style><script>{script}</script>"


def _header(loaded: LoadedModel) -> str:
    """Model and device, and what a person must know about them. Names come from outside: escaped."""
    where = f"{loaded.device} · {dtype_name(loaded)}"
    notices = "".join(f"<p>{_escape(notice)}</p>" for notice in loaded.notices)
    return (
        "<h1>MARS</h1><p class='what'>A language model that writes several tokens in one forward pass. "
        "Each box in an answer is one forward; the more tokens in it, the fewer forwards the answer took. "
        "<a href='https://arxiv.org/abs/2604.07023' target='_blank' rel='noopener'>Paper</a></p>"
        f"<p class='model'><b>{_escape(loaded.name)}</b><span>{_escape(where)}</span></p>"
        + (f"<div class='notices' role='note'>{notices}</div>" if notices else "")
    )


def _escape(text: str) -> str:
    """Text as it is, through Gradio's template too: that reads ``${…}``, ``{{…}}`` and backticks."""
    escaped = html.escape(text)
    for character in "${}`\\":
        escaped = escaped.replace(character, f"&#{ord(character)};")
    return escaped
