"""Stop in a browser where the model hangs: the page comes to rest, and goes on once the model does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.notices import HANGING as TOAST
from app.race_view import HANGING
from tests.browser import wait_drawn
from tests.chat_page import (
    ask,
    ask_and_stop,
    branch_off,
    chat,
    served,
    shown_text,
    wait_answer,
    wait_until,
    wait_written,
)
from tests.compare_page import compare, race, wait_result
from tests.compare_page import served as served_compare
from tests.explore_page import explore
from tests.explore_page import run as sweep
from tests.explore_page import served as served_explore
from tests.scripted import always, scripted_loaded
from tests.scripted_sweep import scorable


@pytest.fixture
def held() -> Iterator[SimpleNamespace]:
    """A model that writes letters for ever, a forward every 20 ms while `open` is set."""
    gate = threading.Event()
    gate.set()

    def before(number: int) -> None:
        time.sleep(0.02)
        gate.wait(60)

    loaded = scripted_loaded(always(), context_length=4096)
    loaded.model.before = before
    yield SimpleNamespace(loaded=loaded, open=gate)
    gate.set()


def idle(app: Any) -> bool:
    return not app.engine.rows and not app.registry.sessions


def test_an_answer_that_hangs_comes_to_rest_and_the_next_one_is_written(chromium, held, monkeypatch):
    monkeypatch.setattr("app.chat.STOP_WAIT_S", 0.3)
    with served(held.loaded) as app, chat(chromium, app, link={"max": 2000}) as page:
        ask(page, "count")
        wait_written(page, 5)
        held.open.clear()
        page.click("#stop")
        wait_drawn(page, "#thread:not([data-state=running])")
        written = shown_text(page)
        page.wait_for_selector(f"text={TOAST}")
        held.open.set()
        monkeypatch.undo()
        assert wait_until(lambda: idle(app))
        assert wait_answer(page, 30).startswith(written), "what was written is kept"
        ask(page, "again")
        wait_written(page, 5)
        page.click("#stop")
        wait_drawn(page, "#thread[data-state=answered][data-messages='4']")
        assert page.problems == []


def test_a_race_that_hangs_comes_to_rest_and_the_next_one_is_run(chromium, held, monkeypatch):
    monkeypatch.setattr("app.compare.STOP_WAIT_S", 0.3)
    with served_compare(held.loaded) as app, compare(chromium, app, max_new_tokens=512) as page:
        race(page, "count")
        page.wait_for_function("document.querySelector('#compare-left .mars-text').textContent.length > 4")
        held.open.clear()
        page.click("#compare-stop")
        wait_drawn(page, "#compare[data-state=empty]")
        page.wait_for_selector(f"text={HANGING}")
        held.open.set()
        monkeypatch.undo()
        assert wait_until(lambda: idle(app))
        wait_result(page)
        race(page, "again")
        page.wait_for_function(
            """['left', 'right'].every((side) =>
                 (document.querySelector(`#compare-${side} .mars-view[data-state=running] .mars-text`)
                   ?.textContent.length ?? 0) > 4)"""
        )
        page.click("#compare-stop")
        assert all(wait_result(page, 30))


def test_a_branch_that_hangs_says_so_and_ends_when_its_forward_does(chromium, held, monkeypatch):
    monkeypatch.setattr("app.replay.STOP_WAIT_S", 0.3)
    with served(held.loaded) as app, chat(chromium, app, link={"max": 2000}) as page:
        ask_and_stop(page, "count")
        branch_off(page)
        page.wait_for_function("document.querySelector('#replay-written .mars-text')?.textContent.length > 4")
        held.open.clear()
        page.click("#replay-stop")
        page.wait_for_selector(f"text={TOAST}")
        held.open.set()
        page.wait_for_selector("#replay-stop", state="hidden")
        assert wait_until(lambda: idle(app)) and page.problems == []


def test_a_sweep_that_hangs_comes_to_rest_and_the_next_one_is_run(chromium, monkeypatch):
    monkeypatch.setattr("app.explore.STOP_WAIT_S", 0.3)
    gate = threading.Event()
    gate.set()
    loaded = scorable(always(), context_length=4096)
    loaded.model.before = lambda number: (time.sleep(0.02), gate.wait(60))
    with served_explore(loaded) as app, explore(chromium, app, thresholds="0.5 0.6") as page:
        page.click("#explore-start")
        page.wait_for_function("document.querySelectorAll('.explore-table tbody th').length >= 1")
        gate.clear()
        page.click("#explore-stop")
        wait_drawn(page, ".explore-progress[data-state=stopped]")
        assert "the table stays as it is" in page.text_content(".explore-words")
        page.wait_for_selector("#explore-start:not([disabled])")
        gate.set()
        monkeypatch.undo()
        assert wait_until(lambda: idle(app))
        page.get_by_label("Thresholds τ").fill("0.7")
        sweep(page)
        assert page.locator(".explore-table tbody th").count() == 2 and page.problems == []
