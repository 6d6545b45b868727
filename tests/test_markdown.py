"""What a model writes can be formatted, but can neither break nor imitate the page around it."""

from __future__ import annotations

import logging
import threading
import time
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app import markdown
from app.markdown import to_html

VOID = {"br", "hr"}


class Page(HTMLParser):
    """Reads HTML strictly: every tag is closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.text_in_math = ""
        self.feed(source)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> out of order"

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    def handle_data(self, data):
        self.text += data
        if "math" in self.open:
            self.text_in_math += data

    def count(self, tag: str) -> int:
        return self.tags.count(tag)

    def values(self, attribute: str) -> list[str | None]:
        return [value for _, name, value in self.attributes if name == attribute]


HOSTILE = [
    "<!--",
    "<script>",
    "if x<y",
    '<a/href="http://evil/">x</a>',
    '</math><div/class="mars-message">FAKE</div>',
    "</mtext></math><style>",
    "<![CDATA[",
    "<title>",
    "&lt;b&gt; &amp; &#x3C;b&#62;",
]
TEXT_COMMANDS = "text mbox textrm textbf textit texttt fbox hbox mathrm".split()


@pytest.mark.parametrize("command", TEXT_COMMANDS)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_text_in_a_formula_neither_swallows_nor_styles_what_follows(command, hostile):
    page = Page(to_html(rf"Before $\{command}{{{hostile}}}$ **bold** and THE REST"))
    assert page.text.rstrip().endswith("bold and THE REST")
    assert page.count("strong") == 1
    assert not {"a", "div", "script", "style", "title"} & set(page.tags)
    assert "THE REST" not in page.text_in_math


@pytest.mark.parametrize("hostile", HOSTILE)
def test_text_in_a_formula_shows_character_by_character(hostile):
    page = Page(to_html(rf"$\text{{{hostile}}}$"))
    assert page.text_in_math.replace("\xa0", " ").strip() == hostile
    assert page.count("math") == 1


def test_less_than_and_ampersand_in_a_formula_show_as_themselves():
    page = Page(to_html(r"$a < b \And c \& d \lt e$"))
    assert page.count("math") == 1
    assert page.text_in_math.count("<") == 2


@pytest.mark.parametrize(
    ("source", "shown"),
    [(r"\alpha", "α"), (r"x \le y", "x≤y"), (r"\sum_{i=1}^n i", "∑i=1ni"), (r"a\ b", "a\xa0b"), ("f'", "f′")],
)
def test_symbols_of_a_formula_show_as_symbols(source, shown):
    assert Page(to_html(f"${source}$")).text_in_math == shown


@pytest.mark.parametrize("source", [r"$x^2$", r"\(x^2\)", r"$$x^2$$", r"\[x^2\]", "$$\nx^2\n$$"])
def test_every_way_of_writing_a_formula_is_one_math_element(source):
    page = Page(to_html(source))
    assert (page.count("math"), page.count("msup"), page.text.strip()) == (1, 1, "x2")


@pytest.mark.parametrize("source", [r"\sqrt", r"\frac", "_" * 900, r"\left(", r"\unicode{<b>}"])
def test_a_formula_that_cannot_be_converted_shows_its_source(source):
    page = Page(to_html(f"${source}$ and **more**"))
    assert page.tags == ["p", "code", "strong"]
    assert page.text.strip() == f"{source} and more"


def test_macros_that_call_one_another_cannot_fill_the_memory():
    names = [rf"\bomb{letter}" for letter in "abcdefgh"]
    bomb = rf"\newcommand{{{names[0]}}}{{x}}"
    for before, name in zip(names, names[1:], strict=False):
        bomb += rf"\newcommand{{{name}}}{{{before * 20}}}"
    started = time.monotonic()
    assert Page(to_html(f"${bomb}\\bombh$")).tags == ["p", "code"]
    assert time.monotonic() - started < 1


def test_a_formula_is_not_moved_far_over_its_neighbours():
    page = Page(to_html(r"$a\hspace{-500em}b\rule{9999em}{9999em}\hspace{2em}c \not= d \xrightarrow{e}$"))
    assert page.values("width") == ["2em", "0", "+0.833em"]
    assert page.values("height") == ["-.2em"]


def test_code_has_the_classes_of_its_language_and_no_other():
    page = Page(to_html("```python\nfor x in y: pass\n```\n\n```mars-message mars-user\nx\n```"))
    classes = page.values("class")
    assert "language-python" in classes and "k" in classes
    assert not [value for value in classes if value and value.startswith("mars-")]


@pytest.mark.parametrize("tag", ["div", "span", "code", "p"])
def test_the_classes_of_the_page_itself_are_cleaned_away(tag):
    cleaned = markdown._cleaner().clean(f'<{tag} class="mars-message language- k mars-user">x</{tag}>')
    assert "mars-" not in cleaned


@pytest.mark.parametrize(("language", "code"), [("java", "a "), ("autoit", "  "), ("make", "a.")])
def test_long_code_is_shown_without_delay(language, code):
    started = time.monotonic()
    page = Page(to_html(f"```{language}\n{code * 8_000}x\n```"))
    assert time.monotonic() - started < 1
    assert page.tags == ["pre", "code"]


def test_a_table_of_countless_empty_cells_shows_as_it_was_written():
    written = "|a" * 1_000 + "|\n" + "|-" * 1_000 + "|\n" + "|\n" * 1_500
    made = to_html(written)
    assert len(made) < 500_000
    assert Page(made).tags == ["pre"]
    assert Page(made).text == written


def test_an_answer_shown_again_is_not_rendered_again(monkeypatch):
    first = to_html("shown **twice**")
    monkeypatch.setattr(markdown, "_parser", lambda: pytest.fail("rendered again"))
    assert to_html("shown **twice**") is first


@pytest.mark.parametrize("error", [RecursionError, UnicodeError, KeyError, MemoryError])
def test_whatever_fails_shows_the_answer_as_it_was_written_and_is_logged(monkeypatch, caplog, error):
    def fail():
        raise error("a fault")

    monkeypatch.setattr(markdown, "_parser", fail)
    with caplog.at_level(logging.ERROR):
        made = to_html(f"a <b>{error.__name__}</b>")
    assert Page(made).tags == ["pre"]
    assert Page(made).text == f"a <b>{error.__name__}</b>"
    assert "shown as it was written" in caplog.text


def test_half_of_a_character_pair_does_not_break_the_answer():
    made = to_html("a \ud800 **b** \udfff c \ud83d\ude00 d")
    assert Page(made).text.split() == ["a", "\ufffd", "b", "\ufffd", "c", "😀", "d"]
    assert Page(made).count("strong") == 1
    made.encode("utf-8")


@pytest.mark.parametrize("written", [">" * 5_000, "- " * 3_000, "[" * 5_000, "**a" * 3_000, "\\(" * 3_000])
def test_deep_nesting_is_shown_without_delay(written):
    started = time.monotonic()
    Page(to_html(written))
    assert time.monotonic() - started < 5


def test_every_block_of_text_takes_its_direction_from_its_first_letter():
    page = Page(to_html("# a\n\nb\n\n- c\n\n> d\n\n|e|\n|-|\n|f|"))
    with_direction = {tag for tag, name, value in page.attributes if (name, value) == ("dir", "auto")}
    assert with_direction == {"h1", "p", "li", "blockquote", "th", "td"}


def test_an_arabic_list_has_its_markers_at_the_right():
    page = Page(to_html("- **مرحبا** بالعالم\n- two\n\n1. one"))
    assert ("ul", "dir", "rtl") in page.attributes
    items = [value for tag, name, value in page.attributes if (tag, name) == ("li", "dir")]
    assert items == ["rtl", "auto", "auto"]
    assert not [tag for tag, name, _ in page.attributes if (tag, name) == ("ol", "dir")]


def test_raw_html_shows_character_by_character():
    written = '<img src=x onerror="alert(1)"> <b>x</b> [l](javascript:alert) &lt;'
    page = Page(to_html(written))
    assert page.tags == ["p"]
    assert page.text.strip() == written


def test_answers_are_rendered_in_any_thread():
    made: list[str] = []
    threads = [threading.Thread(target=lambda n=n: made.append(to_html(f"$x$ **{n}**"))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 and all("<math" in each for each in made)


PIECES = st.sampled_from(
    HOSTILE
    + r"$ $$ \( \) \[ \] { } \text{ } \frac _ ^ & \\ \begin{matrix} \end{matrix} < > --> ** * _ ` ~~~".split()
    + ["```java\n", "\n", "\n\n", "> ", "- ", "1. ", "|a|b|\n|-|-|\n", "    ", "# ", "[a](http://b)"]
    + ["\0", "\ud800"]
)
ANY_TEXT = st.text() | st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join)


@settings(max_examples=250, deadline=None)
@given(ANY_TEXT)
@example(r"$\text{</math>}")
def test_any_text_becomes_balanced_html_of_allowed_tags(text):
    page = Page(to_html(text))
    assert set(page.tags) <= markdown._TAGS
    assert not [value for value in page.values("class") if value and "mars-" in value]
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(categories=["L", "M", "N", "Zs"], include_characters="\n,:")))
def test_text_without_markdown_shows_every_character(text):
    assert "".join(Page(to_html(text)).text.split()) == "".join(text.split())
