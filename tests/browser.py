"""A headless Chromium for tests: the fixture `chromium` is in conftest.py; open pages with `open_page`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# Set to anything, the page runs unevenly: its frames and requests wait for up to half a second, at random.
# What a test reads without waiting for it fails then, and not once in a month on a busy machine.
UNEVEN = bool(os.environ.get("MARS_TEST_UNEVEN"))
RUN = "**/gradio_api/run/**"  # what does not go through the queue
JOIN = "**/gradio_api/queue/join*"  # what does
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def launch(playwright: Any) -> Any:
    """A headless Chromium: Debian's (or the one CHROMIUM names), else Playwright's own."""
    path = CHROMIUM if os.path.exists(CHROMIUM) else None
    return playwright.chromium.launch(executable_path=path, args=FLAGS)


@contextmanager
def open_page(
    browser: Any, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, **context: Any
) -> Iterator[Any]:
    """A page in a context of its own. `page.problems` collects dialogs, page errors and console errors;
    a test that expects none asserts that it is empty."""
    opened = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **context
    )
    if UNEVEN:
        opened.add_init_script(path=Path(__file__).with_name("uneven.js"))
    page = opened.new_page()
    page.problems = []
    page.on("dialog", lambda dialog: (page.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: page.problems.append(f"error: {error}"))
    page.on("console", lambda line: line.type == "error" and page.problems.append(f"console: {line.text}"))
    theme = f"__theme={'dark' if dark else 'light'}"
    page.goto(f"{url}{theme}" if url.endswith("&") else f"{url}?{theme}")
    page.wait_for_selector("gradio-app, .gradio-container")
    try:
        yield page
    finally:
        opened.close()


def wait_drawn(page: Any, selector: str | None = None, **options: Any) -> None:
    """Wait for a state of the page, and then until all that has come for its components is drawn: each draws
    in a frame of its own, so that one shows a state before another does."""
    if selector:
        page.wait_for_selector(selector, **options)
    page.wait_for_selector("[data-behind]", state="detached")


def record_states(page: Any, name: str) -> None:
    """From now on keep in `window.states` every state that the element of this id comes to: one that is short
    may have passed before a test looks."""
    page.evaluate(
        """(name) => {
          const element = document.getElementById(name);
          window.states = [];
          new MutationObserver(() => window.states.push(element.dataset.state))
            .observe(element, { attributeFilter: ['data-state'] });
        }""",
        name,
    )


def open_part(page: Any, title: str) -> None:
    """Open an accordion, and wait until gradio (6.31) has drawn it: a frame after the first it sets every
    value in it once more, over what was typed meanwhile."""
    page.click(f"text={title}")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.wait_for_timeout(600 if UNEVEN else 50)


@contextmanager
def held_back(page: Any, requests: str) -> Iterator[None]:
    """What the page asks of these addresses inside the block leaves it at the block's end, in its order; one
    request at least."""
    holding, held = True, list[Any]()
    page.route(requests, lambda each: held.append(each) if holding else each.continue_())
    yield
    for _ in range(200):
        if held:
            break
        page.wait_for_timeout(50)
    holding = False
    assert held, f"Nothing was asked of {requests}."
    for each in held:
        each.continue_()
    page.unroute(requests)  # what comes later must not wait for this program


@contextmanager
def serving(demo: gr.Blocks, **launch: Any) -> Iterator[str]:
    """The address of `demo`, served on this machine while the block runs."""
    options = {"ssr_mode": False, "quiet": True, **launch}
    _, url, _ = demo.launch(server_name="127.0.0.1", prevent_thread_lock=True, **options)
    try:
        yield url
    finally:
        demo.close(verbose=False)
        if demo.node_process:  # which renders on the server, and which gradio (6.31) leaves running
            demo.node_process.kill()
            demo.node_process.wait()


def overflows(page: Any) -> bool:
    """True where the page can be scrolled sideways."""
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
