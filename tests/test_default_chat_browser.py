"""The Chat tab in a real browser, on the embedded default model."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mars_core import DecodeSettings, Request, chat_prompt_ids
from mars_core.prompts import Message
from tests.browser import wait_drawn
from tests.chat_page import ask, chat, running, served, trace_of, wait_answer, wait_until

VERIFY = {"verify": True}  # as the page starts
pytestmark = [pytest.mark.browser, pytest.mark.model]


@pytest.fixture(scope="module")
def app(default_fp32) -> Iterator[SimpleNamespace]:
    with served(default_fp32) as page:
        yield page


def expected(app: SimpleNamespace, messages: list[Message], settings: DecodeSettings) -> str:
    """What the library answers."""
    ids = chat_prompt_ids(app.engine.loaded.tokenizer, messages)
    return "".join(event.text for event in app.engine.stream(Request(ids, settings)))


def test_a_question_gets_the_librarys_answer_at_more_than_one_token_a_forward(chromium, app, tmp_path):
    question = "Write a Python function that adds two numbers."
    with chat(chromium, app, link={"max": 60, "tau": 0.9}) as page:
        ask(page, question)
        text = wait_answer(page)
        settings = DecodeSettings(threshold=0.9, **VERIFY, max_new_tokens=60)
        assert text == expected(app, [{"role": "user", "content": question}], settings)
        trace = trace_of(page, tmp_path)
        assert trace["text"] == text
        assert trace["statistics"]["tokens_per_forward"] > 1.3
        assert page.problems == []


def test_a_sampled_second_turn_equals_the_librarys_for_the_same_seed(chromium, app, tmp_path):
    with chat(chromium, app, link={"max": 24, "tau": 0.7, "temperature": 0.7, "seed": 11}) as page:
        ask(page, "Name a colour 🤗.")
        first = wait_answer(page)
        ask(page, "Another one, please.")
        wait_drawn(page, "#thread[data-state=answered][data-messages='4']", timeout=120_000)
        second = trace_of(page, tmp_path)["text"]
        messages = [
            {"role": "user", "content": "Name a colour 🤗."},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "Another one, please."},
        ]
        settings = DecodeSettings(threshold=0.7, **VERIFY, temperature=0.7, seed=11, max_new_tokens=24)
        assert second == expected(app, messages, settings)


def test_tau_and_stop_act_within_a_few_forwards(chromium, app, tmp_path):
    with chat(chromium, app, link={"max": 400, "tau": 0.9, "verify": "false"}) as page:
        ask(page, "Count from 1 to 200, separated by commas.")
        page.wait_for_function("document.querySelector('#token-view .mars-text').textContent.length > 30")
        page.focus("#tau input[type=range]")
        with app.engine.alone():  # no forward until the server knows
            tokens_then = len(app.engine.rows[0].tokens)
            page.keyboard.press("End")  # τ = 1
            assert wait_until(lambda: [live.threshold for live in running(app)] == [1.0])
        page.wait_for_selector("#figures .mars-progress:has-text('τ = 1.00')")
        page.keyboard.press("Escape")
        wait_answer(page)
        events = trace_of(page, tmp_path)["events"]
        assert events[0]["threshold"] == 0.9 and events[-2]["threshold"] == 1.0
        turned = next(index for index, event in enumerate(events) if event["threshold"] == 1.0)
        assert all(len(event["committed"]) == 1 for event in events[turned:-1])
        tokens_before = sum(len(event["committed"]) for event in events[:turned])
        num_prompt = trace_of(page, tmp_path)["statistics"]["num_prompt_tokens"]
        assert tokens_before - (tokens_then - num_prompt) <= 5 * 4, "at most about five forwards later"
        assert events[-1]["finish_reason"] == "cancelled"
        assert app.engine.rows == []
