"""Portraits opened from a file in a real browser, without a network: text, playing, silence."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from app.portrait import html_replay, svg_portrait
from app.portrait_text import xml_text
from tests.browser import wait_drawn
from tests.chat_page import wait_until
from tests.portrait_cases import HOSTILE, trace_of
from tests.scripted_events import answer, event, token

pytestmark = pytest.mark.browser

COUNTED = "one two three four five six seven eight nine ten eleven twelve"


@contextmanager
def opened(browser: Any, folder: Path, document: str, ending: str = "html", **context: Any) -> Iterator[Any]:
    """The document as a file in a page that can reach nothing. `page.problems` holds what the console, the
    page and the network had to say."""
    path = folder / f"run.{ending}"
    path.write_bytes(document.encode())
    own = browser.new_context(offline=True, **context)
    page = own.new_page()
    page.set_default_timeout(60_000)
    page.problems = []
    page.on("dialog", lambda dialog: (page.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: page.problems.append(f"error: {error}"))
    page.on("console", lambda line: page.problems.append(f"console: {line.text}"))
    page.on("request", lambda request: request.url != path.as_uri() and page.problems.append(request.url))
    page.goto(path.as_uri())
    try:
        yield page
    finally:
        own.close()


def shown(page: Any) -> str:
    return page.evaluate("document.querySelector('.mars-text').textContent")


def until(page: Any, condition: str) -> bool:
    """True as soon as it holds. The page's own waiting evaluates strings there, which the policy forbids."""
    return wait_until(lambda: page.evaluate(condition), timeout_s=60)


