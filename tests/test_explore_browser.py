"""The Explore tab in a real browser, on tiny and scripted models: what it does, not how fast."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mars_core.bench.sweep.reading import sweep_from_json
from tests.browser import RUN, held_back, overflows, wait_drawn
from tests.chat_page import wait_until
from tests.explore_page import explore, run, served
from tests.scripted import always
from tests.scripted_sweep import scorable
from tests.tiny import tiny_loaded

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)> </p> &lt; `${alert(1)}` {{value}} a<b"


@pytest.fixture(scope="module")
def tiny() -> Iterator[SimpleNamespace]:
    with served(tiny_loaded()) as app:
        yield app


@pytest.fixture(scope="module")
def paced() -> Iterator[SimpleNamespace]:
    """Forwards take `pause_s` seconds, which a test may change while they run."""
    loaded = scorable(always(), context_length=4096)
    with served(loaded) as app:
        loaded.model.before = lambda number: time.sleep(app.pause_s)
        app.pause_s = 0.0
        yield app


@pytest.fixture
def slow(paced: SimpleNamespace) -> Iterator[SimpleNamespace]:
    paced.pause_s = 0.03
    yield paced
    paced.pause_s = 0.0


def rows(page: Any) -> list[str]:
    return page.locator(".explore-table tbody th").all_text_contents()


def download(page: Any, button: str) -> str:
    with page.expect_download() as found:
        page.click(button)
    return found.value.path().read_text("utf-8")


def test_a_sweep_runs_is_drawn_and_saved(chromium, tiny):
    with explore(chromium, tiny, thresholds="0.1 0.2") as page:
        page.wait_for_selector(".explore-empty")
        run(page)
        assert not page.is_visible(".explore-empty")
        assert rows(page) == ["AR (one token a forward)", "τ 0.1, B 4", "τ 0.2, B 4"]
        assert "Done: 3 answers" in page.text_content(".explore-words")
        assert page.locator("#explore-pareto .scatterlayer .trace").count() == 2
        result = sweep_from_json(json.loads(download(page, "#explore-json")))
        assert result.finished and "command" not in result.facts
        table = list(csv.DictReader(io.StringIO(download(page, "#explore-csv"))))
        assert [row["threshold"] for row in table] == ["1.0", "0.1", "0.2"]
        assert float(table[1]["tokens_per_forward"]) == result.figures[1].tokens_per_forward
        # for screen readers alone
        assert page.locator("#explore-progress .mars-sr").bounding_box()["width"] <= 1
        assert not overflows(page) and page.problems == []


def test_the_button_for_chat_s_answer_is_small_and_says_what_is_missing(chromium, tiny):
    with explore(chromium, tiny) as page:
        button = page.locator("#explore-from-chat")
        column = page.locator("#explore-results").bounding_box()["width"]
        assert button.bounding_box()["width"] < 0.6 * column
        button.click()
        page.wait_for_selector("text=leave the settings alone while it writes")
        assert page.problems == []


def test_axes_runs_and_the_paper_can_be_chosen_afterwards(chromium, tiny):
    with explore(chromium, tiny, thresholds="0.1 0.2") as page:
        run(page)
        assert page.text_content("#explore-pareto .xtitle") == "tokens a forward (tok/fwd)"
        page.check("#explore-paper input")
        page.wait_for_selector("#explore-pareto .y2title")
        assert "CC BY 4.0" in page.text_content("#explore-charts")
        page.click("#explore-across input")
        page.click("text=Measured speed-up")
        page.wait_for_function("document.querySelector('#explore-pareto .xtitle')?.textContent.includes('×')")
        page.click("#explore-run-of input")
        page.click("[role=option] >> text=τ 0.1, B 4")
        page.wait_for_function(
            "document.querySelector('#explore-what-if .legend')?.textContent.includes('τ 0.1, B 4')"
        )
        assert page.problems == []


def test_stopped_it_keeps_its_rows_and_can_be_started_again(chromium, slow):
    with explore(chromium, slow, thresholds="0.1 0.2 0.3 0.4 0.5 0.6") as page:
        page.click("#explore-start")
        wait_drawn(page, ".explore-progress[data-state=running]")
        page.wait_for_function("document.querySelectorAll('.explore-table tbody th').length >= 1")
        slow.pause_s = 0.2
        page.wait_for_function("document.querySelectorAll('.explore-table tbody th').length >= 2")
        slow.pause_s = 0.5  # time to look at it
        assert int(page.get_attribute("[role=progressbar]", "aria-valuenow")) > 0
        assert page.is_disabled("#explore-start")
        page.click("#explore-stop")
        wait_drawn(page, ".explore-progress[data-state=stopped]")
        slow.pause_s = 0.0
        kept = rows(page)
        assert 2 <= len(kept) < 7 and f"{len(kept)} of 7 answers are kept" in page.text_content(
            ".explore-words"
        )
        assert wait_until(lambda: slow.registry.sessions == [] and slow.engine.rows == [])
        result = sweep_from_json(json.loads(download(page, "#explore-json")))
        assert len(result.answers) == len(kept) and not result.finished
        page.wait_for_selector("#explore-start:not([disabled])")
        page.get_by_label("Thresholds τ").fill("0.5")
        run(page)
        assert len(rows(page)) == 2 and page.problems == []


def test_what_a_browser_asks_of_the_sweep_before_is_drawn_of_the_one_that_runs(chromium, slow):
    with explore(chromium, slow, thresholds="0.6") as page:
        slow.pause_s = 0.0
        run(page)
        page.get_by_label("Thresholds τ").fill("0.5")
        with held_back(page, RUN):  # the charts' own requests, with the choice of before
            slow.pause_s = 0.2
            page.click("#explore-start")
            page.wait_for_function("document.querySelectorAll('.explore-table tbody th').length == 1")
            slow.pause_s = 1.0  # one-token mode's answer alone: nothing to estimate from
        page.wait_for_selector("#explore-charts", state="visible")
        page.wait_for_selector("#explore-estimates", state="hidden")
        slow.pause_s = 0.0
        wait_drawn(page, ".explore-progress[data-state=done]")
        page.wait_for_selector("#explore-calibration .js-plotly-plot")
        assert page.input_value("#explore-run-of input") == "τ 0.5, B 4" and page.problems == []


def test_what_is_chosen_while_charts_are_drawn_is_not_undone(chromium, tiny):
    with explore(chromium, tiny, thresholds="0.1 0.2") as page:
        run(page)
        with held_back(page, RUN):
            page.click("#explore-across input")
            page.click("text=Measured speed-up")
            page.click("#explore-up input")
            page.click("text=Likelihood under AR")
            page.click("#explore-run-of input")
            page.click("[role=option] >> text=τ 0.1, B 4")
            page.check("#explore-paper input")
            page.uncheck("#explore-paper input")
        for axis, word in (("xtitle", "×"), ("ytitle", "nats")):
            page.locator(f"#explore-pareto .{axis}", has_text=word).wait_for()
        page.wait_for_function(
            "document.querySelector('#explore-what-if .legend')?.textContent.includes('τ 0.1, B 4')"
        )
        assert page.input_value("#explore-run-of input") == "τ 0.1, B 4"
        assert page.input_value("#explore-across input") == "Measured speed-up"
        assert page.input_value("#explore-up input") == "Likelihood under AR"
        assert page.problems == []


def test_a_closed_tab_ends_its_sweep(chromium, slow):
    with explore(chromium, slow, thresholds="0.1 0.2 0.3 0.4 0.5 0.6") as page:
        slow.pause_s = 0.3
        page.click("#explore-start")
        assert wait_until(lambda: len(slow.engine.rows) == 1, 60)
    assert wait_until(lambda: slow.registry.sessions == [] and slow.engine.rows == [], 60)


def test_a_prompt_of_the_visitor_shows_character_by_character(chromium, slow):
    with explore(chromium, slow, thresholds="0.1") as page:
        slow.pause_s = 0.3
        page.get_by_label("My own").check()
        page.fill("#explore-own textarea", f"\n{HOSTILE}\n")
        page.click("#explore-start")
        page.wait_for_function("document.querySelector('.explore-prompt')?.textContent.length > 0")
        assert page.text_content(".explore-prompt") == HOSTILE
        slow.pause_s = 0.0
        wait_drawn(page, ".explore-progress[data-state=done]")
        result = sweep_from_json(json.loads(download(page, "#explore-json")))
        assert result.prompts == (HOSTILE,)
        assert page.locator("#explore img").count() == 0 and page.problems == []


def test_a_file_of_prompts_goes_into_the_box_and_a_bad_line_is_named(chromium, tiny, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two"}\nthree <b>\n')
    with explore(chromium, tiny) as page:
        page.get_by_label("My own").check()
        page.set_input_files("#explore-file-input", path)
        page.wait_for_function("document.querySelector('#explore-own textarea').value.includes('three <b>')")
        page.wait_for_selector(".explore-fault:has-text('your prompts, line 3')")
        page.click("#explore-start")
        wait_drawn(page, ".explore-progress[data-state=fault]")
        assert "line 3" in page.text_content(".explore-words") and rows(page) == []
        page.fill("#explore-own textarea", '{"prompt": "one"}\n{"prompt": "two"}')
        page.wait_for_selector("#explore-work:has-text('2 settings (AR among them) × 2 prompts')")
        (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
        page.set_input_files("#explore-file-input", tmp_path / "binary.txt")
        page.wait_for_selector(".explore-file:has-text('is not UTF-8 text')")
        assert page.problems == []


def test_a_click_on_a_setting_turns_the_dial_of_chat(chromium, tiny):
    with explore(chromium, tiny, thresholds="0.15 0.6 0.75") as page:
        run(page)
        page.click(".explore-table button:has-text('τ 0.75')")
        page.wait_for_selector("text=τ = 0.75 is set in Chat.")
        page.click("[role=tab]:has-text('Chat')")
        page.wait_for_selector("#tau input[type=number]")
        page.wait_for_function("document.querySelector('#tau input[type=number]').value === '0.75'")
        assert not page.is_checked("#verify input")
        page.click("[role=tab]:has-text('Explore')")
        # the measured points of the what-if chart, the second of them
        point = page.locator("#explore-what-if .scatterlayer .trace .points path").nth(1)
        point.scroll_into_view_if_needed()
        box = point.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2)
        page.wait_for_selector("#explore-what-if .hoverlayer .hovertext")
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.click("[role=tab]:has-text('Chat')")
        page.wait_for_function("document.querySelector('#tau input[type=number]')?.value === '0.6'")
        assert page.problems == []


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_cut_off(chromium, tiny, dark):
    with explore(chromium, tiny, width=390, height=800, dark=dark) as page:
        run(page)
        assert not overflows(page)
        plots = page.locator("#explore .js-plotly-plot")
        right_ends = plots.evaluate_all("all => all.map(plot => plot.getBoundingClientRect().right)")
        assert len(right_ends) == 3 and max(right_ends) <= 390
        assert page.problems == []
