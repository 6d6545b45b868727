"""The Compare tab in a real browser, on scripted and tiny models: what it does, not how fast."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.lanes import LANE_MODES, SIDES
from mars_core import DecodeSettings, Request, chat_prompt_ids
from tests.browser import overflows, record_states, wait_drawn
from tests.chat_page import wait_until
from tests.compare_page import compare, race, served, shown_text, wait_result
from tests.scripted import always, saying, scripted_loaded
from tests.tiny import tiny_loaded, tiny_tokenizer

pytestmark = pytest.mark.browser

QUESTION = "<b>${1}{{x}}`"
HOSTILE = "<img src=x onerror=alert(1)> </span> &lt; `${alert(1)}` {{value}} a<b && c>d"


def slow_loaded(pause_s: float = 0.03) -> Any:
    """Letters for ever, a forward every `pause_s` seconds."""
    loaded = scripted_loaded(always(), context_length=4096)
    loaded.model.before = lambda number: time.sleep(pause_s)
    return loaded


@pytest.fixture(scope="module")
def slow() -> Iterator[SimpleNamespace]:
    with served(slow_loaded()) as app:
        yield app


@pytest.fixture(scope="module")
def parting() -> Iterator[SimpleNamespace]:
    """Answers that part at their 31st token: behind a mask the model is sure of another one there."""
    start = prompt_length(QUESTION)
    *letters, other = tiny_tokenizer()("ABCDEFGHIJKLMNOPQRSTUVWXYZ#")["input_ids"]

    def script(position: int, masked: bool) -> tuple[int, float]:
        offset = position + 1 - start
        return other if masked and offset == 30 else letters[offset % 26], 1.0

    with served(scripted_loaded(script)) as app:
        yield app


def prompt_length(question: str) -> int:
    return len(chat_prompt_ids(tiny_tokenizer(), [{"role": "user", "content": question}]))


def expected(app: SimpleNamespace, question: str, settings: DecodeSettings) -> str:
    """What the library answers."""
    ids = chat_prompt_ids(app.engine.loaded.tokenizer, [{"role": "user", "content": question}])
    return "".join(event.text for event in app.engine.stream(Request(ids, settings)))


def seek(page: Any, share: float) -> None:
    """Drag the replay's slider to this share of the race."""
    page.evaluate(
        """(share) => {
          const slider = document.querySelector('.mars-race-time');
          slider.value = slider.max * share;
          slider.dispatchEvent(new Event('input', { bubbles: true }));
        }""",
        share,
    )


def seen(page: Any, side: str) -> str:
    """The part of a lane's answer that is not hidden."""
    return page.evaluate(
        f"""[...document.querySelectorAll('#compare-{side} .mars-group:not(.mars-race-future)')]
            .map((group) => group.textContent).join('')"""
    )


def test_both_lanes_write_what_the_library_writes_and_the_result_is_said_once(chromium):
    with served(tiny_loaded()) as app, compare(chromium, app, max_new_tokens=60) as page:
        race(page, "hello")
        left, right = wait_result(page)
        assert left == expected(app, "hello", DecodeSettings(mode="ar", max_new_tokens=60))
        verified = DecodeSettings(threshold=0.9, verify=True, max_new_tokens=60)
        assert right == expected(app, "hello", verified)
        headline = page.text_content("#compare .mars-race-headline")
        assert re.search("as fast as AR|equally fast", headline), headline
        assert page.text_content("#compare [role=status]").startswith("The race is over.")
        live = page.locator("#compare [role=status], #compare [aria-live]:not([aria-live=off])")
        assert live.count() == 1, "nothing else is announced"
        assert page.problems == []


def test_both_lanes_come_at_once_and_no_forward_serves_two(chromium, slow):
    before = len(slow.engine.loaded.model.fed)
    with compare(chromium, slow, max_new_tokens=120) as page:
        race(page, "count")
        page.wait_for_function(
            """['left', 'right'].every((side) =>
                 document.querySelector(`#compare-${side} .mars-text`).textContent.length > 4)
               && document.getElementById('compare').dataset.state === 'running'"""
        )
        left, right = wait_result(page)
        assert len(left) == len(right) == 120
    fed = slow.engine.loaded.model.fed[before:]
    assert all(len(rows) == 1 for rows in fed)
    lengths = [len(rows[0]) for rows in fed[2:14]]
    assert set(lengths[0::2]) == {1} and min(lengths[1::2]) > 1, "one forward each, in turn"


