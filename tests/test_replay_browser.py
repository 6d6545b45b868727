"""The Replay tab in a real browser: what a person sees and does, with no model and with a scripted one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app.live import LiveRegistry
from app.page import launch_options
from app.replay import ReplayTab
from app.replay_recorded import recorded_runs
from mars_core import DecodeSettings, Engine, LoadedModel, Request, Trace
from mars_core.planner import NOMINAL_COSTS
from mars_core.traces import MAX_BYTES, record, trace_text
from tests.browser import open_page, overflows, serving, wait_drawn
from tests.chat_page import wait_until
from tests.scripted import scripted_loaded, sometimes
from tests.scripted_events import answer, event, token

pytestmark = pytest.mark.browser

SLOW = 120_000  # milliseconds; a busy machine is no reason to fail
PROMPT = list(b"hello you")
HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)} {{value}} `${props}` </span></div> &lt; <b>bold</b>"
FACTS = {"name": "<i>Model</i> ${1}", "device": "cpu", "dtype": "float32"}


class Paused:
    """A scripted model that waits before each forward."""

    seconds = 0.0

    def loaded(self) -> LoadedModel:
        loaded = scripted_loaded(sometimes())
        loaded.model.before = lambda number: time.sleep(self.seconds)
        return loaded


def serve(engine: Engine | None, registry: LiveRegistry) -> gr.Blocks:
    with gr.Blocks(analytics_enabled=False, fill_width=True) as demo:
        ReplayTab(engine, registry).connect(demo)
    return demo.queue()


@pytest.fixture(scope="module")
def bare() -> Iterator[str]:
    """The tab without a model."""
    with serving(serve(None, LiveRegistry()), **launch_options()) as url:
        yield url


@pytest.fixture(scope="module")
def writing() -> Iterator[SimpleNamespace]:
    """The tab with a scripted model."""
    paused, registry = Paused(), LiveRegistry()
    engine = Engine(paused.loaded(), costs=lambda: NOMINAL_COSTS)
    engine.start_worker()
    try:
        with serving(serve(engine, registry), **launch_options()) as url:
            yield SimpleNamespace(url=url, engine=engine, registry=registry, paused=paused)
    finally:
        engine.stop_worker()


@contextmanager
def opened(chromium: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page of its own, where nothing moves by itself unless told otherwise."""
    with open_page(chromium, url, **{"reduced_motion": "reduce", **options}) as page:
        page.set_default_timeout(SLOW)
        page.wait_for_selector(".mars-run")
        yield page


@pytest.fixture(scope="module")
def visit(chromium, bare) -> Iterator[Any]:
    """One visitor of the page without a model, for all tests that only open a trace of their own."""
    with opened(chromium, bare) as page:
        wait_drawn(page, ".mars-replay[data-state=shown]")
        yield page


@pytest.fixture(scope="module")
def writer(chromium, writing) -> Iterator[Any]:
    """One visitor of the page with a model."""
    with opened(chromium, writing.url) as page:
        yield page


@pytest.fixture
def page(visit) -> Iterator[Any]:
    """That visitor, who meets no error in a test."""
    visit.problems.clear()
    yield visit
    assert visit.problems == []


@pytest.fixture
def author(writer, writing) -> Iterator[Any]:
    """The one with a model, which starts every test at full speed."""
    writing.paused.seconds = 0.0
    writer.problems.clear()
    yield writer
    assert writer.problems == []


def open_file(page: Any, data: str | bytes, folder: Path, name: str = "run.json") -> None:
    """Choose a file in the chooser."""
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    page.set_input_files(".mars-file", path)


def open_trace(page: Any, trace: Trace, folder: Path) -> None:
    """Open a trace and wait until it is what is shown, at its first forward, by keyboard."""
    open_file(page, trace_text(trace), folder)
    wait_shown(page, trace.prompt[-1]["content"])
    page.focus(".mars-scrub")
    page.keyboard.press("Home")


def wait_shown(page: Any, question: str) -> None:
    page.wait_for_function("q => document.querySelector('.mars-asked')?.textContent === q", arg=question)


NUMBERS = count(1)


