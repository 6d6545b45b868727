"""The token picture of a run as one SVG document: boxes by forward, legend, settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from mars_core.events import Trace

from .portrait_facts import Fact, facts, title_of
from .portrait_layout import MOST_LINES, Piece, Placed, Run, lines_of, pieces_of, runs_of
from .portrait_text import num_columns, xml_text
from .token_view import ASSETS

COLUMNS = 80
COLUMN, LINE = 8.4, 27.0  # pixels: of a fixed-width letter at 14 px, and from line to line
PAD = 26.0
WIDTH = 2 * PAD + COLUMNS * COLUMN
SMALL = 7.2  # pixels of a letter of 12 px
MOST_DESCRIBED = 120_000  # characters
LEVELS = ("1", "2", "3", "4", "5–8", "9+")


def svg_portrait(trace: Trace) -> str:
    """The token picture as one SVG document; the answer itself stands in its ``desc``.

    Nothing is fetched and no script is in it. Where letters are not of one width (CJK, emoji, joining
    scripts) each text is set to the width that its columns take, so that boxes and letters agree in any font.
    Where the answer is too long the picture says how much of it is there.
    """
    pieces, whole = pieces_of(trace)
    lines = lines_of(pieces, COLUMNS)
    whole = whole and len(lines) <= MOST_LINES
    answer = trace.text()
    described = answer if len(answer) <= MOST_DESCRIBED else f"{answer[:MOST_DESCRIBED]}…"
    parts, bottom = _head(trace)
    top = bottom + 16
    for number, line in enumerate(lines[:MOST_LINES]):
        parts += _drawn_line(line, top + number * LINE)
    bottom = top + min(len(lines), MOST_LINES) * LINE + 4
    if not whole:
        notice = f"The picture ends here: an answer of {len(answer):,} characters is too long for one."
        parts.append(_text(notice, PAD, bottom + 14, "soft", SMALL))
        bottom += 24
    height = bottom + PAD - 8
    style = (ASSETS / "portrait_svg.css").read_text("utf-8")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
        f'height="{height:g}" role="img" aria-labelledby="t d" xml:space="preserve">'
        f'<title id="t">{xml_text(title_of(trace))} – recorded MARS run</title>'
        f'<desc id="d">{xml_text(described)}</desc><style>{style}</style>'
        f'<rect class="paper" width="100%" height="100%" rx="12"/>' + "\n".join(parts) + "</svg>\n"
    )


# ---- head ----


def _head(trace: Trace) -> tuple[list[str], float]:
    """Title, settings and legend, and where they end."""
    y = PAD + 8
    parts = [_text("MARS · recorded run", PAD, y, "soft", SMALL)]
    for line in _wrapped(title_of(trace), COLUMNS - 4):
        y += 22
        parts.append(_text(line, PAD, y, "title"))
    y += 6
    for line in _fact_lines(facts(trace)):
        y += 18
        parts.append(_text(line, PAD, y, "soft", SMALL))
    y += 14
    parts += [*_legend(y), f'<path class="line" d="M{PAD:g} {y + 32:g}H{WIDTH - PAD:g}"/>']
    return parts, y + 32


def _fact_lines(listed: Sequence[Fact]) -> list[str]:
    """Names and values, as many on a line as fit; none is broken but those longer than a line."""
    columns = int((WIDTH - 2 * PAD) / SMALL)
    lines = [""]
    for fact in (f"{name}: {value}" for name, value in listed):
        joined = f"{lines[-1]} · {fact}" if lines[-1] else fact
        if num_columns(joined) <= columns:
            lines[-1] = joined
        else:
            lines += _wrapped(fact, columns)
    return [line for line in lines if line]


def _wrapped(text: str, columns: int) -> list[str]:
    words = [Piece(word, "text", -1, 1, 0, "") for word in _spaced(text)]
    return ["".join(piece.text for piece in line) for line in lines_of(words, columns)]


def _spaced(text: str) -> list[str]:
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def _legend(y: float) -> Iterator[str]:
    """How many tokens came at once, by shade; how a token was decided, by the bar before it."""
    yield _text("tokens a forward", PAD, y + 15, "soft", SMALL)
    x = PAD + 17.5 * SMALL
    for level, name in enumerate(LEVELS):
        width = max(22.0, len(name) * SMALL + 10)
        if level:
            yield _rect(x, y, width / 2, 22, f"b{level}")
            yield _rect(x + width / 2, y, width / 2, 22, f"a{level}")
        yield _rect(x, y, width, 22, "frame")
        yield _text(name, x + (width - len(name) * SMALL) / 2, y + 15, "ink", SMALL)
        x += width + 3
    x += 14
    for kind, name in (("ar", "autoregressive"), ("accepted", "accepted"), ("verified", "verified")):
        yield _bar(x, y + 3, 16, kind, 0)
        yield _text(name, x + 8, y + 15, "soft", SMALL)
        x += len(name) * SMALL + 22


# ---- lines ----


def _drawn_line(line: Sequence[Piece], y: float) -> Iterator[str]:
    """Boxes first, so that no box covers a letter."""
    runs = list(runs_of(list(line), COLUMNS))
    placed = [place for run in runs for place in run.placed()]
    yield from _boxes(placed, y)
    for place in placed:
        if place.piece.decided and place.piece.num_tokens > 1:
            side = place.start + place.width if place.rtl else place.start
            yield _bar(PAD + side * COLUMN, y + 3, LINE - 6, place.piece.decided, place.piece.hue)
    for run in runs:
        yield _run(run, y + LINE - 8)


def _boxes(placed: Sequence[Placed], y: float) -> Iterator[str]:
    """One box for each forward of several tokens; in mixed directions it may be in parts."""
    for _, members in groupby(placed, key=lambda place: place.piece.forward):
        places = [place for place in members if place.width]
        if not places or places[0].piece.num_tokens < 2:
            continue
        piece = places[0].piece
        name = f"{'ba'[piece.hue]}{_level(piece.num_tokens)}"
        hint = f"forward {piece.forward + 1}: {piece.num_tokens} tokens"
        for start, end in _spans(places):
            x, width = PAD + start * COLUMN, (end - start) * COLUMN
            yield _rect(x + 0.5, y + 2, width - 1, LINE - 4, name, rounding=4, hint=hint)


def _spans(places: Sequence[Placed]) -> list[tuple[float, float]]:
    """Touching places as one."""
    spans: list[tuple[float, float]] = []
    for place in sorted(places, key=lambda place: place.start):
        start, end = place.start, place.start + place.width
        if spans and abs(spans[-1][1] - start) < 0.01:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _level(num_tokens: int) -> int:
    """As in the token view: 1 to 3 for two to four tokens, 4 up to eight, then 5."""
    if num_tokens < 5:
        return num_tokens - 1
    return 4 if num_tokens < 9 else 5


# ---- elements ----


def _run(run: Run, y: float) -> str:
    kind = run.pieces[0].kind
    if not run.width:
        return f'<text class="{kind}" x="{PAD + run.start * COLUMN:g}" y="{y:g}">{xml_text(run.text)}</text>'
    way = ' direction="rtl" text-anchor="end"' if run.rtl else ""
    place = f'x="{PAD + run.start * COLUMN:g}" y="{y:g}" textLength="{run.width * COLUMN:g}"'
    text = xml_text(run.text)
    return f'<text class="{kind}" {place} lengthAdjust="spacingAndGlyphs"{way}>{text}</text>'


def _text(text: str, x: float, y: float, name: str, column: float = COLUMN) -> str:
    length = num_columns(text) * column
    return (
        f'<text class="{name}" x="{x:g}" y="{y:g}" textLength="{length:g}" '
        f'lengthAdjust="spacingAndGlyphs">{xml_text(text)}</text>'
    )


def _rect(
    x: float, y: float, width: float, height: float, name: str, rounding: float = 0, hint: str = ""
) -> str:
    corner = f' rx="{rounding:g}"' if rounding else ""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    if not hint:
        return f'<rect class="{name}" {place}{corner}/>'
    return f'<rect class="{name}" {place}{corner}><title>{xml_text(hint)}</title></rect>'


def _bar(x: float, y: float, height: float, decided: str, hue: int) -> str:
    width = 1 if decided == "accepted" else 2
    return f'<path class="bar {decided} tone{hue}" d="M{x + width / 2:g} {y:g}v{height:g}"/>'