def test_stop_ends_both_lanes_and_keeps_what_was_written(chromium, slow):
    with compare(chromium, slow, max_new_tokens=1000) as page:
        race(page, "count")
        page.wait_for_function("document.querySelector('#compare-left .mars-text').textContent.length > 4")
        page.click("#compare-stop")
        left, right = wait_result(page, 20)
        forwards = len(slow.engine.loaded.model.fed)
        page.wait_for_timeout(300)
        assert len(slow.engine.loaded.model.fed) == forwards
        assert 4 < len(left) < 1000 and left == right[: len(left)]
        for side in SIDES:
            assert "Stopped." in page.text_content(f"#compare-{side} .mars-ending")
        assert "did not come to its end" in page.text_content("#compare .mars-race-result")


def test_escape_stops_and_the_focus_stays_in_the_page(chromium, slow):
    with compare(chromium, slow, max_new_tokens=1000) as page:
        page.fill("#compare-box textarea", "count")
        page.focus("#compare-start")
        page.keyboard.press("Enter")
        wait_drawn(page, "#compare[data-state=running]")
        assert page.evaluate("document.activeElement.id") == "compare-stop"
        page.wait_for_function("document.querySelector('#compare-left .mars-text').textContent.length > 2")
        page.evaluate(
            """() => {
              window.stops = 0;
              document.getElementById('compare-stop').addEventListener('click', () => (window.stops += 1));
            }"""
        )
        page.keyboard.press("Escape")
        wait_result(page, 20)
        assert page.evaluate("document.activeElement.id") == "compare-start"
        page.keyboard.press("Escape")
        assert page.evaluate("window.stops") == 1, "once, and never where it does not show"


def test_lanes_are_not_swapped_under_a_race_and_that_is_said(chromium, slow):
    with compare(chromium, slow, max_new_tokens=1000) as page:
        race(page, "count")
        page.wait_for_function("document.querySelector('#compare-left .mars-text').textContent.length > 2")
        page.evaluate("document.getElementById('compare-swap').click()")
        page.wait_for_selector("text=A race is being run.")
        wait_drawn(page, "#compare[data-state=running]")
        assert page.is_disabled("#compare-tau-left input[type=range]")
        page.keyboard.press("Escape")
        wait_result(page, 20)


def test_a_closed_tab_ends_its_race(chromium, slow):
    with compare(chromium, slow, max_new_tokens=1000) as page:
        race(page, "count")
        assert wait_until(lambda: slow.tab.track.num_lanes == 2)
    assert wait_until(lambda: slow.tab.track.num_lanes == 0, timeout_s=20)


def test_tau_of_a_lane_acts_on_its_running_answer(chromium, slow):
    with compare(chromium, slow, max_new_tokens=400) as page:
        set_mode(page, "right", "MARS")
        race(page, "count")
        page.wait_for_function("document.querySelector('#compare-right .mars-text').textContent.length > 12")
        page.focus("#compare-tau-right input[type=range]")
        page.keyboard.press("End")
        page.wait_for_selector("#compare-right .mars-race-force >> text=one token a forward")
        page.keyboard.press("Escape")
        wait_result(page, 20)


def test_the_first_difference_is_marked_in_both_lanes_and_shown_on_a_click(chromium, parting):
    with compare(chromium, parting, max_new_tokens=400) as page:
        set_mode(page, "right", "MARS")
        race(page, QUESTION)
        left, right = wait_result(page)
        assert (left[30], right[30]) == ("E", "#") and left[:30] == right[:30]
        assert "They part at token 31: AR wrote E, MARS wrote #." in page.text_content(
            ".mars-race-difference"
        )
        for side, text in (("left", "E"), ("right", "#")):
            page.evaluate(f"document.querySelector('#compare-{side} .mars-scroll').scrollTop = 9999")
            assert page.text_content(f"#compare-{side} .mars-race-part") == text
        page.click("text=Show it in both lanes")
        for side in SIDES:
            assert inside_its_box(page, side)
        assert page.problems == []