def trace_of(events: list[Any], question: str | None = None) -> Trace:
    """A trace of these events, with a question that no other has."""
    asked = question or f"Question {next(NUMBERS)}?"
    return Trace(({"role": "user", "content": asked},), tuple(PROMPT), {}, FACTS, tuple(events))


def shown(page: Any, view: str = "#replay-view") -> str:
    return page.evaluate("v => document.querySelector(v + ' .mars-text').textContent", view)


def refused(page: Any) -> str:
    page.wait_for_selector(".mars-refused:not(:empty)")
    return page.text_content(".mars-refused")


def title(page: Any) -> str:
    return page.text_content(".mars-step-title")


# ---- without a model ----


def test_without_a_model_the_page_opens_with_a_recorded_run_marked_as_recorded(chromium, bare):
    first = recorded_runs()[0].trace
    with opened(chromium, bare) as page:
        wait_drawn(page, ".mars-replay[data-state=shown]")
        assert page.is_visible(".mars-badge") and page.text_content(".mars-badge") == "Recorded"
        where = page.text_content(".mars-where")
        for fact in (first.model["name"], first.model["device"], first.model["dtype"], first.recorded[:4]):
            assert fact in where
        assert shown(page) == first.text()
        assert "without one" in page.text_content(".mars-branch-words")
        assert not page.is_visible(".mars-branch-go") and not page.query_selector("button.mars-option")
        page.wait_for_selector("#replay-charts")
        assert page.problems == []


def test_one_picks_among_the_recorded_runs(page):
    runs = recorded_runs()
    page.click(f".mars-run >> nth={len(runs) - 1}")
    wait_shown(page, runs[-1].trace.prompt[-1]["content"])
    wait_drawn(page)
    assert shown(page) == runs[-1].trace.text()
    assert page.get_attribute(f".mars-run >> nth={len(runs) - 1}", "aria-pressed") == "true"
    assert page.get_attribute(".mars-run >> nth=0", "aria-pressed") == "false"


def test_arrow_keys_step_from_where_a_run_was_picked_too(page):
    runs = recorded_runs()
    page.click(".mars-run >> nth=0")
    wait_shown(page, runs[0].trace.prompt[-1]["content"])
    wait_drawn(page)
    last = len(runs[0].trace.events)
    for key, at in [("ArrowLeft", last - 1), ("ArrowLeft", last - 2), ("ArrowRight", last - 1)]:
        page.keyboard.press(key)
        assert page.text_content(".mars-place") == f"{at} / {last}"
    page.click("h3, .mars-intro >> nth=0")  # nothing has the focus now
    page.keyboard.press("ArrowLeft")
    assert page.text_content(".mars-place") == f"{last - 2} / {last}"


def test_the_keyboard_goes_through_the_forwards_and_the_answer_grows_and_shrinks(page, tmp_path):
    trace = trace_of(answer("one two three four five six seven", counts=(1, 2, 3)))
    texts = [told.text for told in trace.events]
    open_trace(page, trace, tmp_path)
    page.focus(".mars-scrub")
    for key, at in [
        ("Home", 0),
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", len(texts) - 1),
    ]:
        page.keyboard.press(key)
        assert shown(page) == "".join(texts[: at + 1])
        assert page.text_content(".mars-place") == f"{at + 1} / {len(texts)}"
        assert page.input_value(".mars-scrub") == str(at)
        assert f"Forward {at + 1} of {len(texts)}" in page.get_attribute(".mars-scrub", "aria-valuetext")
    assert "Answer finished" in page.text_content("#replay-view .mars-ending")
    page.fill(".mars-scrub", "2")
    assert shown(page) == "".join(texts[:3])
    page.click("[aria-label^='One forward back']")
    assert shown(page) == "".join(texts[:2])


