"""What is under way between a browser and the server when the visitor goes on, or the server forgets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from app.replay_recorded import recorded_runs
from app.run_charts import RunCharts
from mars_core import StepEvent
from tests.browser import JOIN, RUN, held_back, open_part, record_states, wait_drawn
from tests.chat_page import (
    ask,
    ask_and_stop,
    branch_off,
    chat,
    running,
    served,
    trace_of,
    wait_answer,
    wait_until,
    wait_written,
)
from tests.scripted import slow_letters
from tests.tiny import tiny_loaded

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tiny() -> Iterator[SimpleNamespace]:
    with served(tiny_loaded()) as app:
        yield app


@pytest.fixture(scope="module")
def slow() -> Iterator[SimpleNamespace]:
    with served(slow_letters(0.1)) as app:
        yield app


def forget(app: SimpleNamespace) -> None:
    """As a restart does, or many other visitors: the server knows no session any more."""
    app.demo.app.state_holder.session_data.clear()


# A server that forgot


def test_a_forgotten_conversation_goes_on_as_the_page_shows_it(chromium, tiny, tmp_path):
    with chat(chromium, tiny, link={"max": 8, "tau": 1}) as page:
        ask(page, "first")
        first = wait_answer(page)
        forget(tiny)
        ask(page, "second")
        wait_answer(page)
        assert page.get_attribute("#thread", "data-messages") == "4"
        said = [(m["role"], m["content"]) for m in trace_of(page, tmp_path)["prompt"]]
        assert said == [("user", "first"), ("assistant", first), ("user", "second")]
        forget(tiny)
        page.click("text=Undo")
        wait_drawn(page, "#thread[data-messages='2']")
        assert page.input_value("#box textarea") == "second" and page.problems == []


def test_a_cleared_conversation_stays_cleared(chromium, tiny, tmp_path):
    with chat(chromium, tiny, link={"max": 8, "tau": 1}) as page:
        ask(page, "first")
        wait_answer(page)
        page.click("text=Clear")
        wait_drawn(page, "#thread[data-messages='0']")
        ask(page, "second")
        wait_answer(page)
        assert [m["content"] for m in trace_of(page, tmp_path)["prompt"]] == ["second"]


def test_another_metric_s_scale_outlives_the_server_s_memory(chromium, tiny, tmp_path):
    with chat(chromium, tiny, link={"max": 8, "metric": "entropy", "tau": 0.3}) as page:
        forget(tiny)
        ask(page, "hello")
        wait_answer(page)
        event = trace_of(page, tmp_path)["events"][0]
        assert (event["metric"], event["threshold"]) == ("entropy", 0.3)
        assert page.problems == []


def test_a_reload_while_an_answer_is_written_puts_its_question_back(chromium, slow):
    with chat(chromium, slow, link={"max": 2000}) as page:
        ask_and_stop(page, "first")
        page.evaluate("history.replaceState(null, '', location.pathname)")
        ask(page, "second")
        page.reload()
        wait_drawn(page, "#thread[data-messages='2']")
        page.wait_for_function("document.querySelector('#box textarea').value == 'second'")
        assert page.locator(".mars-user .mars-body").all_text_contents() == ["first"]
    assert wait_until(lambda: slow.registry.sessions == [])


# A visitor who goes on


def test_of_two_metrics_chosen_at_once_the_last_one_holds(chromium, tiny, tmp_path):
    with chat(chromium, tiny, link={"max": 8}) as page:
        open_part(page, "More settings")
        page.get_by_role("radio", name="margin").wait_for()
        with held_back(page, RUN):
            page.get_by_role("radio", name="margin").check()
            page.get_by_role("radio", name="entropy").check()
            page.wait_for_selector("#tau input[type=range][max='2']")  # no answer is needed for that
        page.wait_for_timeout(200)
        assert page.get_attribute("#tau input[type=range]", "max") == "2"
        assert page.get_by_role("radio", name="entropy").is_checked()
        page.wait_for_function("document.querySelector('#tau').textContent.includes('entropy')")
        ask(page, "hello")
        wait_answer(page)
        event = trace_of(page, tmp_path)["events"][0]
        assert (event["metric"], event["threshold"]) == ("entropy", 0.4)


def test_numbers_typed_into_a_slider_s_box_act_once_they_are_whole(chromium, slow):
    with chat(chromium, slow, link={"max": 2000, "tau": 0.9}) as page:
        open_part(page, "More settings")
        size = page.get_by_label("number input for Block size B")
        size.wait_for()
        ask(page, "count")
        wait_written(page)
        page.locator("#tau input[type=number]").select_text()
        with held_back(page, RUN):
            page.keyboard.type("0.7", delay=20)
        assert wait_until(lambda: [live.threshold for live in running(slow)] == [0.7])
        size.select_text()
        page.keyboard.type("16", delay=20)
        page.keyboard.press("Tab")
        most = int(page.get_attribute("#more input[type=range]", "max") or 0)
        assert most < 16 and wait_until(lambda: [live.block_size for live in running(slow)] == [most])
        page.click("#stop")
        wait_answer(page)
        assert page.problems == []


def test_what_is_turned_before_an_answer_begins_holds_for_it(chromium, slow, tmp_path):
    with chat(chromium, slow, link={"max": 2000, "tau": 0.9}) as page:
        with held_back(page, JOIN):
            page.fill("#box textarea", "count")
            page.press("#box textarea", "Enter")
            page.locator("#tau input[type=range]").focus()
            page.keyboard.press("Home")
            page.wait_for_function("document.querySelector('#tau input[type=number]').value == '0.5'")
            page.uncheck("#verify input")
        assert wait_until(lambda: [(live.threshold, live.verify) for live in running(slow)] == [(0.5, False)])
        wait_written(page)
        page.click("#stop")
        wait_answer(page)
        events = trace_of(page, tmp_path)["events"]
        assert events[-1]["threshold"] == 0.5 and not events[-1]["verify"]


def test_what_is_typed_behind_a_question_that_waits_for_its_turn_stays_in_the_box(chromium, tiny, tmp_path):
    with chat(chromium, tiny, link={"max": 8, "tau": 1}) as page:
        with held_back(page, JOIN):
            page.focus("#box textarea")
            page.keyboard.type("first")
            page.keyboard.press("Enter")
            page.wait_for_timeout(300)  # gradio reads the box a moment after the key
            page.keyboard.type(" and then")
        page.wait_for_function("document.querySelector('#box textarea').value === ' and then'")
        wait_answer(page)
        assert [message["content"] for message in trace_of(page, tmp_path)["prompt"]] == ["first"]
        page.press("#box textarea", "Enter")
        wait_drawn(page, "#thread[data-state=answered][data-messages='4']")
        page.wait_for_function("document.querySelector('#box textarea').value === ''")
        assert page.problems == []


@pytest.mark.parametrize(
    ("begins", "asked"),
    [("#examples >> text=Write code", []), (".mars-last-answer >> text=Retry", ["hello"])],
    ids=["an example", "retry"],
)
def test_what_was_typed_outlives_a_question_asked_in_another_way(chromium, tiny, begins, asked):
    with chat(chromium, tiny, link={"max": 8, "tau": 1}) as page:
        for text in asked:
            ask(page, text)
            wait_answer(page)
            page.wait_for_function("document.querySelector('#box textarea').value === ''")
        page.fill("#box textarea", "my next")
        record_states(page, "thread")
        page.click(begins)
        page.wait_for_function("window.states.includes('answered')")
        page.wait_for_timeout(300)  # for what might come after it
        assert page.input_value("#box textarea") == "my next" and page.problems == []


def test_undo_puts_the_question_before_what_was_typed(chromium, tiny):
    with chat(chromium, tiny, link={"max": 8, "tau": 1}) as page:
        ask(page, "hello")
        wait_answer(page)
        page.fill("#box textarea", "my next")
        page.click("#tools >> text=Undo")
        page.wait_for_function("document.querySelector('#box textarea').value === 'hello\\nmy next'")
        assert page.problems == []


@pytest.mark.parametrize("begun", ["by Enter", "by an example"])
def test_enter_while_an_answer_is_written_says_once_why_nothing_happens(chromium, slow, begun):
    with chat(chromium, slow, link={"max": 2000}) as page:
        if begun == "by Enter":
            ask(page, "count")
        else:
            page.click("#examples >> text=Write code")
        wait_written(page)
        assert page.locator(".toast-body").count() == 0
        page.fill("#box textarea", "and on")
        page.press("#box textarea", "Enter")
        page.wait_for_selector("text=An answer is being written")
        page.wait_for_timeout(500)  # for a second one
        assert page.locator("text=An answer is being written").count() == 1
        assert page.input_value("#box textarea") == "and on"
        page.press("#box textarea", "Escape")
        wait_answer(page)
        assert page.get_attribute("#thread", "data-messages") == "2"


def test_of_two_runs_picked_at_once_the_last_one_is_shown(chromium, tiny):
    first, last = recorded_runs()[0], recorded_runs()[-1]
    with chat(chromium, tiny, link={"max": 8}) as page:
        page.click("#tab-replay-button")
        page.wait_for_selector(".mars-run")
        with held_back(page, RUN):
            page.click(".mars-run >> nth=0")
            page.click(f".mars-run >> nth={len(recorded_runs()) - 1}")
        asked = "q => document.querySelector('.mars-asked')?.textContent === q"
        page.wait_for_function(asked, arg=last.trace.prompt[-1]["content"])
        page.wait_for_timeout(500)  # for what might come after it
        assert page.evaluate(asked, last.trace.prompt[-1]["content"]) and first.name != last.name
        assert page.problems == []


def test_a_run_picked_before_another_one_is_not_shown_after_it(chromium, tiny):
    last = recorded_runs()[-1]
    asked = "q => document.querySelector('.mars-asked')?.textContent === q"
    with chat(chromium, tiny, link={"max": 8}) as page:
        page.click("#tab-replay-button")
        page.wait_for_selector(".mars-run")
        late = list[Any]()  # what is overtaken on its way
        page.route(RUN, lambda each: each.continue_() if late else late.append(each))
        page.click(".mars-run >> nth=0")
        while not late:
            page.wait_for_timeout(50)
        page.click(f".mars-run >> nth={len(recorded_runs()) - 1}")
        page.wait_for_function(asked, arg=last.trace.prompt[-1]["content"])
        late[0].continue_()
        page.wait_for_timeout(500)
        wait_drawn(page)
        assert page.evaluate(asked, last.trace.prompt[-1]["content"]) and page.problems == []


def test_a_second_branch_while_one_is_written_is_refused_with_a_word(chromium, slow):
    with chat(chromium, slow, link={"max": 2000}) as page:
        ask_and_stop(page, "count")
        branch_off(page)
        page.click(".mars-branch-go")
        page.wait_for_selector("text=A branch is being written")
        assert page.is_visible("#replay-stop")
        page.click("#replay-stop")
        page.wait_for_selector("#replay-stop", state="hidden")
        assert page.problems == []


def test_of_two_modes_chosen_at_once_for_a_lane_the_last_one_holds(chromium, tiny):
    with chat(chromium, tiny) as page:
        page.click("#tab-compare-button")
        modes = page.locator(".lane-mode").first
        modes.locator("input").last.wait_for()
        with held_back(page, RUN):
            modes.locator("input").nth(1).check()
            modes.locator("input").nth(2).check()
        page.wait_for_selector("#compare-tau-left input[type=range]:not([disabled])")
        page.wait_for_function(
            "document.querySelector('#compare-tau-left input[type=number]').value == '0.9'"
        )
        page.wait_for_timeout(300)  # for what might come after it
        assert modes.locator("input").last.is_checked()
        assert page.problems == []


def test_an_answer_that_ends_while_charts_are_drawn_gets_its_own(chromium, tiny, monkeypatch):
    drawing, go_on = threading.Event(), threading.Event()
    update, lengths = RunCharts.update, []

    def paused(self: RunCharts, events: Sequence[StepEvent] | None) -> list[Any]:
        if events is not None:
            lengths.append(sum(len(event.committed) for event in events))
            drawing.set()
            assert go_on.wait(60)
        return update(self, events)

    monkeypatch.setattr(RunCharts, "update", paused)
    with chat(chromium, tiny, link={"max": 8, "tau": 1}) as page:
        ask(page, "first")
        wait_answer(page)
        assert wait_until(drawing.is_set)
        open_part(page, "More settings")
        most = page.get_by_label("number input for Max new tokens")
        most.fill("12")
        most.press("Tab")
        ask(page, "second")
        wait_drawn(page, "#thread[data-state=answered][data-messages='4']")
        go_on.set()
        assert wait_until(lambda: len(lengths) == 2) and lengths[0] <= 8 < lengths[1]
        page.wait_for_selector("#run-charts", state="visible")
        assert page.problems == []
