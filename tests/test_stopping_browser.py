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
from tests.chat_page import ask, chat, served, shown_text, wait_answer, wait_until, wait_written
from tests.compare_page import compare, race, wait_result
from tests.compare_page import served as served_compare
from tests.scripted import always, scripted_loaded


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
        page.wait_for_selector("#thread:not([data-state=running])")
        written = shown_text(page)
        page.wait_for_selector(f"text={TOAST}")
        held.open.set()
        monkeypatch.undo()
        assert wait_until(lambda: idle(app))
        assert wait_answer(page, 30).startswith(written), "what was written is kept"
        ask(page, "again")
        wait_written(page, 5)
        page.click("#stop")
        page.wait_for_selector("#thread[data-state=answered][data-messages='4']")
        assert page.problems == []


def test_a_race_that_hangs_comes_to_rest_and_the_next_one_is_run(chromium, held, monkeypatch):
    monkeypatch.setattr("app.compare.STOP_WAIT_S", 0.3)
    with served_compare(held.loaded) as app, compare(chromium, app, max_new_tokens=512) as page:
        race(page, "count")
        page.wait_for_function("document.querySelector('#compare-left .mars-text').textContent.length > 4")
        held.open.clear()
        page.click("#compare-stop")
        page.wait_for_selector("#compare[data-state=empty]")
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
