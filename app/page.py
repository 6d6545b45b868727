"""The page put together. The only file that knows every tab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from mars_core import Engine, LoadedModel, Trace

from .about import AboutTab
from .baseline import OneTokenBaseline
from .chat import ChatTab
from .compare import CompareTab
from .compression import CompressedPage
from .escaped import escaped
from .explore import ExploreTab
from .honesty import dtype_name
from .kept import connect_kept
from .live import LiveRegistry
from .notices import info
from .replay import ReplayTab

ASSETS = Path(__file__).resolve().parent.parent / "assets"
TITLE = "MARS: several tokens a forward"
WHAT = (
    "A language model writes one token (a word, or a piece of one) with each forward pass through its "
    "network. This one writes several where it is sure: a box in its answer is what one forward wrote at "
    "once."
)
CACHE_LIFE_S = 3600
QUEUE_SIZE = 64
# What components of a visitor's page last held is kept on the server until newer visitors take its place.
SESSIONS_KEPT = 200


def build_page(
    engine: Engine | None, registry: LiveRegistry, baseline: OneTokenBaseline, trouble: str = ""
) -> gr.Blocks:
    """The whole page.

    Args:
        engine: of the loaded model; None for a page of recorded runs.
        trouble: why there is no model, and what mends it, where one was wanted.
    """
    with gr.Blocks(
        title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(CACHE_LIFE_S, CACHE_LIFE_S)
    ) as demo:
        loaded = engine.loaded if engine else None
        gr.HTML(_header(loaded, trouble), elem_id="header", apply_default_css=False)
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            written = _WrittenTabs(engine, registry, baseline) if engine else None
            with _tab("Replay"):
                replay = ReplayTab(engine, registry)
            with _tab("About"):
                about = AboutTab(loaded)
        replay.connect(demo)
        if written:
            written.connect(demo)
            _connect_replay(written.chat, replay, tabs)
        about.connect(demo)
    demo.queue(max_size=QUEUE_SIZE, default_concurrency_limit=8)
    return demo


class _WrittenTabs:
    """The tabs that a model writes in, and what they give each other."""

    def __init__(self, engine: Engine, registry: LiveRegistry, baseline: OneTokenBaseline) -> None:
        self.registry = registry
        with _tab("Chat"):
            self.chat = ChatTab(engine, registry, baseline)
        with _tab("Compare"):
            self.compare = CompareTab(engine, registry, baseline)
        with _tab("Explore"):
            self.explore = ExploreTab(engine, registry)

    def connect(self, demo: gr.Blocks) -> None:
        """Wire everything up."""
        for tab in (self.chat, self.compare, self.explore):
            tab.connect(demo)
        connect_kept(demo, self.chat.messages, self.chat.conversation, self.chat.box, self.registry)
        self.explore.connect_dial(self.chat.dial)
        self.explore.use_run(self.chat.trace)


def _connect_replay(chat: ChatTab, replay: ReplayTab, tabs: gr.Tabs) -> None:
    """A button of the chat opens its last run in the Replay tab."""

    def open_run(trace: Trace | None, request: gr.Request) -> dict[Any, Any]:
        if trace is None:
            info("There is no answer to step through yet.")
            return {tabs: gr.skip()}
        return replay.open_trace(trace, request) | {tabs: gr.Tabs(selected="replay")}

    chat.replay.click(
        open_run,
        chat.trace,
        [tabs, *replay.shown],
        concurrency_limit=None,  # in the queue: a word to the visitor reaches the browser only from there
        show_progress="hidden",
        api_visibility="private",
    )


def _tab(name: str) -> gr.Tab:
    """A tab that a link opens (``?tab=chat``, ``#chat``); what is in it is drawn when it is first opened."""
    return gr.Tab(name, id=name.lower(), elem_id=f"tab-{name.lower()}")


def launch_options() -> dict[str, Any]:
    """How the page wants to be launched, for `Blocks.launch`."""
    return {
        "theme": theme(),
        "head": head(),
        "footer_links": [],
        "state_session_capacity": SESSIONS_KEPT,
        "max_file_size": 1,  # what a visitor opens is read in the browser: no part of the page takes a file
        "app_kwargs": {"middleware": [Middleware(CompressedPage)]},
    }


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
    style, tabs, script = ((ASSETS / name).read_text("utf-8") for name in ("page.css", "tabs.js", "page.js"))
    return f"<style>{style}</style><script>{tabs}</script><script>{script}</script>"


def _header(loaded: LoadedModel | None, trouble: str) -> str:
    """What the page is; model and device, and what a person must know about them."""
    notices: Sequence[str] = loaded.notices if loaded else [trouble] if trouble else []
    where = f"{loaded.device} · {dtype_name(loaded)}" if loaded else "recorded runs only"
    name = loaded.name if loaded else "No model"
    shown = "".join(f"<p>{escaped(notice)}</p>" for notice in notices)
    return (
        f"<h1>MARS</h1><p class='what'>{WHAT}</p><a href='#about'>How it works</a>"
        f"<p class='model'><b>{escaped(name)}</b><span>{escaped(where)}</span></p>"
        + (f"<div class='notices' role='note'>{shown}</div>" if shown else "")
    )
