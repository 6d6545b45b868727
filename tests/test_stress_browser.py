"""A long, fast answer in a real browser: what is sent stays small and rare, and the page keeps up.

Counts and sizes are asserted; times only against bounds that no machine comes near unless something is wrong.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.baseline import OneTokenBaseline
from app.live import LiveRegistry
from app.page import build_page, launch_options
from mars_core import Engine, StepEvent
from mars_core.planner import NOMINAL_COSTS
from tests.browser import serving, wait_drawn
from tests.chat_page import ask, chat, shown_text
from tests.scripted import always, scripted_loaded
from tests.scripted_events import event, token

pytestmark = pytest.mark.browser

NUM_TOKENS = 4000
TOKENS_PER_S = 500
TOKENS_PER_FORWARD = 4
MOST_MESSAGES_PER_S = 20
MOST_BYTES_PER_TOKEN = 600  # of all that is sent while the answer is written, for three views

# `messages`: the size of each that Gradio's stream brings. `answered`: when the last of it was drawn.
# `frames`: drawn while the answer was written; `longest`: milliseconds between two of them, at most.
WATCH = """() => {
  const watched = (window.watched = { messages: [], answered: 0, frames: 0, longest: 0 });
  const fetched = window.fetch;
  window.fetch = async (...request) => {
    const answer = await fetched(...request);
    if (!String(request[0]?.url ?? request[0]).includes('/queue/data')) return answer;
    const [mine, theirs] = answer.body.tee();
    read(mine.pipeThrough(new TextDecoderStream()).getReader()).catch(() => {}); // the page hung up
    return new Response(theirs, answer);
  };
  async function read(reader) {
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const whole = (rest + value).split('\\n\\n');
      rest = whole.pop();
      for (const text of whole) {
        const kind = /"msg": ?"(\\w+)"/.exec(text)?.[1];
        if (kind === 'process_generating') watched.messages.push(text.length);
      }
    }
  }
  let before = 0;
  function frame(now) {
    const state = document.getElementById('thread').dataset.state;
    if (state === 'answered') return (watched.answered = Date.now());
    if (before && state === 'running') {
      watched.frames += 1;
      watched.longest = Math.max(watched.longest, now - before);
    }
    before = now;
    requestAnimationFrame(frame);
  }
  requestAnimationFrame(frame);
}"""


class PacedEngine(Engine):
    """Writes `NUM_TOKENS` words, `TOKENS_PER_S` of them a second, whatever it is asked.

    Attributes:
        began, ended: seconds since the epoch, of the last answer.
    """

    began = ended = 0.0

    def stream(self, request: Any) -> Iterator[StepEvent]:  # type: ignore[override]
        self.began = time.time()
        num_forwards = NUM_TOKENS // TOKENS_PER_FORWARD
        for number in range(num_forwards):
            due = self.began + number * TOKENS_PER_FORWARD / TOKENS_PER_S
            time.sleep(max(0.0, due - time.time()))
            yield _forward(number, is_last=number == num_forwards - 1)
        self.ended = time.time()


def _forward(number: int, is_last: bool) -> StepEvent:
    first = number * TOKENS_PER_FORWARD
    words = [token(f" word{first + k}", "accepted" if k else "ar") for k in range(TOKENS_PER_FORWARD)]
    guesses = [token("", "candidate", 0.5, label=" guess")] * (TOKENS_PER_FORWARD - 1)
    return event(number, words, guesses, finish_reason="length" if is_last else None, seconds=0.008)


def _click_a_token(page: Any) -> float:
    """Seconds from a click on a token of the running answer to its card."""
    page.wait_for_function("document.querySelectorAll('#token-view .mars-cell').length > 500")
    page.evaluate("scrollTo(0, 0)")  # from here on the page stays where the reader is
    clicked = time.monotonic()
    page.locator("#token-view .mars-cell").nth(3).click()
    page.wait_for_selector(".mars-card:not([hidden])")
    seconds = time.monotonic() - clicked
    assert page.get_attribute("#thread", "data-state") == "running"
    return seconds


@pytest.fixture(scope="module")
def answer(chromium: Any) -> Iterator[SimpleNamespace]:
    """What was seen of one answer: `messages` (sizes), `seconds` it took, `late` by how many the page was,
    `text`, `frames` drawn while it was written and `longest_s` between two of them, `click_s` from a click on
    a token, while it was written, to the card that it opens."""
    engine = PacedEngine(scripted_loaded(always()), costs=lambda: NOMINAL_COSTS)
    demo = build_page(engine, LiveRegistry(), OneTokenBaseline())
    with serving(demo, **launch_options()) as url, chat(chromium, SimpleNamespace(url=url)) as page:
        page.set_default_timeout(180_000)
        page.evaluate(WATCH)
        ask(page, "go on")
        click_s = _click_a_token(page)
        page.wait_for_function("window.watched.answered")
        wait_drawn(page)
        watched = page.evaluate("window.watched")
        yield SimpleNamespace(
            messages=watched["messages"],
            seconds=engine.ended - engine.began,
            late=watched["answered"] / 1000 - engine.ended,
            text=shown_text(page),
            frames=watched["frames"],
            longest_s=watched["longest"] / 1000,
            click_s=click_s,
            problems=page.problems,
        )


def test_all_of_it_arrives(answer: SimpleNamespace) -> None:
    assert answer.text == "".join(f" word{number}" for number in range(NUM_TOKENS))
    assert answer.problems == []


def test_no_more_than_twenty_messages_a_second_are_sent(answer: SimpleNamespace) -> None:
    print(f"{len(answer.messages)} messages in {answer.seconds:.1f} s, at most {max(answer.messages)} long")
    # besides: the question, the reset, the snapshot and the conversation at rest
    assert 10 < len(answer.messages) <= MOST_MESSAGES_PER_S * answer.seconds + 4


def test_a_message_does_not_grow_with_the_answer(answer: SimpleNamespace) -> None:
    streamed = answer.messages[2:-2]
    quarter = len(streamed) // 4
    # the smaller ones: a message holds what was written since the one before, more where the machine is busy
    first, last = (statistics.quantiles(part, n=4)[0] for part in (streamed[:quarter], streamed[-quarter:]))
    assert last < 2 * first
    assert sum(streamed) < MOST_BYTES_PER_TOKEN * NUM_TOKENS


def test_a_click_is_answered_while_it_is_written(answer: SimpleNamespace) -> None:
    print(f"a token's card {answer.click_s:.2f} s after the click")
    assert answer.click_s < 5


def test_the_page_draws_all_the_while_and_ends_with_the_engine(answer: SimpleNamespace) -> None:
    print(f"{answer.frames} frames, {answer.longest_s:.2f} s between two at most, {answer.late:.2f} s late")
    assert answer.frames > 2 * answer.seconds
    assert answer.late < 10
