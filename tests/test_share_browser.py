"""After an answer: its charts, and the three forms it is saved in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from app.share import FORMS, trace_json
from mars_core import Trace, chat_prompt_ids
from tests.chat_page import ask, chat, served, shown_text, wait_answer
from tests.portrait_cases import HOSTILE, trace_of
from tests.scripted import always, saying, scripted_loaded

SAID = "</script><b>1 < 2</b> `${x}` 你好 👍"


@pytest.fixture(scope="module")
def app() -> Iterator[SimpleNamespace]:
    tokenizer = scripted_loaded(always()).tokenizer
    start = len(chat_prompt_ids(tokenizer, [{"role": "user", "content": "go"}]))
    tokens = [*tokenizer(SAID, split_special_tokens=True)["input_ids"], 258]
    with served(scripted_loaded(saying(tokens, start), context_length=4096)) as app:
        yield app


def saved(page, label: str, folder: Path) -> tuple[str, str]:
    """The name and the text of the file that a button gives."""
    with page.expect_download() as download:
        page.click(f"text={label}")
    path = folder / "saved"
    download.value.save_as(path)
    return download.value.suggested_filename, path.read_text("utf-8")


@pytest.mark.browser
def test_an_answer_brings_its_charts_and_is_saved_in_three_forms(chromium, app, tmp_path):
    with chat(chromium, app) as page:
        page.set_default_timeout(120_000)
        assert not page.locator(".mars-share").first.is_visible()
        assert page.locator("#run-charts").count() == 0
        ask(page, "go")
        assert wait_answer(page) == SAID
        page.wait_for_selector("#run-charts")
        assert page.locator("#run-charts .js-plotly-plot").count() == 0, "drawn when opened"
        page.click("#run-charts button")
        page.wait_for_function("document.querySelectorAll('#run-charts .js-plotly-plot').length === 4")

        name, text = saved(page, "Download trace", tmp_path)
        assert name.startswith("mars-trace-") and name.endswith(".json")
        trace = Trace.from_json(json.loads(text))
        assert trace.text() == SAID
        name, text = saved(page, "Save replay (HTML)", tmp_path)
        assert name.startswith("mars-replay-") and name.endswith(".html")
        assert text == FORMS[1].write(trace)
        name, text = saved(page, "Save picture (SVG)", tmp_path)
        assert name.startswith("mars-picture-") and name.endswith(".svg")
        assert ElementTree.fromstring(text).findtext("{http://www.w3.org/2000/svg}desc") == SAID
        assert page.problems == []


@pytest.mark.browser
def test_the_charts_go_with_the_answer_and_come_back_with_the_next(chromium, app):
    with chat(chromium, app) as page:
        page.set_default_timeout(120_000)
        ask(page, "go")
        wait_answer(page)
        page.wait_for_selector("#run-charts")
        page.click("#tools >> text=Undo")
        page.wait_for_selector("#run-charts", state="detached")
        ask(page, "go")
        wait_answer(page)
        page.wait_for_selector("#run-charts")
        assert shown_text(page) == SAID


@pytest.mark.parametrize("name", HOSTILE)
def test_every_form_is_a_file_that_can_be_written(name):
    for form in FORMS:
        assert form.write(trace_of(HOSTILE[name])).encode("utf-8")


@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - {"half a character"}))
def test_a_saved_trace_is_read_back_as_it_was(name):
    trace = trace_of(HOSTILE[name])
    assert Trace.from_json(json.loads(trace_json(trace))) == trace