def test_a_forward_shows_its_window_its_predictions_against_tau_and_what_became_of_them(page, tmp_path):
    guess = [token("", "candidate", 0.7, label=" c"), token("", "candidate", 0.95, label=" d")]
    how = {"verify": True}
    events = [
        event(0, [token(" a"), token(" b", "accepted", 0.93)], guess, num_cached=0, window_length=12, **how),
        event(1, [token(" c", "verified"), token(" x")], num_drafts=2, num_cached=9, window_length=7, **how),
        event(2, [token("", special=True, label="<|im_end|>")], num_cached=12, finish_reason="eos", **how),
    ]  # fmt: skip
    open_trace(page, trace_of(events), tmp_path)
    assert title(page) == "Forward 1 of 3: 2 tokens"
    assert page.text_content(".mars-caption") == "Fed: 9 tokens, 3 masks"
    assert page.locator(".mars-outcome").all_text_contents() == [
        "committed: the model's own next token, no mask before it",
        "committed: 0.930 ≥ τ",
        "0.700 < τ; kept as a draft, confirmed by the next forward",
        "sure enough, but one before it was not; kept as a draft, refuted by the next forward",
    ]
    # τ stands in the bars of what was compared with it
    marks = page.evaluate(
        "[...document.querySelectorAll('.mars-prediction')]"
        ".map((row) => row.querySelector('u')?.style.insetInlineStart ?? '')"
    )
    assert marks == ["", "90%", "90%", "90%"]
    widths = page.evaluate("[...document.querySelectorAll('.mars-sure-bar i')].map((i) => i.style.width)")
    assert widths == ["97%", "93%", "70%", "95%"]
    page.keyboard.press("ArrowRight")
    assert page.text_content(".mars-caption") == "Fed: 2 tokens, 2 drafts, 3 masks; 9 more from the cache"
    assert page.locator(".mars-fed-draft").all_text_contents() == ["␣c", "␣d"]
    assert page.locator(".mars-right").all_text_contents() == ["␣c"]
    assert page.locator(".mars-outcome").all_text_contents() == [
        "committed: the draft says the same", "committed instead of the draft ␣d",
    ]  # fmt: skip
    facts = page.text_content(".mars-step-facts")
    assert "window of 7 positions" in facts and "30.0 ms" in facts and "4 tokens so far" in facts
    assert "2.00 tok/fwd" in facts


def test_text_of_a_trace_is_shown_as_it_is_wherever_it_stands(page, tmp_path):
    first = token(HOSTILE, label=HOSTILE)
    start = event(0, [first], [token("", "candidate", label=HOSTILE)])
    end = event(1, [], finish_reason="error", error=HOSTILE, prefill=False)
    open_trace(page, trace_of([start, end], HOSTILE), tmp_path)
    assert shown(page) == HOSTILE
    for place in (".mars-what", ".mars-option code"):
        assert page.text_content(place).replace("␣", " ") == HOSTILE
    assert FACTS["name"] in page.text_content(".mars-where")
    page.keyboard.press("End")
    assert page.text_content("#replay-view .mars-ending") == HOSTILE
    assert not page.query_selector("#replay img, #replay .mars-replay b:not(.mars-badge)")


@pytest.mark.parametrize(
    "source, words",
    [
        ("{", "no valid JSON"),
        ('{"format": "mars-trace", "version": 1}', "version 1"),
        (b"\xff\xfe\x00", "JSON"),
        ("[" * 100_000, "nested|JSON"),
        (HOSTILE, "JSON"),
        (json.dumps({"format": "mars-trace", "version": 2, "recorded": HOSTILE}), "missing"),
    ],
    ids=["cut", "old", "bytes", "nested", "html", "fields"],
)
def test_a_file_that_is_no_trace_is_refused_with_a_word_and_nothing_is_lost(page, tmp_path, source, words):
    open_trace(page, trace_of(answer("kept as it was")), tmp_path)
    before = shown(page)
    open_file(page, source, tmp_path, "<b>bad</b>.json".replace("/", "_"))
    said = refused(page)
    assert said.startswith("<b>bad<_b>.json cannot be opened.") and any(w in said for w in words.split("|"))
    assert shown(page) == before and title(page)
    # the next good file clears the word
    open_trace(page, trace_of(answer("next")), tmp_path)
    assert page.text_content(".mars-refused") == ""


def test_a_file_too_large_is_not_even_read(page, tmp_path):
    wait_drawn(page, ".mars-replay[data-state=shown]")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    open_file(page, b" " * (MAX_BYTES + 1), tmp_path)
    assert "a trace may have 16" in refused(page)
    assert not [url for url in sent if "queue" in url or "run" in url]


