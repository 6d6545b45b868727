"""A page with the Explore tab and the dial, served for a test, and what a person does there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import gradio as gr

from app.dial import Dial
from app.explore import ExploreTab
from app.live import LiveRegistry
from app.page import launch_options
from mars_core import Engine
from mars_core.planner import NOMINAL_COSTS
from tests.browser import open_page, serving, wait_drawn

LONG_MS = 120_000  # for what depends on how busy the machine is


@contextmanager
def served(loaded: Any) -> Iterator[SimpleNamespace]:
    """The tab beside a dial, as on the page."""
    engine, registry = Engine(loaded, costs=lambda: NOMINAL_COSTS), LiveRegistry()
    with gr.Blocks(analytics_enabled=False) as demo:
        with gr.Tab("Explore"):
            tab = ExploreTab(engine, registry)
        with gr.Tab("Chat"):
            dial = Dial(loaded, registry)
        tab.connect(demo)
        tab.connect_dial(dial)
        tab.use_run(gr.State(None))
    demo.queue(max_size=8)
    engine.start_worker()  # as the app does
    try:
        with serving(demo, **launch_options()) as url:
            yield SimpleNamespace(url=url, engine=engine, registry=registry)
    finally:
        engine.stop_worker()


@contextmanager
def explore(browser: Any, app: SimpleNamespace, *, thresholds: str = "0.1", **options: Any) -> Iterator[Any]:
    """A visitor's page with a small grid filled in: one prompt, no verification."""
    with open_page(browser, app.url, **options) as page:
        page.set_default_timeout(LONG_MS)
        # the sentence comes from the server: from then on every listener is there
        page.wait_for_function("document.querySelector('#explore-work')?.textContent.includes('answers')")
        page.fill("#explore-how-many input[type=number]", "1")
        page.keyboard.press("Tab")
        page.get_by_label("Thresholds τ").fill(thresholds)
        page.get_by_label("without").check()
        settings = f"{len(thresholds.split()) + 1} settings"
        page.wait_for_function(
            "words => document.querySelector('#explore-work').textContent.includes(words)",
            arg=f"{settings} (AR among them) × 1 prompt =",
        )
        yield page


def run(page: Any) -> None:
    page.click("#explore-start")
    wait_drawn(page, ".explore-progress[data-state=done]")
    page.wait_for_selector("#explore-calibration .js-plotly-plot")
