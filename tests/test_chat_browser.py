"""The Chat tab in a real browser, on scripted and tiny models: what it does, not how fast."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mars_core import DecodeSettings, Request, chat_prompt_ids
from tests.browser import open_part, overflows, record_states, wait_drawn
from tests.chat_page import (
    ask,
    chat,
    running,
    served,
    shown_text,
    trace_of,
    wait_answer,
    wait_until,
    wait_written,
)
from tests.scripted import always, saying, scripted_loaded, slow_letters
from tests.tiny import tiny_loaded

pytestmark = pytest.mark.browser

VERIFY = {"verify": True}  # as the page starts

HOSTILE = "<img src=x onerror=alert(1)> </span></div> &lt; `${alert(1)}` {{value}} a<b && c>d <|im_end|>"


@pytest.fixture(scope="module")
def slow() -> Iterator[SimpleNamespace]:
    with served(slow_letters(0.05)) as app:
        yield app


@pytest.fixture(scope="module")
def tiny() -> Iterator[SimpleNamespace]:
    with served(tiny_loaded()) as app:
        yield app


def expected(app: SimpleNamespace, question: str, settings: DecodeSettings) -> str:
    """What the library answers."""
    ids = chat_prompt_ids(app.engine.loaded.tokenizer, [{"role": "user", "content": question}])
    return "".join(event.text for event in app.engine.stream(Request(ids, settings)))


def test_an_answer_is_the_librarys_and_none_of_it_is_lost_or_doubled(chromium, tiny, tmp_path):
    link = {"temperature": 0.8, "seed": 5, "max": 80, "tau": 0.5, "b": 4}
    with chat(chromium, tiny, link=link) as page:
        ask(page, "hello")
        text = wait_answer(page)
        settings = DecodeSettings(threshold=0.5, **VERIFY, temperature=0.8, seed=5, max_new_tokens=80)
        assert text == expected(tiny, "hello", settings)
        trace = trace_of(page, tmp_path)
        assert trace["text"] == text
        assert trace["settings"]["seed"] == 5
        assert sum(len(event["committed"]) for event in trace["events"]) == trace["statistics"]["num_tokens"]
        assert trace["statistics"]["finish_reason"] in ("eos", "length")
        assert page.problems == []


def test_turning_tau_acts_on_the_answer_that_is_being_written(chromium, slow, tmp_path):
    with chat(chromium, slow, link={"max": 2000, "tau": 0.8}) as page:
        ask(page, "count")
        page.wait_for_function("document.querySelectorAll('#token-view .mars-text *').length > 20")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#figures .mars-progress:has-text('τ = 0.86')")
        page.keyboard.press("Escape")
        wait_answer(page)
        taus = [event["threshold"] for event in trace_of(page, tmp_path)["events"]]
        assert taus[0] == 0.8
        assert taus[-1] == pytest.approx(0.86)
        changed = next(index for index, tau in enumerate(taus) if tau != 0.8)
        assert taus[changed:] == sorted(taus[changed:]), "once turned it never falls back"
        assert page.problems == []


def test_at_the_sliders_exact_end_each_forward_commits_one_token(chromium, slow, tmp_path):
    with chat(chromium, slow, link={"max": 12, "tau": 1, "verify": "false"}) as page:
        assert page.text_content("#tau-ends output") == "1 token a forward"
        ask(page, "count")
        wait_answer(page)
        assert [len(event["committed"]) for event in trace_of(page, tmp_path)["events"]] == [1] * 12


def test_stop_ends_the_forwards_and_keeps_what_was_written(chromium, slow):
    with chat(chromium, slow, link={"max": 800}) as page:
        ask(page, "count")
        page.wait_for_function("document.querySelectorAll('#token-view .mars-text *').length > 20")
        page.click("#stop")
        text = wait_answer(page, 5)
        forwards = len(slow.engine.loaded.model.fed)
        page.wait_for_timeout(300)
        assert len(slow.engine.loaded.model.fed) == forwards
        assert slow.engine.rows == []
        assert len(text) > 8
        assert page.text_content(".mars-last-answer .mars-body").strip() == text
        assert "Stopped." in page.text_content("#token-view")
        assert "Stopped." in page.text_content(".mars-last-answer .mars-how")


def test_a_closed_tab_ends_its_generation(chromium, slow):
    with chat(chromium, slow, link={"max": 1000}) as page:
        ask(page, "count")
        assert wait_until(lambda: len(slow.engine.rows) == 1)
    assert wait_until(lambda: slow.engine.rows == [], timeout_s=10)


def test_two_visitors_do_not_disturb_each_other(chromium, slow):
    with chat(chromium, slow, link={"max": 2000}) as one, chat(chromium, slow, link={"max": 60}) as two:
        ask(one, "first")
        ask(two, "second")
        wait_written(one)
        one.click("#stop")
        stopped = wait_answer(one, 10)
        answer = wait_answer(two)
        assert answer == expected(slow, "second", DecodeSettings(max_new_tokens=60, **VERIFY))
        assert len(stopped) < 2000
        assert "first" not in two.text_content("#conversation")


def test_hostile_text_of_a_user_shows_character_by_character(chromium, tiny):
    with chat(chromium, tiny, link={"max": 20}) as page:
        ask(page, HOSTILE)
        wait_drawn(page, "#thread[data-state=answered], #thread[data-state=empty]")
        assert page.text_content(".mars-user .mars-body") == HOSTILE
        assert page.evaluate("document.querySelectorAll('#conversation img, #token-view img').length") == 0
        assert page.problems == []


def test_hostile_text_of_a_model_shows_character_by_character(chromium):
    question = [{"role": "user", "content": "go"}]
    start = len(chat_prompt_ids(scripted_loaded(always()).tokenizer, question))
    tokenizer = scripted_loaded(always()).tokenizer
    tokens = tokenizer(HOSTILE, split_special_tokens=True)["input_ids"]
    loaded = scripted_loaded(saying([*tokens, 258], start), context_length=4096)
    with served(loaded) as app, chat(chromium, app) as page:
        ask(page, "go")
        assert wait_answer(page) == HOSTILE
        rendered = page.text_content(".mars-last-answer .mars-body").strip()
        assert rendered == HOSTILE.replace("`", ""), "its Markdown is rendered, its HTML is text"
        page.hover("#thread")
        assert page.evaluate("document.querySelectorAll('#conversation img, #token-view img').length") == 0
        assert page.problems == []


@pytest.mark.parametrize("blank", ["", "   ", "\u200b"])
def test_nothing_is_sent_where_nothing_was_typed(chromium, tiny, blank):
    with chat(chromium, tiny) as page:
        page.fill("#box textarea", blank)
        page.press("#box textarea", "Enter")
        page.wait_for_selector("text=Type a question first")
        assert page.get_attribute("#thread", "data-state") == "empty"


def test_a_message_that_cannot_fit_is_refused_and_stays_in_the_box(chromium, tiny):
    with chat(chromium, tiny) as page:
        long = "word " * 300
        page.fill("#box textarea", long)
        page.press("#box textarea", "Enter")
        page.wait_for_selector("text=too long")
        assert page.input_value("#box textarea") == long
        assert page.get_attribute("#thread", "data-state") == "empty"


def test_retry_edit_undo_and_clear(chromium, tiny):
    with chat(chromium, tiny, link={"max": 12}) as page:
        ask(page, "one")
        first = wait_answer(page)
        record_states(page, "thread")
        page.click(".mars-last-answer >> text=Retry")
        page.wait_for_function("window.states.includes('answered')")
        assert wait_answer(page) == first
        assert page.locator(".mars-message").count() == 2

        page.click(".mars-user >> text=Edit")
        page.fill(".mars-edit textarea", "two")
        page.keyboard.press("Enter")
        page.wait_for_function("document.querySelector('.mars-user .mars-body')?.textContent === 'two'")
        settings = DecodeSettings(max_new_tokens=12, **VERIFY)
        assert wait_answer(page) == expected(tiny, "two", settings)
        assert page.locator(".mars-message").count() == 2

        page.click("#tools >> text=Undo")
        wait_drawn(page, "#thread[data-messages='0']")
        assert page.input_value("#box textarea") == "two"

        ask(page, "three")
        wait_answer(page)
        page.click("#tools >> text=Clear")
        wait_drawn(page, "#thread[data-messages='0']")
        assert shown_text(page) == ""
        assert page.problems == []


def test_a_failing_model_leaves_the_text_and_the_next_question_works(chromium):
    loaded = scripted_loaded(always(), context_length=4096)
    failures = [4]

    def before(number: int) -> None:
        if number in failures:
            failures.clear()
            raise RuntimeError("out of memory")

    loaded.model.before = before
    with served(loaded) as app, chat(chromium, app, link={"max": 40}) as page:
        ask(page, "go")
        partial = wait_answer(page)
        assert partial == page.text_content(".mars-last-answer .mars-body").strip() != ""
        assert "out of memory" in page.text_content("#token-view")
        ask(page, "again")
        assert wait_answer(page)
        assert len(wait_answer(page)) == 40


def test_tokens_and_rendered_take_turns(chromium, tiny):
    with chat(chromium, tiny, link={"max": 20}) as page:
        ask(page, "hello")
        wait_answer(page)
        assert page.is_visible("#token-view")
        assert page.is_hidden(".mars-last-answer .mars-body")
        page.click(".mars-shown-as >> text=Rendered")
        assert page.is_visible(".mars-last-answer .mars-body")
        assert page.is_hidden("#token-view")
        page.keyboard.press("ArrowLeft")
        assert page.is_visible("#token-view")


def test_a_chosen_view_stays_for_the_next_answer(chromium, tiny):
    with chat(chromium, tiny, link={"max": 20}) as page:
        ask(page, "one")
        wait_answer(page)
        page.click(".mars-shown-as >> text=Rendered")
        ask(page, "two")
        wait_drawn(page, "#thread[data-state=answered][data-messages='4']")
        assert page.is_visible(".mars-last-answer .mars-body")


def test_a_reload_keeps_the_conversation_and_clear_forgets_it(chromium, tiny):
    with chat(chromium, tiny, link={"max": 12}) as page:
        ask(page, "one")
        answer = wait_answer(page).strip()
        page.reload()
        wait_drawn(page, "#thread[data-state=answered][data-ready]")
        assert page.text_content(".mars-user .mars-body") == "one"
        assert page.text_content(".mars-last-answer .mars-body").strip() == answer
        ask(page, "two")
        wait_drawn(page, "#thread[data-state=answered][data-messages='4']")
        page.click("#tools >> text=Clear")
        wait_drawn(page, "#thread[data-messages='0']")
        page.reload()
        page.wait_for_selector("#thread[data-ready]")
        page.wait_for_timeout(500)
        assert page.get_attribute("#thread", "data-messages") == "0"


def test_a_copied_link_opens_ready_and_not_running(chromium, tiny):
    permissions = {"permissions": ["clipboard-read", "clipboard-write"]}
    with chat(chromium, tiny, link={"max": 20, "tau": 0.63, "system": "be <b>"}, **permissions) as page:
        ask(page, "what & why?")
        wait_answer(page)
        page.click("#copy-link")
        page.wait_for_selector("text=Copied")
        link = page.evaluate("navigator.clipboard.readText()")
    assert "max=20" in link and "tau=0.63" in link
    opened = chromium.new_page()
    opened.goto(link)
    wait_drawn(opened, "#thread[data-state=empty]")
    opened.wait_for_function("document.querySelector('#box textarea').value === 'what & why?'")
    assert float(opened.input_value("#tau input[type=range]")) == 0.63
    opened.close()


@pytest.mark.parametrize(
    "query", [{"tau": "nan"}, {"verify": "maybe"}, {"b": "x"}, {"metric": "<b>"}, {"max": "-1"}]
)
def test_a_link_with_wrong_values_still_opens(chromium, tiny, query):
    with chat(chromium, tiny, link={"prompt": "hi", **query}) as page:
        page.wait_for_selector("text=settings were left out")
        assert page.input_value("#box textarea") == "hi"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_every_part_is_there(chromium, tiny, width, dark, tmp_path):
    with chat(chromium, tiny, link={"max": 60}, width=width, dark=dark) as page:
        assert page.is_visible("#examples >> text=Write code")
        ask(page, "hello")
        wait_answer(page)
        for part in ("#tau", "#figures", "#live-chart", "#box", ".mars-last-answer"):
            assert page.locator(part).first.is_visible(), part
        assert not overflows(page)
        assert page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert page.evaluate("document.body.classList.contains('dark')") is dark
        assert page.problems == []


def test_one_click_on_an_example_writes_an_answer(chromium, slow):
    with chat(chromium, slow, link={"max": 24}) as page:
        page.click("#examples >> text=Write code")
        assert len(wait_answer(page)) == 24
        assert "Python" in page.text_content(".mars-user .mars-body")


def test_the_page_follows_the_answer_until_the_reader_scrolls_up(chromium, slow):
    with chat(chromium, slow, link={"max": 2000, "tau": 0.5}, height=500) as page:
        ask(page, "count")
        page.wait_for_function("window.scrollY > 60", timeout=120_000)  # some hundred letters
        page.mouse.move(300, 200)
        page.mouse.wheel(0, -2000)
        page.wait_for_function("window.scrollY === 0")  # it scrolls smoothly
        page.wait_for_timeout(700)
        assert page.evaluate("window.scrollY") == 0
        page.click("#stop")


def test_an_answer_cut_inside_a_character_shows_as_the_library_says_it(chromium):
    question = [{"role": "user", "content": "go"}]
    tokenizer = scripted_loaded(always()).tokenizer
    tokens = tokenizer("ok 💑💑")["input_ids"]
    loaded = scripted_loaded(saying(tokens, len(chat_prompt_ids(tokenizer, question))), context_length=4096)
    with served(loaded) as app, chat(chromium, app, link={"max": len(tokens) - 2}) as page:
        ask(page, "go")
        assert wait_answer(page) == "ok 💑\N{REPLACEMENT CHARACTER}"
        assert page.text_content(".mars-last-answer .mars-body").strip() == shown_text(page)


def test_a_wide_code_block_scrolls_in_its_own_box_on_a_narrow_screen(chromium):
    question = [{"role": "user", "content": "go"}]
    tokenizer = scripted_loaded(always()).tokenizer
    wide = "```python\nraise ValueError('" + "wide " * 40 + "')\n```"
    tokens = [*tokenizer(wide)["input_ids"], 258]
    loaded = scripted_loaded(saying(tokens, len(chat_prompt_ids(tokenizer, question))), context_length=4096)
    with served(loaded) as app, chat(chromium, app, width=390) as page:
        ask(page, "go")
        wait_answer(page)
        page.click(".mars-shown-as >> text=Rendered")
        assert not overflows(page)
        box = page.locator(".mars-code pre").bounding_box()
        assert box["x"] + box["width"] <= 390


def test_the_speed_up_shows_once_one_token_forwards_were_measured(chromium):
    with (
        served(slow_letters(0.05)) as app,
        chat(chromium, app, link={"max": 24, "tau": 0.5, "verify": "false"}) as page,
    ):
        tile = page.locator(".mars-tile-speedup")
        ask(page, "count")
        wait_answer(page)
        assert not tile.is_visible()
        page.focus("#tau input[type=range]")
        page.keyboard.press("End")
        ask(page, "count")
        wait_drawn(page, "#thread[data-state=answered][data-messages='4']")
        assert tile.is_visible()


def test_an_empty_seed_stays_empty(chromium, slow):
    with chat(chromium, slow, link={"max": 8, "temperature": 1}) as page:
        open_part(page, "More settings")
        assert page.input_value("input[placeholder^='a new one'], textarea[placeholder^='a new one']") == ""


def test_verification_is_exact_marks_its_tokens_and_can_be_turned_off_while_it_writes(
    chromium, slow, tmp_path
):
    with chat(chromium, slow, link={"max": 240, "tau": 1}) as page:
        assert page.text_content("#tau-ends output") == "lossless"
        ask(page, "count")
        page.wait_for_function("document.querySelectorAll('#token-view .mars-verified').length > 12")
        with slow.engine.alone():  # no forward until the server knows
            page.click("#verify input")
            assert wait_until(lambda: not any(live.verify for live in running(slow)))
        wait_answer(page)
        plain = DecodeSettings(mode="ar", max_new_tokens=240)
        trace = trace_of(page, tmp_path)
        assert trace["text"] == shown_text(page) == expected(slow, "count", plain)
        decided = [choice["decided"] for event in trace["events"] for choice in event["committed"]]
        assert decided.count("verified") > 12
        assert [len(event["committed"]) for event in trace["events"][-8:]] == [1] * 8


@pytest.mark.parametrize("tool", [0, 1], ids=["undo", "clear"])
def test_what_is_cleared_while_it_is_written_stays_away(chromium, slow, tool):
    """The buttons are hidden then, but a click may already be on its way."""
    with chat(chromium, slow, link={"max": 400}) as page:
        ask(page, "forget me")
        page.wait_for_function("document.querySelectorAll('#token-view .mars-text *').length > 10")
        page.evaluate(f"document.querySelector('#tools button:nth-of-type({tool + 1})').click()")
        wait_drawn(page, "#thread[data-messages='0']")
        page.wait_for_timeout(500)
        assert page.get_attribute("#thread", "data-messages") == "0"
        assert wait_until(lambda: slow.engine.rows == [] and slow.registry.sessions == [])
        ask(page, "next")
        wait_written(page)
        page.keyboard.press("Escape")
        wait_answer(page)
        assert page.locator(".mars-message").count() == 2
        assert "forget me" not in page.text_content("#conversation")


def test_an_empty_message_changes_nothing_of_the_answer_before(chromium, tiny):
    with chat(chromium, tiny, link={"max": 20}) as page:
        ask(page, "hello")
        text = wait_answer(page)
        figures = page.text_content("#figures")
        page.press("#box textarea", "Enter")
        page.wait_for_selector("text=Type a question first")
        page.wait_for_timeout(300)
        assert shown_text(page) == text and page.text_content("#figures") == figures
        assert page.problems == []


def test_undo_leaves_the_answer_before_readable_whatever_view_was_chosen(chromium, tiny):
    with chat(chromium, tiny, link={"max": 20}) as page:
        for number, question in enumerate(("one", "two"), start=1):
            ask(page, question)
            wait_drawn(page, f"#thread[data-state=answered][data-messages='{2 * number}']")
        page.click(".mars-shown-as >> text=Tokens")
        page.click("#tools >> text=Undo")
        wait_drawn(page, "#thread[data-messages='2']")
        assert page.is_visible(".mars-last-answer .mars-body")


def test_a_link_cannot_put_elements_into_the_page(chromium, tiny):
    evil = '<img src=x onerror=alert(1)><form action="http://evil.invalid"><b class=evil>x</b></form>'
    for name in ("tau", "metric", "seed"):
        with chat(chromium, tiny, link={"prompt": "hi", name: evil}) as page:
            page.wait_for_selector("text=settings were left out")
            found = page.evaluate("document.querySelectorAll('img[src=x], form[action*=evil], .evil').length")
            assert found == 0
            assert page.problems == []


def test_a_links_values_beyond_this_models_are_left_out_and_the_page_works(chromium, tiny):
    with chat(chromium, tiny, link={"prompt": "hi", "b": 64, "max": 5}) as page:
        page.wait_for_selector("text=settings were left out")
        ask(page, "hello")
        assert wait_answer(page)


def test_arrow_keys_turn_tau_from_the_empty_message_box_and_the_focus_shows(chromium, slow):
    with chat(chromium, slow, link={"max": 300}) as page:
        ask(page, "count")
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("document.querySelector('#tau input[type=range]').value === '0.89'")
        wait_written(page)
        page.keyboard.press("Escape")
        wait_answer(page)
        page.focus("#tau input[type=range]")
        page.keyboard.press("ArrowLeft")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