def test_a_file_can_be_dropped(page):
    text = trace_text(trace_of(answer("dropped here"), "Dropped?"))
    transfer = page.evaluate_handle(
        "text => { const t = new DataTransfer(); t.items.add(new File([text], 'x.json')); return t; }",
        text,
    )
    page.dispatch_event(".mars-zone", "drop", {"dataTransfer": transfer})
    wait_shown(page, "Dropped?")
    assert shown(page) == "dropped here"


def test_it_plays_by_itself_and_stops_where_a_visitor_takes_over(chromium, bare, tmp_path):
    trace = trace_of(answer("one two three four five six " * 8, counts=(1,), seconds=0.2))
    with opened(chromium, bare, reduced_motion="no-preference") as page:
        wait_drawn(page, ".mars-replay[data-state=shown]")
        open_file(page, trace_text(trace), tmp_path)
        wait_shown(page, trace.prompt[0]["content"])
        page.wait_for_function("Number(document.querySelector('.mars-scrub').value) > 1")
        assert page.text_content(".mars-play") == "Pause"
        page.focus(".mars-scrub")
        page.keyboard.press("Home")
        assert page.text_content(".mars-play") == "Play"
        page.wait_for_timeout(600)
        assert page.input_value(".mars-scrub") == "0"
        page.keyboard.press(" ")
        page.wait_for_function("Number(document.querySelector('.mars-scrub').value) > 0")
        page.select_option(".mars-pace select", "4")
        wait_drawn(page, "#replay-view .mars-view[data-state=done]")
        assert page.text_content(".mars-play") == "Play" and shown(page) == trace.text()


def test_where_motion_is_not_wanted_nothing_moves_by_itself(page, tmp_path):
    trace = trace_of(answer("one two three four five six " * 8, counts=(1,), seconds=0.01))
    open_file(page, trace_text(trace), tmp_path)
    wait_shown(page, trace.prompt[0]["content"])
    last = str(len(trace.events) - 1)
    for _ in range(5):
        assert page.input_value(".mars-scrub") == last
        page.wait_for_timeout(100)
    assert page.text_content(".mars-play") == "Play" and shown(page) == trace.text()


def test_on_a_phone_nothing_is_cut_off(chromium, bare, tmp_path):
    long = "a_very_long_word_without_any_space_in_it" * 6
    run = [
        event(0, [token(long, label=long)], [token("", "candidate", label=long)]),
        event(1, finish_reason="stop"),
    ]
    with opened(chromium, bare, width=390, dark=True) as page:
        open_trace(page, trace_of(run, long), tmp_path)
        assert not overflows(page)
        assert page.evaluate(
            "((panel) => panel.scrollWidth <= panel.clientWidth)(document.querySelector('.mars-step'))"
        )


@pytest.mark.parametrize(
    "events", [[], answer("x")[:1], [event(0, finish_reason="cancelled")]], ids=["none", "one", "stopped"]
)
def test_runs_of_no_forward_or_one_are_shown_too(page, tmp_path, events):
    open_trace(page, trace_of(events), tmp_path)
    assert shown(page) == "".join(told.text for told in events)


# ---- branches ----


def recording(app: SimpleNamespace, num_tokens: int = 24) -> Trace:
    """A run of the page's own model."""
    asked = DecodeSettings(max_new_tokens=num_tokens, threshold=0.9)
    question = {"role": "user", "content": f"Branch {next(NUMBERS)}?"}
    return record(app.engine.loaded, (question,), PROMPT, asked, app.engine.stream(Request(PROMPT, asked)))


