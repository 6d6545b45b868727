"""Every tab for those who do not see it, use no mouse, or want no motion: axe-core, keys, reduced motion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import axe_playwright_python
import pytest

from app.baseline import OneTokenBaseline
from app.live import LiveRegistry
from app.page import build_page, launch_options
from tests.browser import open_page, open_part, overflows, serving, wait_drawn
from tests.chat_page import ask, chat, served, wait_answer
from tests.scripted import scripted_loaded, sometimes

pytestmark = pytest.mark.browser

TABS = ["chat", "compare", "explore", "replay", "about"]
AXE = (Path(axe_playwright_python.__path__[0]) / "axe.min.js").read_text("utf-8")
MOVES = [
    ("ArrowRight", "compare"),
    ("End", "about"),
    ("ArrowRight", "chat"),
    ("ArrowLeft", "about"),
    ("Home", "chat"),
]
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def app() -> Iterator[SimpleNamespace]:
    loaded = scripted_loaded(sometimes(), context_length=4096)
    loaded.model.before = lambda number: time.sleep(0.01)
    with served(loaded) as page:
        yield page


def violations(page: Any) -> list[str]:
    """What axe-core finds serious or critical, each with the elements it found."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 10, "it looked at the page"
    return [
        f"{item['id']}: {item['help']}: {[node['html'] for node in item['nodes']]}"
        for item in found["violations"]
        if item["impact"] in ("serious", "critical")
    ]


def open_tab(page: Any, name: str) -> None:
    page.click(f"#tab-{name}-button")
    page.wait_for_selector(f"#tab-{name} *", state="attached")
    page.wait_for_selector(f"#tab-{name}", state="visible")


def use_chat(page: Any) -> None:
    open_part(page, "More settings")
    ask(page, "hello")
    wait_answer(page)
    page.click("#token-view .mars-cell >> nth=3")  # its card is open now


def use_compare(page: Any) -> None:
    open_tab(page, "compare")
    page.click("#compare-tools >> text=Explain")
    page.wait_for_selector("#compare-charts .js-plotly-plot >> nth=1")


def use_replay(page: Any) -> None:
    open_tab(page, "replay")
    page.click("#replay-chooser button >> nth=0")
    page.wait_for_selector("#replay-view .mars-cell")


USES = {"chat": use_chat, "compare": use_compare, "replay": use_replay}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_on_any_tab(chromium: Any, app: Any, width: int, dark: bool) -> None:
    still = {"reduced_motion": "reduce"}  # what fades in is faint for a moment
    with chat(chromium, app, link={"max": 40}, width=width, dark=dark, **still) as page:
        page.set_default_timeout(PATIENCE_MS)
        assert violations(page) == []
        for name in TABS:
            USES.get(name, lambda page, name=name: open_tab(page, name))(page)
            page.wait_for_timeout(500)
            assert violations(page) == [], name
            assert not overflows(page), name


def test_headings_begin_with_the_pages_name_and_skip_no_level(chromium: Any, app: Any) -> None:
    with chat(chromium, app) as page:
        page.set_default_timeout(PATIENCE_MS)
        for name in TABS:
            open_tab(page, name)
            shown = "[...document.querySelectorAll('h1,h2,h3,h4')].filter((h) => h.offsetParent)"
            levels = page.evaluate(f"{shown}.map((heading) => Number(heading.tagName[1]))")
            assert levels[0] == 1 and levels.count(1) == 1, name
            assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False)), name


def test_arrow_keys_home_and_end_open_tabs_and_a_tab_is_one_stop(chromium: Any, app: Any) -> None:
    with chat(chromium, app) as page:
        page.set_default_timeout(PATIENCE_MS)
        page.focus("#tab-chat-button")
        for key, name in MOVES:
            page.keyboard.press(key)
            page.wait_for_selector(f"#tab-{name}-button[aria-selected=true]")
            assert page.evaluate("document.activeElement.id") == f"tab-{name}-button"
            assert page.locator("#tabs > .tab-wrapper [role=tab][tabindex='0']").count() == 1
            labelled = page.get_attribute(f"#tab-{name}", "aria-labelledby")
            assert labelled == f"tab-{name}-button"
        assert page.problems == []


