"""The answer of a run -> lines of pieces with places, for its token picture. No drawing here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

from mars_core.events import Trace

from .feed import Feed
from .portrait_text import direction, is_joining, is_plain, num_columns, printable

MOST_CHARACTERS = 120_000
MOST_LINES = 1_500
TAB = 4
NEWLINE_MARK, TAB_MARK = "↵", "⇥"


@dataclass(frozen=True)
class Piece:
    """Text of one token on one line.

    Attributes:
        kind: ``text`` of the answer, ``mark`` (↵, ⇥) or ``chip`` (a special token's label).
        forward: number of the forward that committed it; -1 for what no token stands for.
        num_tokens: tokens that forward committed.
        hue: 0 or 1, so that neighbouring boxes differ.
        decided: how its token was decided; "" where its token began in another piece.
        ends_line: the line ends behind it.
    """

    text: str
    kind: str
    forward: int
    num_tokens: int
    hue: int
    decided: str
    ends_line: bool = False


@dataclass(frozen=True)
class Placed:
    """A piece and its columns on its line."""

    piece: Piece
    start: float
    width: float
    rtl: bool


@dataclass(frozen=True)
class Run:
    """What is drawn as one text: its letters may join, and the renderer orders them."""

    pieces: tuple[Piece, ...]
    start: float
    width: float
    rtl: bool

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def placed(self) -> Iterator[Placed]:
        """Its pieces, from the right where it runs to the left."""
        offset, before = 0, ""
        for piece in self.pieces:
            width = num_columns(piece.text, before)
            start = self.width - offset - width if self.rtl else offset
            yield Placed(piece, self.start + start, width, self.rtl)
            offset, before = offset + width, before + piece.text


# ---- pieces ----


def pieces_of(trace: Trace) -> tuple[list[Piece], bool]:
    """The answer in pieces, and whether it is all of it (`MOST_CHARACTERS`)."""
    feed = Feed(len(trace.prompt_ids))
    for event in trace.events:
        feed.push(event)
    events, answer = feed.final()["events"], feed.text
    num_right = _num_right(events, answer)
    pieces = [piece for cell in _cells(events, num_right) for piece in _split(*cell)]
    if len(answer) > MOST_CHARACTERS:
        return pieces, False
    return [*pieces, *_split(answer[num_right:], Piece("", "text", -1, 1, 0, ""), chip=False)], True


def _cells(events: list[dict[str, Any]], num_right: int) -> Iterator[tuple[str, Piece, bool]]:
    """Each token's text as far as it is the answer's, the look of its pieces, and whether a label stands in
    for it."""
    hue, start = 1, 0
    for event in events:
        hue = 1 - hue if event["n"] > 1 else hue
        for cell in event.get("c", []):
            if start >= MOST_CHARACTERS:
                return
            text = cell["x"][: max(0, num_right - start)]
            start += len(cell["x"])
            look = Piece("", "text", event["i"], event["n"], hue, cell.get("d", "ar"))
            yield text or cell.get("l", cell["x"]), look, not text


def _num_right(events: list[dict[str, Any]], answer: str) -> int:
    """Characters of the tokens' text that are the answer's; a held-back stop text is not."""
    written = "".join(cell["x"] for event in events for cell in event.get("c", []))
    return len(os.path.commonprefix([written, answer]))


def _split(text: str, template: Piece, chip: bool) -> Iterator[Piece]:
    """A token's text in pieces: line ends and tabs by themselves, as marks."""
    if chip:
        yield replace(template, text=printable(text.replace("\n", NEWLINE_MARK)), kind="chip")
        return
    for part in filter(None, re.split("([\n\t])", text)):
        if part == "\n":
            yield replace(template, text=NEWLINE_MARK, kind="mark", ends_line=True)
        elif part == "\t":
            yield replace(template, text=TAB_MARK.ljust(TAB), kind="mark")
        else:
            for shown in _spaces_apart(printable(part)):
                yield replace(template, text=shown)
                template = replace(template, decided="")
        template = replace(template, decided="")


def _spaces_apart(text: str) -> list[str]:
    """Right-to-left text without the spaces around it: those may belong to the line's other direction."""
    if direction(text) != "rtl":
        return [text]
    return [part for part in re.split(r"(^\s+|\s+$)", text) if part]


# ---- lines ----


def lines_of(pieces: Iterable[Piece], columns: int) -> list[list[Piece]]:
    """Pieces in lines of at most so many columns, broken between words where a word fits a line."""
    lines: list[list[Piece]] = [[]]
    used = 0
    for word in _words(pieces, columns):
        width = num_columns("".join(piece.text for piece in word))
        if used and used + width > columns:
            lines.append([])
            used = 0
            word = [replace(word[0], text=word[0].text.lstrip(" ")), *word[1:]]
        for piece in word:
            width = num_columns(piece.text)
            if used and used + width > columns and piece.kind != "mark":
                lines.append([])
                used = 0
            lines[-1].append(piece)
            used += width
            if piece.ends_line:
                lines.append([])
                used = 0
    return lines


def _words(pieces: Iterable[Piece], columns: int) -> Iterator[list[Piece]]:
    """Pieces that belong on one line if it can be."""
    word: list[Piece] = []
    for piece in (part for whole in pieces for part in _cut(whole, columns)):
        if word and _may_break(word[-1], piece):
            yield word
            word = []
        word.append(piece)
    if word:
        yield word


def _cut(piece: Piece, columns: int) -> Iterator[Piece]:
    """A piece longer than a line, in parts."""
    while num_columns(piece.text) > columns:
        widths = accumulate(num_columns(character, before) for character, before in _pairs(piece.text))
        length = max(1, sum(width <= columns for width in widths))
        yield replace(piece, text=piece.text[:length])
        piece = replace(piece, text=piece.text[length:], decided="")
    yield piece


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    return zip(text, ["", *text], strict=False)


def _may_break(before: Piece, piece: Piece) -> bool:
    if piece.kind == "mark":
        return False
    if before.kind != "text" or piece.kind != "text":
        return True
    if piece.text[:1].isspace() or before.text[-1:].isspace():
        return True
    if _is_one_sign(before, piece):
        return False
    return num_columns(piece.text[:1]) == 2 or num_columns(before.text[-1:]) == 2


# ---- places ----


def runs_of(line: list[Piece], columns: int) -> Iterator[Run]:
    """A line's pieces as they are drawn; a line that begins right to left begins at the right."""
    whole = "".join(piece.text for piece in line if piece.kind == "text")
    from_right = direction(whole) == "rtl"
    offset = 0
    for pieces in _joined(line, from_right):
        text = "".join(piece.text for piece in pieces)
        width = num_columns(text)
        rtl = any(direction(piece.text) == "rtl" for piece in pieces)
        start = max(columns, num_columns(whole)) - offset - width if from_right else offset
        yield Run(tuple(pieces), start, width, rtl)
        offset += width


def _joined(line: list[Piece], from_right: bool) -> Iterator[list[Piece]]:
    """Neighbours that are drawn as one text. What has no direction goes with right-to-left text on both its
    sides, and at a line's end with the line's own."""
    directions = _resolved(line, from_right)
    numbered = list(enumerate(line))
    for _, same in groupby(numbered, key=lambda item: (directions[item[0]], item[1].kind)):
        run: list[Piece] = []
        for number, piece in same:
            rtl = directions[number] == "rtl" and piece.kind == "text"
            if run and not (rtl or _joins(run[-1], piece)):
                yield run
                run = []
            run.append(piece)
        yield run


def _resolved(line: list[Piece], from_right: bool) -> list[str]:
    """A direction for each piece."""
    base = "rtl" if from_right else "ltr"
    own = [direction(piece.text) if piece.kind == "text" else base for piece in line]
    for place, kind in enumerate(own):
        if not kind:
            before = own[place - 1] if place else base
            after = next((later for later in own[place:] if later), base)
            own[place] = before if before == after else base
    return own


def _joins(before: Piece, piece: Piece) -> bool:
    """Both are plain letters of one width, or cutting between them would break a sign."""
    if before.kind != "text" or piece.kind != "text":
        return False
    return (is_plain(before.text) and is_plain(piece.text)) or _is_one_sign(before, piece)


def _is_one_sign(before: Piece, piece: Piece) -> bool:
    return is_joining(piece.text[:1]) or is_joining(before.text[-1:])