def set_mode(page: Any, side: str, mode: str) -> None:
    """Choose a lane's mode, and wait until its dial follows."""
    labels = page.locator(f"#compare .lane:nth-child({1 + SIDES.index(side)}) .lane-mode label")
    labels.nth(LANE_MODES.index(mode)).click()
    disabled = "disabled" if mode == "AR" else "not([disabled])"
    page.wait_for_selector(f"#compare-tau-{side} input[type=range]:{disabled}")


def inside_its_box(page: Any, side: str) -> bool:
    return page.evaluate(
        f"""(() => {{
          const box = document.querySelector('#compare-{side} .mars-scroll').getBoundingClientRect();
          const mark = document.querySelector('#compare-{side} .mars-race-part').getBoundingClientRect();
          return mark.top >= box.top && mark.bottom <= box.bottom;
        }})()"""
    )


def test_swapped_lanes_take_settings_and_answers_along(chromium, parting):
    with compare(chromium, parting, max_new_tokens=60) as page:
        set_mode(page, "right", "MARS")
        race(page, QUESTION)
        left, right = wait_result(page)
        assert left != right
        page.click("#compare-swap")
        page.wait_for_function(
            f"document.querySelector('#compare-left .mars-text').textContent === {right!r}"
        )
        wait_drawn(page)
        assert shown_text(page, "right") == left
        chosen = page.evaluate(
            "[...document.querySelectorAll('#compare .lane-mode input')].map((input) => input.checked)"
        )
        assert chosen == [False, True, False, True, False, False]
        assert page.is_disabled("#compare-tau-right input[type=range]")
        assert not page.is_disabled("#compare-tau-left input[type=range]")
        assert "MARS wrote #, AR wrote E" in page.text_content(".mars-race-difference")
        # the same texts again: seen by the panel's states, however short they are
        record_states(page, "compare")
        page.click("#compare-retry")
        page.wait_for_function("window.states.includes('done')", timeout=120_000)
        assert wait_result(page) == [right, left]


def test_the_replay_follows_the_lanes_own_clocks(chromium, slow):
    with compare(chromium, slow, max_new_tokens=40) as page:
        page.fill("#compare-box textarea", "count")
        page.click("#compare-start")  # Enter is followed by a question of its own at the end
        whole = wait_result(page)
        requests_before: list[str] = []
        page.on("request", lambda request: requests_before.append(request.url))
        seek(page, 0)
        assert [len(seen(page, side)) for side in SIDES][0] == 1, "the prompt's own token"
        seek(page, 0.25)
        left, right = (seen(page, side) for side in SIDES)
        assert len(left) < len(right) <= 40, "MARS is ahead on its clock"
        assert whole[0].startswith(left) and whole[1].startswith(right)
        assert page.get_attribute(".mars-race-time", "aria-valuetext").count("tokens") == 2
        seek(page, 1)
        assert [seen(page, side) for side in SIDES] == whole
        assert not page.locator(".mars-race-replaying").count()
        assert not any("/gradio_api/" in url and "heartbeat" not in url for url in requests_before)


def test_the_replay_plays_to_its_end_pauses_and_is_driven_by_keyboard(chromium, slow):
    with compare(chromium, slow, max_new_tokens=40) as page:
        race(page, "count")
        whole = wait_result(page)
        page.focus(".mars-race-rates input:checked")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")  # a quarter of the speed: time to pause it
        page.focus(".mars-race-play")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Pause")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Replay race")
        paused = seen(page, "left")
        assert len(paused) < 40
        page.focus(".mars-race-time")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        assert seen(page, "left") == whole[0]
        page.focus(".mars-race-rates input:checked")
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        assert page.get_attribute(".mars-race-rates input:checked", "value") == "4"
        page.click(".mars-race-play")
        page.wait_for_selector("text=Replay race")
        page.wait_for_function(
            "(({ value, max }) => value === max)(document.querySelector('.mars-race-time'))"
        )
        assert [seen(page, side) for side in SIDES] == whole


def test_nothing_plays_by_itself(chromium, slow):
    with compare(chromium, slow, max_new_tokens=12, reduced_motion="reduce") as page:
        race(page, "count")
        whole = wait_result(page)
        page.wait_for_timeout(300)
        assert [seen(page, side) for side in SIDES] == whole
        assert page.is_visible("text=Replay race")