@pytest.mark.parametrize("name", TABS)
def test_tab_reaches_every_control_in_order_and_the_focus_shows(chromium: Any, app: Any, name: str) -> None:
    with chat(chromium, app) as page:
        page.set_default_timeout(PATIENCE_MS)
        open_tab(page, name)
        parts = page.locator(f"#tab-{name} :is(button, input, textarea, summary, a)")
        before = -1
        while before != (before := parts.count()):  # what is opened for the first time comes in parts
            page.wait_for_timeout(500)
        page.focus(f"#tab-{name}-button")
        controls = page.evaluate(CONTROLS, f"#tab-{name}")
        reached = []
        for _ in range(2 * len(controls) + 2):
            page.keyboard.press("Tab")
            number, visible, words = page.evaluate(FOCUSED)
            if number is None:
                break
            assert visible, f"the focus on {words} cannot be seen"
            reached.append(number)
        assert set(reached) >= set(controls), "every control is reached"
        assert reached == sorted(reached), "in the order in which they stand"


# Numbers what can be focused in a panel, in the order of the document; gives the numbers of the controls.
CONTROLS = """(panel) => {
  const kinds = 'button, input, textarea, select, a[href], summary, [tabindex]';
  const all = document.querySelectorAll(`${panel} :is(${kinds})`);
  const shown = [...all].filter((node) => node.offsetParent && node.tabIndex >= 0 && !node.disabled);
  shown.forEach((node, k) => (node.dataset.stop = k));
  const groups = new Set();
  return shown.filter((node) => {
    if (node.type !== 'radio') return true;
    const first = !groups.has(node.name); // a group of radio buttons is one stop
    groups.add(node.name);
    return first && node.checked;
  }).map((node) => Number(node.dataset.stop));
}"""
FOCUSED = """() => {
  const node = document.activeElement;
  const number = node.dataset.stop === undefined ? null : Number(node.dataset.stop);
  const outlined = (style) => style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
  const seen = (style) => outlined(style) || style.boxShadow !== 'none';
  const around = [node, node.parentElement, node.closest('label')].filter(Boolean);
  return [number, around.some((one) => seen(getComputedStyle(one))), node.outerHTML.slice(0, 120)];
}"""


def test_escape_stops_an_answer_from_wherever_the_focus_is(chromium: Any, app: Any) -> None:
    with chat(chromium, app, link={"max": 2000}) as page:
        page.set_default_timeout(PATIENCE_MS)
        ask(page, "go on")
        page.wait_for_function("document.querySelectorAll('#token-view .mars-cell').length > 8")
        page.focus("#verify input")
        page.keyboard.press("Escape")
        wait_answer(page)
        assert "Stopped." in page.text_content("#token-view")


def test_escape_in_another_tab_leaves_the_chats_answer_alone(chromium: Any, app: Any) -> None:
    with chat(chromium, app, link={"max": 200}) as page:
        page.set_default_timeout(PATIENCE_MS)
        ask(page, "go on")
        open_tab(page, "about")
        page.keyboard.press("Escape")
        wait_drawn(page, "#thread[data-state=answered]", state="attached")
        assert "Stopped." not in page.text_content("#token-view")


def test_nothing_moves_where_less_motion_is_wanted(chromium: Any, app: Any) -> None:
    moving = "document.getAnimations().filter((one) => one.effect.getComputedTiming().duration > 10).length"
    with chat(chromium, app, link={"max": 400}, reduced_motion="reduce") as page:
        page.set_default_timeout(PATIENCE_MS)
        ask(page, "go on")
        page.wait_for_function("document.querySelectorAll('#token-view .mars-cell').length > 8")
        for name in TABS:
            open_tab(page, name)
            assert page.evaluate(moving) == 0, name


def test_a_page_without_a_model_is_as_accessible_and_shows_recorded_runs(chromium: Any) -> None:
    demo = build_page(None, LiveRegistry(), OneTokenBaseline(), "The model could not be loaded. Fetch it.")
    still = {"reduced_motion": "reduce"}  # what fades in is faint for a moment
    with serving(demo, **launch_options()) as url, open_page(chromium, url, **still) as page:
        page.set_default_timeout(PATIENCE_MS)
        page.wait_for_selector("#tab-replay", state="visible")
        page.wait_for_selector("#replay-view .mars-cell")
        assert "could not be loaded" in page.text_content("#header .notices")
        assert "recorded" in page.inner_text("#tab-replay").lower()
        assert violations(page) == []
        open_tab(page, "about")
        assert violations(page) == []
        assert page.problems == []
