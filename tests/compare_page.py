"""A page with the Compare tab and another one, served for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import gradio as gr

from app.baseline import OneTokenBaseline
from app.compare import CompareTab
from app.live import LiveRegistry
from app.page import launch_options
from mars_core import Engine, LoadedModel
from mars_core.planner import NOMINAL_COSTS
from tests.browser import open_page, open_part, serving, wait_drawn


@contextmanager
def served(loaded: LoadedModel) -> Iterator[SimpleNamespace]:
    """The page for a model: its `url`, `engine`, `registry`, `baseline` and the tab."""
    engine, registry = Engine(loaded, costs=lambda: NOMINAL_COSTS), LiveRegistry()
    baseline = OneTokenBaseline()
    with gr.Blocks(analytics_enabled=False, fill_width=True) as demo:
        with gr.Tabs():
            with gr.Tab("Compare"):
                tab = CompareTab(engine, registry, baseline)
            with gr.Tab("Another"):
                gr.Markdown("Something else.")
        tab.connect(demo)
    demo.queue(max_size=16)
    engine.start_worker()  # as the app does
    try:
        with serving(demo, **launch_options()) as url:
            yield SimpleNamespace(url=url, engine=engine, registry=registry, baseline=baseline, tab=tab)
    finally:
        tab.track.stop()
        engine.stop_worker()


@contextmanager
def compare(browser: Any, app: SimpleNamespace, *, max_new_tokens: int | None = None, **options: Any):
    """A visitor's page, ready to type in."""
    with open_page(browser, app.url, **options) as page:
        wait_drawn(page, "#compare[data-state]")
        page.wait_for_selector("#compare-box textarea:not([disabled])")
        if max_new_tokens is not None:
            set_max_new_tokens(page, max_new_tokens)
        yield page


def set_max_new_tokens(page: Any, number: int) -> None:
    """Set the slider under *Settings of both lanes*."""
    open_part(page, "Settings of both lanes")
    field = page.locator("#compare-shared input[type=number]").first
    slider = page.locator("#compare-shared input[type=range]").first
    for _ in range(20):  # what is typed before the opened part listens is lost
        field.fill(str(number))
        field.press("Tab")
        page.wait_for_timeout(100)
        if slider.input_value() == str(number):
            return
    raise AssertionError(f"The slider stayed at {slider.input_value()}.")


def race(page: Any, text: str) -> None:
    """Type a question and start the race by keyboard."""
    page.fill("#compare-box textarea", text)
    page.press("#compare-box textarea", "Enter")


def wait_result(page: Any, timeout_s: float = 120) -> list[str]:
    """Wait until the race is over; the answers of both lanes, character by character."""
    wait_drawn(page, "#compare[data-state=done]", timeout=timeout_s * 1000)
    return [shown_text(page, side) for side in ("left", "right")]


def shown_text(page: Any, side: str) -> str:
    """The answer in a lane's view."""
    return page.evaluate(f"document.querySelector('#compare-{side} .mars-text').textContent")