def test_hostile_text_shows_character_by_character(chromium):
    start = prompt_length(QUESTION)
    tokens = tiny_tokenizer()(HOSTILE, split_special_tokens=True)["input_ids"]
    loaded = scripted_loaded(saying([*tokens, 258], start))
    with served(loaded) as app, compare(chromium, app, max_new_tokens=200) as page:
        race(page, QUESTION)
        assert wait_result(page) == [HOSTILE, HOSTILE]
        assert page.input_value("#compare-box textarea") == QUESTION
        assert "100 %" in page.text_content(".mars-race-result")
        assert page.evaluate("document.querySelectorAll('#compare img[src=x]').length") == 0
        seek(page, 0.5)
        seek(page, 1)
        assert page.problems == []


def test_what_cannot_be_asked_changes_nothing(chromium):
    with served(tiny_loaded()) as app, compare(chromium, app) as page:
        for text, words in (("   ", "Type a question first"), ("word " * 300, "too long")):
            race(page, text)
            page.wait_for_selector(f"text={words}")
            assert page.input_value("#compare-box textarea") == text
            assert page.get_attribute("#compare", "data-state") == "empty"
        assert page.problems == []


def test_a_failing_lane_says_so_in_plain_words_and_the_other_ends(chromium):
    loaded = scripted_loaded(always())
    failures = [6]

    def before(number: int) -> None:
        if number in failures:
            failures.clear()
            raise RuntimeError("out of memory")

    loaded.model.before = before
    with served(loaded) as app, compare(chromium, app, max_new_tokens=40) as page:
        race(page, "go")
        left, right = wait_result(page)
        assert "ran out of memory" in page.text_content("#compare-left .mars-ending")
        assert len(right) == 40 and 0 < len(left) < 40
        result = page.text_content(".mars-race-result")
        assert "did not come to its end" in result and "AR: The device ran out of memory." in result
        page.click("#compare-retry")
        page.wait_for_function("document.querySelector('#compare-left .mars-text').textContent.length === 40")


def test_two_visitors_races_do_not_disturb_each_other(chromium, slow):
    with (
        compare(chromium, slow, max_new_tokens=1000) as one,
        compare(chromium, slow, max_new_tokens=30) as two,
    ):
        race(one, "first")
        race(two, "second")
        one.wait_for_function("document.querySelector('#compare-left .mars-text').textContent.length > 4")
        one.keyboard.press("Escape")
        assert len(wait_result(one, 20)[0]) < 1000
        assert [len(text) for text in wait_result(two)] == [30, 30]


def test_one_click_on_an_example_races(chromium, slow):
    with compare(chromium, slow, max_new_tokens=12) as page:
        page.click("#compare-tools >> text=Make JSON")
        assert [len(text) for text in wait_result(page)] == [12, 12]
        assert "JSON" in page.input_value("#compare-box textarea")


def test_a_visit_to_another_tab_loses_nothing(chromium, slow):
    with compare(chromium, slow, max_new_tokens=30) as page:
        race(page, "count")
        page.click("button[role=tab] >> text=Another")
        page.wait_for_timeout(1500)
        page.click("button[role=tab] >> text=Compare")
        assert [len(text) for text in wait_result(page)] == [30, 30]
        assert page.is_visible(".mars-race-headline")
        assert page.problems == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_lanes_stack_where_it_is_narrow(chromium, parting, width, dark):
    with compare(chromium, parting, max_new_tokens=60, width=width, dark=dark) as page:
        race(page, QUESTION)
        wait_result(page)
        page.wait_for_selector("#compare-charts .js-plotly-plot", timeout=120_000)
        assert not overflows(page)
        left, right = (page.locator(f"#compare-{side}").bounding_box() for side in SIDES)
        assert (right["y"] > left["y"] + left["height"]) if width == 390 else right["y"] == left["y"]
        assert page.problems == []


def test_max_new_tokens_and_seed_are_the_same_for_both(chromium):
    with served(tiny_loaded()) as app, compare(chromium, app, max_new_tokens=24) as page:
        temperature = page.locator("#compare-shared input[type=number]").nth(1)
        temperature.fill("1")
        temperature.press("Tab")
        set_mode(page, "right", "AR")
        race(page, "hello")
        left, right = wait_result(page)
        assert left == right, "sampled, from one seed"