def test_another_token_makes_a_branch_beside_the_original_marked_where_they_part(author, writing, tmp_path):
    trace = recording(writing)
    open_trace(author, trace, tmp_path)
    author.keyboard.press("ArrowRight")
    other = author.locator(".mars-prediction >> nth=0").locator(".mars-option >> nth=1")
    label = other.locator("code").text_content()
    other.click()
    assert other.get_attribute("aria-pressed") == "true"
    before = len(trace.events[0].committed)
    assert f"at token {before + 1}, in place of" in author.text_content(".mars-branch-words")
    author.click(".mars-branch-go")
    wait_drawn(author, "#replay-written .mars-view[data-state=done]")
    assert shown(author, "#replay-original") == trace.text()
    branch = shown(author, "#replay-written")
    assert branch[:before] == trace.text()[:before] and branch[before] != trace.text()[before]
    # a script goes by positions alone: behind the token it says the same again
    assert branch[before + 1 : 24] == trace.text()[before + 1 :][: 24 - before - 1]
    marked = author.locator(".mars-parts")
    assert marked.all_text_contents() == [trace.text()[before], branch[before]]
    note = author.text_content("#replay-written .mars-lane-note")
    assert label in note.replace(" ", "␣")
    first = "first token is" if before == 1 else f"first {before} tokens are"
    assert note.startswith(f"The {first} the recording's; the two part at token {before + 1}:")
    assert "Branch cut" in author.text_content("#replay-written .mars-ending")
    assert "recorded" in author.text_content("#replay-original .mars-lane-title")
    assert not author.is_visible("#replay-stop")


def test_another_threshold_alone_makes_a_branch_too(author, writing, tmp_path):
    trace = recording(writing)
    open_trace(author, trace, tmp_path)
    author.fill("#replay-branch-settings input[type=number]", "1")
    author.press("#replay-branch-settings input[type=number]", "Enter")
    author.wait_for_function(
        "document.querySelector('#replay-branch-settings input[type=range]').value === '1'"
    )
    author.click(".mars-branch-go")
    wait_drawn(author, "#replay-written .mars-view[data-state=done]")
    assert shown(author, "#replay-written") == trace.text()
    assert "24 new tokens in 24 forwards" in author.text_content("#replay-written .mars-ending")
    assert "says the same" in author.text_content("#replay-written .mars-lane-note")
    assert author.locator(".mars-parts").count() == 0


def test_stop_ends_a_branch_and_keeps_what_was_written(author, writing, tmp_path):
    trace = recording(writing, 400)
    writing.paused.seconds = 0.1
    open_trace(author, trace, tmp_path)
    author.click(".mars-branch-go")
    author.wait_for_function("document.querySelector('#replay-written .mars-text')?.textContent.length > 3")
    author.click("#replay-stop")
    wait_drawn(author, "#replay-written .mars-view[data-state=done]")
    assert "Branch stopped" in author.text_content("#replay-written .mars-ending")
    assert 3 < len(shown(author, "#replay-written")) < 400
    author.wait_for_selector("#replay-stop", state="hidden")
    assert wait_until(lambda: not writing.engine.rows and not writing.registry.sessions, 30)


@pytest.mark.parametrize("leave", [False, True], ids=["another run", "closed tab"])
def test_another_run_and_a_closed_tab_end_a_branch(chromium, writing, tmp_path, leave):
    writing.paused.seconds = 0.0
    trace = recording(writing, 400)
    writing.paused.seconds = 0.1
    with opened(chromium, writing.url) as page:
        open_trace(page, trace, tmp_path)
        page.click(".mars-branch-go")
        page.wait_for_function("document.querySelector('#replay-written .mars-text')?.textContent.length > 3")
        if not leave:
            open_trace(page, trace_of(answer("another")), tmp_path)
            assert wait_until(lambda: not writing.engine.rows, 60)
            page.wait_for_selector("#replay-written", state="hidden")
    assert wait_until(lambda: not writing.engine.rows and not writing.registry.sessions, 60)


def test_a_run_of_another_tokenizer_shows_and_cannot_be_branched(author, writing, tmp_path):
    open_trace(author, trace_of(answer("other words")), tmp_path)
    author.keyboard.press("End")
    assert shown(author) == "other words"
    assert "another tokenizer" in author.text_content(".mars-branch-words")
    assert not author.query_selector("button.mars-option") and not author.is_visible(".mars-branch-go")


def test_a_branch_by_another_model_is_announced(author, writing, tmp_path):
    trace = recording(writing)
    other = Trace(trace.prompt, trace.prompt_ids, trace.settings, {"name": "Another"}, trace.events)
    open_trace(author, other, tmp_path)
    assert "Not the recorded model: scripted will write" in author.text_content(".mars-branch-words")
