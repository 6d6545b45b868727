"""Portraits as documents: what they hold, that any text leaves them valid, that they are bounded."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

import app.portrait
from app.portrait import html_replay, svg_portrait
from app.portrait_facts import facts, short, title_of
from app.portrait_layout import MOST_CHARACTERS, MOST_LINES, Piece, lines_of, pieces_of, runs_of
from app.portrait_svg import COLUMNS, MOST_DESCRIBED
from app.portrait_text import direction, num_columns, printable, xml_text
from mars_core.events import StepEvent
from mars_core.settings import LiveValues
from tests.portrait_cases import HOSTILE, trace_of
from tests.scripted_events import answer, event, token

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg_portrait(trace_of(text)))


def recorded(document: str) -> dict:
    block = re.search(r'<script type="application/json" id="run">(.*?)</script>', document, re.S)
    return json.loads(block[1])


def text_of(root: ElementTree.Element, name: str) -> str:
    return "".join(node.text or "" for node in root.iter(f"{SVG}text") if node.get("class") == name)


def without_spaces(text: str) -> str:
    return "".join(text.split())


# ---- the width of text ----


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("abc", 3),
        ("你好", 4),
        ("👍", 2),
        ("👍🏽", 2),
        ("👨‍👩‍👧‍👦", 2),
        ("❤️", 2),
        ("🇩🇪", 2),
        ("e\u0301", 1),
        ("\u200b", 0),
        ("", 0),
    ],
)
def test_a_sign_takes_the_columns_that_a_terminal_gives_it(text, columns):
    assert num_columns(text) == columns


def test_columns_of_parts_add_up_to_those_of_the_whole():
    text = "a👨‍👩‍👧b👍🏽❤️e\u0301你"
    assert sum(num_columns(text[k], text[:k]) for k in range(len(text))) == num_columns(text)


@pytest.mark.parametrize(
    ("text", "way"), [("abc", "ltr"), ("1. שלום abc", "rtl"), ("...", ""), ("مرحبا", "rtl")]
)
def test_the_first_letter_decides_the_direction(text, way):
    assert direction(text) == way


def test_xml_text_holds_nothing_that_xml_cannot():
    everything = "".join(map(chr, [*range(0x300), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x1F600]))
    read = ElementTree.fromstring(f'<a b="{xml_text(everything)}">{xml_text(everything)}</a>')
    assert read.text[0x20:0x7F] == everything[0x20:0x7F]
    assert read.text[0x0D] == "\r" and read.text.endswith("\ufffd" * 4 + "\U0001f600")
    assert printable("\x1b") == "␛"


# ---- lines ----


def words(*texts: str) -> list[Piece]:
    return [Piece(text, "text", k, 1, 0, "ar") for k, text in enumerate(texts)]


def shown(lines: list[list[Piece]]) -> list[str]:
    return ["".join(piece.text for piece in line) for line in lines]


def test_lines_break_between_words_and_never_inside_one_that_fits():
    lines = lines_of(words("one", " two", " thr", "ee", " four"), 9)
    assert shown(lines) == ["one two", "three", "four"]


def test_a_word_longer_than_a_line_is_cut_to_full_lines():
    assert shown(lines_of(words("x" * 25), 10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_wide_letters_break_where_they_must():
    assert shown(lines_of(words("你好", "世界", "再见"), 9)) == ["你好世界", "再见"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_line_is_wider_than_the_picture(name):
    pieces, whole = pieces_of(trace_of(HOSTILE[name]))
    assert whole
    for line in lines_of(pieces, COLUMNS):
        runs = list(runs_of(line, COLUMNS))
        text = [piece for piece in line if piece.kind != "mark"]
        assert num_columns("".join(piece.text for piece in text)) <= COLUMNS
        assert all(run.start >= 0 for run in runs)
        assert sum(len(run.pieces) for run in runs) == len(line)


def test_right_to_left_words_stand_from_the_right_and_in_one_text():
    line = words("Say", " ", "שלום", " ", "עולם", ".")
    runs = list(runs_of(line, 40))
    assert [(run.text, run.rtl) for run in runs] == [("Say ", False), ("שלום עולם", True), (".", False)]
    places = list(runs[1].placed())
    assert places[0].start > places[2].start, "the first word is the rightmost"


def test_a_line_that_begins_right_to_left_begins_at_the_right():
    runs = list(runs_of(words("שלום", " abc"), 40))
    assert runs[0].start + runs[0].width == 40
    assert runs[1].start < runs[0].start


# ---- SVG ----


@pytest.mark.parametrize("name", HOSTILE)
def test_the_picture_is_valid_xml_with_the_answers_own_text(name):
    text = HOSTILE[name]
    root = drawn(text)
    told = root.find(f"{SVG}desc").text
    assert told == ElementTree.fromstring(f"<a>{xml_text(text)}</a>").text
    letters = text_of(root, "text")
    assert without_spaces(letters) == without_spaces(printable(re.sub("[\n\t]", " ", told)))


def test_nothing_in_the_picture_comes_from_elsewhere_or_runs():
    for text in HOSTILE.values():
        root = drawn(text)
        assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
            *("svg", "title", "desc", "style", "rect", "path", "text")
        }
        names = {name for node in root.iter() for name in node.attrib}
        assert not [name for name in names if "href" in name or name.startswith("on")]


def test_boxes_are_shaded_as_in_the_token_view():
    events = [event(0, [token("a")])]
    for k, count in enumerate((2, 3, 4, 5, 8, 9), start=1):
        events.append(event(k, [token("b"), *[token("c", "accepted")] * (count - 1)]))
    root = ElementTree.fromstring(svg_portrait(trace_of("x", events)))
    boxes = [node for node in root.iter(f"{SVG}rect") if node.find(f"{SVG}title") is not None]
    assert [node.get("class") for node in boxes] == ["b1", "a2", "b3", "a4", "b4", "a5"]
    assert boxes[0].find(f"{SVG}title").text == "forward 2: 2 tokens"


def test_the_picture_says_that_it_is_recorded_and_with_what():
    text = "".join(drawn("hello world").itertext())
    for words_ in ("recorded", "scripted", "threshold τ: 0.90", "block size B: 4", "cpu, float32"):
        assert words_ in text


def test_special_tokens_show_and_are_no_text():
    root = drawn("hello")
    assert text_of(root, "chip") == "<|im_end|>"
    assert "im_end" not in text_of(root, "text")


@pytest.mark.parametrize(
    "text", ["word " * (MOST_CHARACTERS // 4), "\n" * (MOST_LINES + 5)], ids=["long", "tall"]
)
def test_a_picture_that_would_be_too_large_says_how_much_is_there(text):
    svg = svg_portrait(trace_of(text))
    assert len(svg) < 12_000_000
    assert "The picture ends here" in svg
    assert len(ElementTree.fromstring(svg).find(f"{SVG}desc").text) <= MOST_DESCRIBED + 1


def test_text_that_only_the_end_brings_and_text_that_is_taken_back_are_right():
    held = [event(0, [token("he"), token("llo")], text="he"), event(1, [], text="y", finish_reason="eos")]
    root = ElementTree.fromstring(svg_portrait(trace_of("x", held)))
    assert text_of(root, "text") == "hey"


# ---- HTML ----


@pytest.mark.parametrize("name", HOSTILE)
def test_the_document_holds_the_run_and_no_markup_of_it(name):
    text = HOSTILE[name]
    document = html_replay(trace_of(text))
    document.encode("utf-8")
    assert document.count("<script") == document.count("</script>") == 2
    assert "<!--" not in document and 'evil.invalid/x.png"' not in document
    data = recorded(document)
    cells = [cell["x"] for step in data["steps"] for cell in step["e"].get("c", [])]
    assert "".join(cells) == text
    assert data["prompt"] == [{"role": "user", "content": f"Say: {text}"}]


def test_the_document_points_nowhere():
    document = html_replay(trace_of("hello"))
    assert not re.findall(r"""(?:src|href)=|url\(|@import|https?://|fetch\(|XMLHttp|WebSocket""", document)


def test_a_run_too_long_for_a_document_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(app.portrait, "MOST_BYTES", 5000)
    data = recorded(html_replay(trace_of("word " * 400)))
    assert 0 < len(data["steps"]) < 100
    assert f"the first {len(data['steps'])} of" in data["notice"]
    assert data["done"] is None


def test_a_stopped_run_ends_with_its_reason():
    events = answer("one two three four five six")[:3]
    events.append(StepEvent.without_forward(events[-1], LiveValues(), "cancelled"))
    data = recorded(html_replay(trace_of("x", events)))
    assert data["done"]["message"].startswith("Stopped.")
    assert ["ended", "stopped by hand"] in data["facts"]


# ---- facts ----


def test_a_threshold_that_was_turned_shows_its_range():
    events = [event(k, [token("a")], threshold=t) for k, t in enumerate((0.9, 0.6, 0.8))]
    assert ("threshold τ", "0.60 to 0.90, turned while it wrote (probability)") in facts(
        trace_of("x", events)
    )


def test_one_token_decoding_has_no_threshold():
    events = [event(0, [token("a")], one_token=True, threshold=0.9)]
    assert ("threshold τ", "none: one token a forward") in facts(trace_of("x", events))


def test_settings_and_models_of_any_shape_are_short_text():
    odd = {"temperature": {"a": [1] * 500}, "seed": "<b>", "top_p": None}
    listed = facts(trace_of("x", settings=odd, model={"name": ["n"] * 400, "device": 7}))
    assert all(len(value) <= 200 for _, value in listed)
    assert short({"a": 1}) == '{"a": 1}'
    assert title_of(trace_of("x", prompt=())) == "A recorded answer"


def test_a_run_without_events_still_makes_both():
    empty = trace_of("x", [])
    assert recorded(html_replay(empty))["steps"] == []
    ElementTree.fromstring(svg_portrait(empty))
