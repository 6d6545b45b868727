"""What stays in reach while a token's card is open, and that no figure's place is left empty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.chat_page import ask, chat, served, wait_answer
from tests.scripted import always, scripted_loaded

pytestmark = pytest.mark.browser

COVERED = """(names) => {
  const card = document.querySelector('.mars-card:not([hidden])').getBoundingClientRect();
  return names.filter((name) => {
    const bar = document.querySelector(name).getBoundingClientRect();
    return bar.height && card.top < bar.bottom && bar.top < card.bottom && card.left < bar.right
      && bar.left < card.right;
  });
}"""


@pytest.fixture(scope="module")
def slow() -> Iterator[SimpleNamespace]:
    loaded = scripted_loaded(always(), context_length=4096)
    loaded.model.before = lambda number: time.sleep(0.2)
    with served(loaded) as app:
        yield app


@pytest.mark.parametrize("height", [844, 600])
def test_the_card_leaves_stop_and_the_threshold_in_reach_on_a_phone(chromium, slow, height):
    with chat(chromium, slow, link={"max": 2000}, width=390, height=height) as page:
        page.set_default_timeout(60_000)
        ask(page, "count")
        page.wait_for_function("document.querySelectorAll('#token-view .mars-cell').length > 60")
        for number in (1, 30, 55):
            page.evaluate(
                "(n) => document.querySelectorAll('#token-view .mars-cell')[n].dispatchEvent("
                "new PointerEvent('click', { bubbles: true }))",
                number,
            )
            page.wait_for_selector(".mars-card:not([hidden])")
            assert page.is_visible("#stop")
            assert page.evaluate(COVERED, ["#stop", "#tau-bar"]) == []
        page.click("#stop")
        wait_answer(page)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_figures_leave_no_place_empty(chromium, slow, width):
    with chat(chromium, slow, width=width) as page:
        page.wait_for_selector(".mars-tile")
        rows = page.evaluate(
            """() => {
              const rows = {};
              for (const tile of document.querySelectorAll('#figures .mars-tile:not([hidden])')) {
                const { top, width } = tile.getBoundingClientRect();
                rows[top] = (rows[top] ?? 0) + width;
              }
              return [Object.values(rows), document.querySelector('#figures .mars-tiles').clientWidth];
            }"""
        )
        assert all(width_ == pytest.approx(rows[1], abs=1) for width_ in rows[0])
        assert len(rows[0]) > 1
