"""The token view, the live chart and the figures in a real browser, on scripted events."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest

from app.feed import Feed, Message, messages
from app.figures import Figures
from app.live_chart import LiveChart
from app.token_view import TokenView
from mars_core.events import StepEvent

from .browser import open_page, overflows, serving, wait_drawn
from .chat_page import wait_until
from .scripted_events import answer, event, split_tokens, token

pytestmark = pytest.mark.browser

HOSTILE = (
    "<img src=x onerror=alert(1)> </span></div> &lt; &amp; ${alert(1)} {{value}} {{#if value}} `tick` <"
    "\n<script>alert(2)</script>\n\\u0041 \\n `${props.value}` <b>bold</b> <|im_end|>"
)
WORLD = "Hello 🤗👩‍👩‍👧 你好，世界。\nأهلا وسهلا بك\nשלום עולם\n\tindented  twice\n\n\nend"
PROSE = "One gulp of words, then another.\nA line, and a line.\n\n" * 12
LONG = "The quick brown fox jumps over the lazy dog again and again.\n" * 340
RUNS: dict[str, list[StepEvent]] = {
    "hostile": answer(HOSTILE, counts=(1, 4, 2, 3)),
    "world": answer(list(WORLD), counts=(3, 1, 4, 2)),
    "prose": answer(PROSE),
    "shades": answer(
        "a b c d e f g h i j k l m n o p q r s t " * 9, counts=(1, 2, 3, 4, 8, 12), block_size=16
    ),
    "long": answer(LONG, counts=(1, 2, 1, 2, 3)),
    "cancelled": [*answer(PROSE)[:9], event(9, finish_reason="cancelled", prefill=False)],
    "failed": [
        *answer(PROSE)[:4],
        event(4, finish_reason="error", error="Out <b>of</b> memory.", prefill=False),
    ],
    "split": [
        event(0, [token("a"), token("", "accepted", label="⟨F0 9F⟩")]),
        event(1, [token("🤗", label="⟨A4 97⟩")], finish_reason="length"),
    ],
}
TEXTS = {"hostile": HOSTILE, "world": WORLD, "prose": PROSE, "long": LONG}


class Watch:
    """What the server saw: how many messages it sent, and when it was done."""

    num_messages = 0
    seconds = 0.0
    ended_at = 0.0


def stream(name: str, seconds: float) -> Iterator[tuple[Message, Message, Message]]:
    """A run at an even pace, through the throttle that the page uses."""
    events, start = RUNS[name], time.monotonic()

    def paced() -> Iterator[StepEvent]:
        for k, step in enumerate(events):
            time.sleep(max(0.0, start + seconds * k / len(events) - time.monotonic()))
            yield step

    Watch.num_messages = 0
    for message in messages(paced(), Feed(120, note=f"cpu · float32 · {HOSTILE[:28]}")):
        Watch.num_messages += 1
        yield message, message, message
    Watch.seconds, Watch.ended_at = time.monotonic() - start, time.time()


def make_demo() -> gr.Blocks:
    with gr.Blocks() as demo:
        name, seconds = gr.Textbox(elem_id="name"), gr.Number(0.3, elem_id="seconds")
        go, clear = gr.Button("Go"), gr.Button("Clear all")
        parts = [TokenView(), Figures(note="cpu"), LiveChart()]
        go.click(stream, [name, seconds], parts, show_progress="hidden")
        clear.click(lambda: (None, None, None), None, parts)
    return demo


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(make_demo()) as address:
        yield address


def play(page: Any, name: str, seconds: float = 0.3, wait: bool = True) -> None:
    page.wait_for_selector(".mars-legend")
    page.fill("#name textarea, #name input", name)
    page.fill("#seconds input", str(seconds))
    page.get_by_role("button", name="Go", exact=True).click()
    if wait:
        wait_drawn(page, "[data-state=done], [data-state=error]", timeout=30_000)


def text_of(page: Any) -> str:
    return page.evaluate("document.querySelector('.mars-text').textContent")


@pytest.mark.skipif(shutil.which("node") is None, reason="server-side rendering needs node")
def test_it_works_when_the_server_renders_the_page(chromium: Any) -> None:
    with serving(make_demo(), ssr_mode=True) as address, open_page(chromium, address) as page:
        play(page, "hostile")
        assert text_of(page) == HOSTILE
        assert page.problems == []


@pytest.mark.parametrize("name", ["hostile", "world", "prose"])
def test_the_text_is_the_answer_character_by_character(chromium: Any, url: str, name: str) -> None:
    with open_page(chromium, url) as page:
        play(page, name)
        assert text_of(page) == TEXTS[name]
        assert page.locator(".mars-text :not(span)").count() == 0
        assert page.locator(".mars-view img, .mars-view script, .mars-figures b b").count() == 0
        assert HOSTILE[:28] in page.locator(".mars-note").inner_text()
        assert page.problems == []


def test_the_card_shows_hostile_text_as_text(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "hostile")
        for cell in page.locator(".mars-cell").all()[:25]:
            cell.hover()
            assert page.locator(".mars-card :not(div,p,code,span,b,i,u,dl,dt,dd,ol,li)").count() == 0
        assert page.problems == []


def test_a_copy_is_the_answer(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "world")
        copied = page.evaluate(
            """() => {
                let copied;
                const stage = document.querySelector('.mars-stage');
                document.addEventListener('copy', e => copied = e.clipboardData.getData('text/plain'));
                getSelection().selectAllChildren(stage);
                document.execCommand('copy');
                return copied;
            }"""
        )
        assert copied == WORLD


def test_nothing_is_lost_at_speed(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        began = time.time()
        play(page, "long", seconds=5)
        assert wait_until(lambda: Watch.ended_at > began)
        waited = time.time() - Watch.ended_at
        assert len(RUNS["long"]) > 2000
        assert Watch.num_messages / Watch.seconds <= 25
        assert waited < 10  # on a busy machine; how late it is: tests/test_stress_browser.py prints it
        assert text_of(page) == LONG
        count = page.locator(".mars-cell").count()
        assert count == len(split_tokens(LONG)) + 1
        assert page.evaluate("document.querySelector('.mars-gap')") is None


def test_a_new_run_replaces_the_last_and_none_empties(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "hostile")
        play(page, "prose", wait=False)
        page.wait_for_function(
            "n => document.querySelector('.mars-text').textContent.length === n", arg=len(PROSE)
        )
        page.get_by_role("button", name="Clear all").click()
        wait_drawn(page, "[data-state=empty] .mars-hint")
        assert text_of(page) == ""


def test_ghosts_and_chips_are_no_part_of_the_text(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "prose", seconds=4, wait=False)
        page.wait_for_selector(".mars-ghost")
        assert PROSE.startswith(text_of(page))
        wait_drawn(page, "[data-state=done]")
        assert page.locator(".mars-ghost").count() == 0
        assert page.locator(".mars-chip").get_attribute("data-label") == "<|im_end|>"


def test_a_ghost_has_a_card_and_escape_closes_it(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "prose", seconds=300, wait=False)  # nothing moves under the pointer
        page.wait_for_selector(".mars-ghost")
        page.wait_for_timeout(200)
        page.locator(".mars-ghost").first.hover()
        assert "Not committed" in page.locator(".mars-card").inner_text()
        page.keyboard.press("Escape")
        assert page.locator(".mars-card").is_hidden()


def test_every_ending_is_said_once(chromium: Any, url: str) -> None:
    expected = {
        "prose": r"Answer finished: \d+ tokens in \d+ forwards\.",
        "cancelled": r"Stopped\. .*",
        "failed": r"Out <b>of</b> memory\.",
    }
    with open_page(chromium, url) as page:
        for name, pattern in expected.items():
            play(page, name, wait=False)
            page.wait_for_function(
                "p => new RegExp(p).test(document.querySelector('.mars-view [role=status]').textContent)",
                arg=pattern,
            )
            assert re.fullmatch(pattern, page.locator(".mars-ending").inner_text())
        assert page.locator(".mars-text").evaluate("e => e.closest('[aria-live]')") is None


def test_a_shared_cell_says_where_its_tokens_came_from(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "split")
        page.locator(".mars-cell", has_text="🤗").click()
        card = page.locator(".mars-card").inner_text()
        assert "One character of 2 tokens" in card and "⟨F0 9F⟩ (forward 1)" in card


CONTRAST = """() => {
    const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = (colours) => {
        for (const colour of colours) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
        return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (c) => c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, k) => sum + v * [.2126, .7152, .0722][k], 0);
    const backgrounds = (node) => node
        ? [...backgrounds(node.parentElement), getComputedStyle(node).backgroundColor] : ['white'];
    const contrast = (node) => {
        const behind = backgrounds(node);
        const pair = [light(rgb(behind)), light(rgb([...behind, getComputedStyle(node).color]))].sort();
        return (pair[1] + .05) / (pair[0] + .05);
    };
    const found = {};
    for (const node of document.querySelectorAll(
        '.mars-cell, .mars-legend span, .mars-ending, .mars-tile dt, .mars-tile b, .mars-note')) {
        const name = (node.closest('.mars-group') ?? node).className.replace('mars-tight', '').trim();
        found[name] = Math.min(found[name] ?? 99, contrast(node));
    }
    return found;
}"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_legible_on_every_shade(chromium: Any, url: str, dark: bool) -> None:
    with open_page(chromium, url, dark=dark) as page:
        play(page, "shades")
        assert page.evaluate("document.body.classList.contains('dark')") is dark
        found = page.evaluate(CONTRAST)
        shades = {name for name in found if re.fullmatch(r"mars-group mars-l[1-5] mars-h[01]", name)}
        assert len(shades) == 10
        assert {name: value for name, value in found.items() if value < 4.5} == {}


