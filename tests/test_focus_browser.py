"""Where the focus goes on the Chat tab, and that what is opened there leaves room for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.browser import open_part
from tests.chat_page import chat, served, wait_answer, wait_written
from tests.scripted import slow_letters

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def slow() -> Iterator[SimpleNamespace]:
    with served(slow_letters(0.1)) as app:
        yield app


def test_the_focus_goes_on_where_its_button_goes(chromium, slow):
    with chat(chromium, slow, link={"max": 2000}) as page:
        page.fill("#box textarea", "count")
        page.click("#send")
        wait_written(page, 5)
        assert page.evaluate("document.activeElement.id") == "stop"
        page.keyboard.press("Enter")
        wait_answer(page)
        assert page.evaluate("document.activeElement.id") == "send"
        page.click("#chat-replay")
        page.wait_for_function("document.activeElement.matches('.mars-scrub')")
        page.keyboard.press("End")
        at, last = page.text_content(".mars-place").split(" / ")
        assert at == last and page.problems == []


def test_settings_that_are_opened_squeeze_nothing(chromium, slow):
    with chat(chromium, slow, width=1280, height=900) as page:
        open_part(page, "More settings")
        squeezed = page.evaluate(
            """[...document.querySelectorAll('#dial > *')]
                 .filter((part) => part.scrollHeight > part.clientHeight + 4).map((part) => part.id)"""
        )
        assert squeezed == []
        page.get_by_label("System prompt").scroll_into_view_if_needed()
        assert page.get_by_label("System prompt").is_visible()