def scrub(page: Any, place: int) -> None:
    page.evaluate(
        """(place) => {
          const slider = document.getElementById('place');
          slider.value = place;
          slider.dispatchEvent(new Event('input', { bubbles: true }));
        }""",
        place,
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_the_replay_shows_the_answer_character_by_character_and_asks_for_nothing(chromium, tmp_path, name):
    trace = trace_of(HOSTILE[name])
    with opened(chromium, tmp_path, html_replay(trace)) as page:
        wait_drawn(page, "#view .mars-view[data-state=done]")
        assert shown(page) == trace.text()
        assert page.text_content("#prompt pre") == f"Say: {HOSTILE[name]}"
        assert "evil" not in page.title() or name in ("ends a script", "templates", "an image")
        assert page.title().startswith("Say: ")
        assert page.evaluate("document.querySelectorAll('img, script:not(#run)').length") == 1
        assert page.problems == []


@pytest.mark.parametrize("name", HOSTILE)
def test_the_picture_opens_and_shows_the_answer(chromium, tmp_path, name):
    told = ElementTree.fromstring(f"<a>{xml_text(HOSTILE[name])}</a>").text
    with opened(chromium, tmp_path, svg_portrait(trace_of(HOSTILE[name])), "svg") as page:
        assert page.evaluate("document.documentElement.localName") == "svg"
        assert page.evaluate("document.querySelectorAll('parsererror').length") == 0
        assert page.evaluate("document.querySelector('desc').textContent") == told
        assert page.problems == []


def test_every_letter_of_the_picture_is_inside_it_and_no_box_is_off_its_line(chromium, tmp_path):
    text = "".join(HOSTILE[name] for name in ("CJK", "emoji", "right to left", "marks", "one long word"))
    with opened(chromium, tmp_path, svg_portrait(trace_of(text)), "svg") as page:
        outside = page.evaluate(
            """() => {
              const picture = document.documentElement.viewBox.baseVal;
              const inside = (box) => box.x >= 0 && box.y >= 0 && box.x + box.width <= picture.width + 0.5
                && box.y + box.height <= picture.height;
              return [...document.querySelectorAll('text, rect[class]')]
                .filter((node) => !inside(node.getBBox())).map((node) => node.outerHTML);
            }"""
        )
        assert [node for node in outside if "paper" not in node] == []


def test_it_opens_at_the_end_and_plays_the_run_from_its_start(chromium, tmp_path):
    long = [dataclasses.replace(told, elapsed=0.5 * (told.index + 1)) for told in answer(COUNTED)]
    with opened(chromium, tmp_path, html_replay(trace_of(COUNTED, long))) as page:
        assert page.text_content("#play") == "Play"
        page.select_option("#speed", "0.25")
        page.click("#play")
        wait_drawn(page, "#view .mars-view[data-state=running]")
        assert page.text_content("#play") == "Pause"
        page.select_option("#speed", "4")
        assert until(page, "document.querySelector('#play').textContent === 'Play'")
        wait_drawn(page, "#view .mars-view[data-state=done]")
        assert shown(page) == COUNTED
        assert page.problems == []


def test_playing_takes_the_time_that_the_run_took(chromium, tmp_path):
    events = [event(k, [token(f" {k}")], elapsed=0.5 * k) for k in range(4)]
    with opened(chromium, tmp_path, html_replay(trace_of("x", events))) as page:
        wait_drawn(page, "#view .mars-view[data-state=done]")
        started = page.evaluate("(document.getElementById('play').click(), performance.now())")
        assert until(page, "document.querySelector('#play').textContent === 'Play'")
        assert page.evaluate("performance.now()") - started >= 1500


def test_the_scrubber_steps_through_the_forwards_both_ways(chromium, tmp_path):
    events = answer(COUNTED)
    with opened(chromium, tmp_path, html_replay(trace_of(COUNTED, events))) as page:
        for place in (3, 1, 4, 0, len(events)):
            scrub(page, place)
            text = json.dumps("".join(event.text for event in events[:place]))
            assert until(page, f"document.querySelector('.mars-text').textContent === {text}")
        scrub(page, 2)
        ghosts = len(events[1].candidates)
        assert until(page, f"document.querySelectorAll('.mars-ghost').length === {ghosts}")
        page.focus("#place")
        page.keyboard.press("ArrowRight")
        assert until(page, "document.getElementById('clock').textContent.includes('3 of')")
        assert page.text_content("#clock").startswith("0.09 s of")
        assert page.problems == []


def test_a_token_tells_how_it_was_decided(chromium, tmp_path):
    with opened(chromium, tmp_path, html_replay(trace_of(COUNTED))) as page:
        page.click("#view .mars-accepted >> nth=0")
        assert "Accepted at τ = 0.90" in page.text_content(".mars-card")
        assert page.problems == []


def test_a_script_that_got_in_would_not_run(chromium, tmp_path):
    document = html_replay(trace_of("hello"))
    for evil in ("<script>document.title = 'evil'</script>", "<img src=x onerror=\"document.title='evil'\">"):
        broken = document.replace("</main>", f"</main>{evil}")
        with opened(chromium, tmp_path, broken) as page:
            wait_drawn(page, "#view .mars-view[data-state=done]")
            assert page.title() != "evil"
            assert any("Content Security Policy" in problem for problem in page.problems)


def test_a_cut_run_says_so(chromium, tmp_path, monkeypatch):
    monkeypatch.setattr("app.portrait.MOST_BYTES", 4000)
    with opened(chromium, tmp_path, html_replay(trace_of("word " * 400))) as page:
        assert re.search(r"holds the first \d+ of \d+ forwards", page.text_content("#notice"))
        assert page.is_visible("#notice")
        assert "word" in shown(page)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_any_screen_in_either_scheme(chromium, tmp_path, width, scheme):
    text = "".join(HOSTILE[name] for name in ("CJK", "one long word", "an image"))
    screen = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with opened(chromium, tmp_path, html_replay(trace_of(text)), **screen) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.evaluate("document.body.classList.contains('dark')") is (scheme == "dark")
        page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
        dark = str(scheme != "dark").lower()
        assert until(page, f"document.body.classList.contains('dark') === {dark}")