def test_neighbouring_boxes_never_have_the_same_hue(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "shades")
        names = page.evaluate("[...document.querySelectorAll('.mars-group')].map(group => group.className)")
        hues = "".join(re.sub(r".*mars-h(.).*|.+", r"\1", name) or " " for name in names)
        assert "01" in hues and not re.search("00|11", hues)


def test_keyboard_walks_the_tokens_and_the_card_follows(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "prose")
        assert page.locator(".mars-stage [tabindex='0']").count() == 1
        page.locator(".mars-switch").focus()
        page.keyboard.press("Tab")
        focused = "document.activeElement.textContent"
        assert page.evaluate(focused) == "One"
        assert "Autoregressive" in page.locator(".mars-card").inner_text()
        page.keyboard.press("ArrowRight")
        assert page.evaluate(focused) == " gulp"
        page.keyboard.press("ArrowRight")
        card = page.locator(".mars-card").inner_text()
        assert "Forward 2, token 2 of 3" in card and "Accepted at τ = 0.90" in card
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator(".mars-card.mars-pinned").count() == 1
        page.keyboard.press("Escape")
        assert page.locator(".mars-card").is_hidden()
        page.keyboard.press("End")
        assert page.locator(".mars-card-head").inner_text().startswith("<|im_end|>")
        assert page.locator(".mars-stage [tabindex='0']").count() == 1
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('.mars-stage')") is None


