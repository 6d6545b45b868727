"""Attention masks as pictures: SVG drawn from the functions that training and decoding use themselves.

A picture is a square a pair of tokens: the row looks, the column is looked at, coloured where it may.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import torch

from mars_core.train.attention import Columns, may_attend
from mars_core.window import RowWindow, build_window

CELL = 16
SQUARE = "h14v14h-14z"
LABEL_WIDTH = 92
LABEL_HEIGHT = 36
BLOCK_SIZE = 4
MASK_LABEL = "▢"


@dataclass(frozen=True)
class Band:
    """Neighbouring tokens of one kind.

    Attributes:
        name: what stands beside their rows.
        kind: `real` (a token that is decided), `mask` or `draft`: the colour of what is seen of them.
        labels: one short text a token.
        above: what stands above their columns, where there is less room; None: the name.
    """

    name: str
    kind: str
    labels: Sequence[str]
    above: str | None = None


@dataclass(frozen=True)
class MaskPicture:
    """One mask with the names of its rows and columns.

    Attributes:
        allowed: boolean [Q, K], True where row q may attend to column k.
        rows, columns: bands of Q and of K tokens in all.
        name: of the picture, for those who do not see it.
        words: what it shows, likewise.
    """

    allowed: torch.Tensor
    rows: Sequence[Band]
    columns: Sequence[Band]
    name: str
    words: str

    def svg(self, identity: str) -> str:
        """The picture, scaled by the page; `identity` is an id that no other element of the page has."""
        width = LABEL_WIDTH + CELL * self.allowed.shape[1] + 1
        height = LABEL_HEIGHT + CELL * self.allowed.shape[0] + 1
        parts = [*self._cells(), *_row_labels(self.rows), *_column_labels(self.columns)]
        return (
            f'<svg class="mars-mask" viewBox="0 0 {width} {height}" style="max-width: {1.3 * width:.0f}px" '
            f'role="img" aria-labelledby="{identity}-name" aria-describedby="{identity}-words">'
            f'<title id="{identity}-name">{escape(self.name)}</title>'
            f'<desc id="{identity}-words">{escape(self.words)}</desc>{"".join(parts)}</svg>'
        )

    def _cells(self) -> Iterator[str]:
        """One path for all squares of a kind: some hundred elements would be a longer page."""
        kinds = [band.kind for band in self.columns for _ in band.labels]
        squares = defaultdict[str, list[str]](list)
        for (row, column), seen in zip(_places(self.allowed), self.allowed.flatten().tolist(), strict=True):
            x, y = LABEL_WIDTH + CELL * column + 1, LABEL_HEIGHT + CELL * row + 1
            squares[f"sees-{kinds[column]}" if seen else "unseen"].append(f"M{x} {y}{SQUARE}")
        for kind, path in squares.items():
            yield f'<path class="{kind}" d="{"".join(path)}"/>'


def training_mask() -> MaskPicture:
    """Two prompt tokens and an answer of two blocks of B = 4: the masked copy, and the text itself."""
    num_prompt, num_answer = 2, 2 * BLOCK_SIZE
    answer = torch.arange(num_prompt, num_prompt + num_answer)
    position = torch.cat([answer, torch.arange(num_prompt + num_answer)])[None]
    block = num_prompt + (position - num_prompt) // BLOCK_SIZE * BLOCK_SIZE
    noisy = torch.arange(position.shape[1])[None] < num_answer
    columns = Columns(noisy, torch.zeros_like(position), position, block)
    index = torch.arange(position.shape[1])
    allowed = may_attend(columns, 0, index[:, None], index[None, :])
    numbers = [str(number) for number in range(1, num_answer + 1)]
    bands = (
        Band("masks 1–4", "mask", [MASK_LABEL] * BLOCK_SIZE),
        Band("masks 5–8", "mask", [MASK_LABEL] * BLOCK_SIZE),
        Band("prompt", "real", ["p"] * num_prompt, ""),
        Band("answer 1–4", "real", numbers[:BLOCK_SIZE]),
        Band("answer 5–8", "real", numbers[BLOCK_SIZE:]),
    )
    return MaskPicture(
        allowed,
        bands,
        bands,
        "Attention in training, two blocks of four tokens",
        "Rows look at columns. A mask of the first block sees the prompt and the masks before it in its own "
        "block. A mask of the second block sees the prompt, the real tokens of the first block and the masks "
        "before it in its own block. A real token sees the real tokens before it and never a mask.",
    )


def verification_mask() -> MaskPicture:
    """One forward with two drafts to verify and three groups of B − 1 = 3 masks."""
    num_cached, drafts = 3, 2
    groups = [BLOCK_SIZE - 1] * (1 + drafts)
    window = RowWindow([0], num_cached, drafts=[0] * drafts, groups=groups)
    # nothing here has a model: ids are not looked at, and the scratch slot lies behind the window
    built = build_window([window], 0, window.end, torch.device("cpu"))
    fed = (
        Band("last token", "real", ["c"], ""),
        Band("drafts", "draft", ["1", "2"]),
        Band("masks after c", "mask", [MASK_LABEL] * groups[0], "after c"),
        Band("masks after 1", "mask", [MASK_LABEL] * groups[1], "after 1"),
        Band("masks after 2", "mask", [MASK_LABEL] * groups[2], "after 2"),
    )
    return MaskPicture(
        built.attention_mask()[0, 0],
        fed,
        (Band("text", "real", ["t"] * num_cached), *fed),
        "Attention in one forward that verifies two drafts",
        "Rows look at columns. The last token and the drafts see the text so far, and what stands before "
        "them among themselves, as in any language model. Each group of masks continues one of them: it sees "
        "the text up to that one, and the masks before it in its own group, and no other group.",
    )


def _places(allowed: torch.Tensor) -> Iterator[tuple[int, int]]:
    return itertools.product(range(allowed.shape[0]), range(allowed.shape[1]))


def _row_labels(bands: Sequence[Band]) -> Iterator[str]:
    y = float(LABEL_HEIGHT)
    for band in bands:
        middle = y + CELL * len(band.labels) / 2
        yield _text("band", LABEL_WIDTH - CELL, middle, band.name)
        yield _line(0, y, LABEL_WIDTH, y)
        for label in band.labels:
            yield _text(band.kind, LABEL_WIDTH - CELL / 2, y + CELL / 2, label)
            y += CELL


def _column_labels(bands: Sequence[Band]) -> Iterator[str]:
    x = float(LABEL_WIDTH)
    for band in bands:
        yield _line(x, 0, x, LABEL_HEIGHT)
        yield _text(
            "above",
            x + CELL * len(band.labels) / 2,
            CELL / 2,
            band.name if band.above is None else band.above,
        )
        for label in band.labels:
            yield _text(band.kind, x + CELL / 2, LABEL_HEIGHT - CELL / 2, label)
            x += CELL


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="label-{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="edge" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'
