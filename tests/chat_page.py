"""The real page, served for a test, and what a person does on it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import TimeoutError

from app.baseline import OneTokenBaseline
from app.live import LiveRegistry
from app.page import build_page, launch_options
from mars_core import Engine, LiveValues, LoadedModel
from mars_core.planner import NOMINAL_COSTS
from tests.browser import open_page, serving, wait_drawn


@contextmanager
def served(loaded: LoadedModel) -> Iterator[SimpleNamespace]:
    """The page for a model: its `url`, `engine` and `registry`."""
    engine, registry = Engine(loaded, costs=lambda: NOMINAL_COSTS), LiveRegistry()
    demo = build_page(engine, registry, OneTokenBaseline())
    engine.start_worker()  # as the app does
    try:
        with serving(demo, **launch_options()) as url:
            yield SimpleNamespace(url=url, engine=engine, registry=registry, demo=demo)
    finally:
        engine.stop_worker()


@contextmanager
def chat(browser: Any, app: SimpleNamespace, *, link: dict[str, Any] | None = None, **options: Any):
    """A visitor's page, ready to type in; `link` is what a copied link carries."""
    url = app.url + (f"?{urlencode(link)}&" if link else "")
    with open_page(browser, url, **options) as page:
        wait_drawn(page, "#thread[data-state][data-ready]")
        page.wait_for_selector("#box textarea:not([disabled])")
        yield page


def running(app: SimpleNamespace) -> list[LiveValues]:
    """The settings of what is being written, for whomever, as they are now."""
    return [entry.live.read() for entry in list(app.registry._running.values())]


def ask(page: Any, text: str) -> None:
    """Type a question and send it by keyboard."""
    before = page.get_attribute("#thread", "data-messages")
    page.fill("#box textarea", text)
    for _ in range(10):  # right after an answer its listener may still be busy, and then takes nothing
        page.press("#box textarea", "Enter")
        try:
            # a small model may have answered before its first state is drawn
            page.wait_for_selector(f"#thread:not([data-messages='{before}'])", timeout=3000)
        except TimeoutError:
            continue
        return
    raise AssertionError("The question was never taken.")


def wait_written(page: Any, letters: int = 1) -> None:
    """Wait until more is written than so many letters: one stopped before its first has no answer."""
    page.wait_for_function(
        # a view that is not running still shows the answer before
        """letters => (document.querySelector('#token-view .mars-view[data-state=running] .mars-text')
            ?.textContent.length ?? 0) > letters""",
        arg=letters,
    )


def wait_answer(page: Any, timeout_s: float = 120) -> str:
    """Wait until the answer is complete; the text of the token view."""
    wait_drawn(page, "#thread[data-state=answered]", timeout=timeout_s * 1000)
    return shown_text(page)


def ask_and_stop(page: Any, text: str) -> None:
    """A question whose answer is stopped once something is written: room is left to go on from it."""
    ask(page, text)
    wait_written(page, 5)
    page.click("#stop")
    wait_answer(page)


def branch_off(page: Any) -> None:
    """Open the last answer in Replay, and begin a branch of it there."""
    page.click("#chat-replay")
    page.wait_for_selector(".mars-branch-go:not([disabled])")
    page.click(".mars-branch-go")
    page.wait_for_selector("#replay-stop", state="visible")


def shown_text(page: Any) -> str:
    """The answer in the token view, character by character."""
    return page.evaluate("document.querySelector('#token-view .mars-text').textContent")


def trace_of(page: Any, folder: Path) -> dict[str, Any]:
    """The trace that *Download trace* gives."""
    with page.expect_download() as download:
        page.click("text=Download trace")
    path = folder / "trace.json"
    download.value.save_as(path)
    return json.loads(path.read_text("utf-8"))


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> bool:
    """True as soon as the condition holds; False where it never did."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