@pytest.mark.parametrize("width", [390, 1280])
def test_the_card_stays_inside_the_window_and_nothing_overflows(chromium: Any, url: str, width: int) -> None:
    with open_page(chromium, url, width=width, height=700) as page:
        play(page, "prose")
        assert not overflows(page)
        for cell in page.locator(".mars-cell").all()[::17]:
            cell.click()
            box = page.locator(".mars-card.mars-pinned").bounding_box()
            assert box["x"] >= 0 and box["y"] >= 0
            assert box["x"] + box["width"] <= width and box["y"] + box["height"] <= 700
            page.keyboard.press("Escape")
        assert not overflows(page)


def test_a_tap_pins_the_card_and_another_closes_it(chromium: Any, url: str) -> None:
    with open_page(chromium, url, width=390, has_touch=True) as page:
        play(page, "prose")
        cell = page.locator(".mars-cell").nth(6)
        cell.tap()
        assert page.locator(".mars-card.mars-pinned").is_visible()
        cell.tap()
        assert page.locator(".mars-card").is_hidden()


def test_confidence_is_a_switch_of_its_own(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "prose")
        line = "getComputedStyle(document.querySelector('.mars-text .mars-c3')).textDecorationLine"
        assert page.evaluate(line) == "none"
        page.get_by_role("switch", name="confidence").click()
        assert page.evaluate(line) == "underline"
        widths = page.evaluate(
            "[1, 2, 3].map(k => parseFloat(getComputedStyle(document.querySelector('.mars-text .mars-c' + k))"
            ".textDecorationThickness))"
        )
        assert widths == sorted(set(widths))


def test_a_reader_who_scrolled_up_stays_there(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "long", seconds=5, wait=False)
        page.wait_for_function("document.querySelector('.mars-scroll').scrollTop > 300")
        page.evaluate("document.querySelector('.mars-scroll').scrollTop = 40")
        wait_drawn(page, "[data-state=done]")
        assert page.evaluate("document.querySelector('.mars-scroll').scrollTop") == 40


def test_text_that_grows_under_a_resting_pointer_opens_no_card(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "hostile")
        page.get_by_role("button", name="Go", exact=True).focus()
        first, second = page.evaluate(
            """() => {
              const view = document.querySelector('.mars-scroll').getBoundingClientRect();
              return [...document.querySelectorAll('.mars-cell')]
                .filter((cell) => /\\w/.test(cell.textContent)).map((cell) => cell.getBoundingClientRect())
                .filter(({ top, bottom }) => top > view.top && bottom < view.bottom)
                .slice(0, 2).map(({ x, y, width, height }) => [x + width / 2, y + height / 2]);
            }"""
        )
        page.mouse.move(*first)
        page.wait_for_selector(".mars-card", state="visible")
        page.keyboard.press("Enter")  # the pointer rests where text will come
        page.wait_for_selector(".mars-view[data-state=running]")
        wait_drawn(page, "[data-state=done]")
        page.wait_for_timeout(300)
        assert page.locator(".mars-cell:hover").count() == 1 and page.is_hidden(".mars-card")
        page.mouse.move(*second)
        page.wait_for_selector(".mars-card", state="visible")


def test_chart_and_figures_say_what_they_show(chromium: Any, url: str) -> None:
    with open_page(chromium, url) as page:
        play(page, "prose")
        chart = page.get_by_role("img", name=re.compile("Tokens of each forward"))
        described = chart.get_attribute("aria-label")
        assert re.search(r"\d+ tokens in \d+ forwards, at most 4 at once\. τ from 0\.90", described)
        assert page.evaluate("(c => c.width / c.clientWidth)(document.querySelector('canvas'))") == 1
        tiles = page.locator(".mars-tiles").inner_text()
        assert "tok/fwd" in tiles and "tok/s" in tiles
        assert page.locator(".mars-tile-speedup").is_hidden()
