"""Examples laid out for the two streams: which columns are fed, where, and what is read of them."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import MarsError
from .columns import PADDING, Columns
from .examples import Example, block_starts, runs
from .losses import ObjectiveSettings

# Columns in a row at which attention over all of it costs as much as all the rest of a small model (135M
# parameters; in larger ones, and document by document, it costs less). Short rows need more padding, long
# ones more attention.
EVEN_LENGTH = 3000


@dataclass(frozen=True)
class Document:
    """One example without the tail that nothing is learnt of: what the plain implementation goes by.

    Attributes:
        input_ids: [L].
        response: [L], True where the token is to be learnt.
        blocks: [L], the position at which the token's block starts.
        name: the example's.
    """

    input_ids: torch.Tensor
    response: torch.Tensor
    blocks: torch.Tensor
    name: str


@dataclass(frozen=True)
class Batch:
    """Several examples as R rows, each ``clean … padding, noisy … padding``: what the lean one goes by.

    The clean part holds whole documents. The noisy part holds the mask tokens that predict something: a
    document's response tokens without each answer's last. Documents share rows, where that saves padding, and
    never see each other.

    Attributes:
        documents: the examples one by one.
        input_ids: [R, C + M].
        columns: where each column stands, [R, C + M].
        num_clean_columns: C.
        labels: [N], every response token that something predicts. Those predicted by a mask come first.
        clean_at: [2, N], row and column of the clean token in front of each label, which predicts it.
        noisy_at: [2, K], row and column (within the noisy part) of the mask that predicts label 0 … K − 1;
            in the objective `ar` K is 0.
        offsets: [K], how far behind the last token that it is sure of each mask predicts: 2 … B + 1.
        trains_clean: the clean stream has a loss, which not every step of a run need have (`clean_share`).
    """

    documents: tuple[Document, ...]
    input_ids: torch.Tensor
    columns: Columns
    num_clean_columns: int
    labels: torch.Tensor
    clean_at: torch.Tensor
    noisy_at: torch.Tensor
    offsets: torch.Tensor
    trains_clean: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The examples' names, for error messages."""
        return tuple(document.name for document in self.documents)

    @property
    def num_labels(self) -> int:
        """Response tokens that are predicted; losses are per one of these."""
        return len(self.labels)

    @property
    def num_tokens(self) -> int:
        """Tokens of the examples, without masks and padding."""
        return sum(len(document.input_ids) for document in self.documents)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""

        def moved(item: Batch | Document | Columns) -> dict[str, Any]:
            tensors = ((name, value) for name, value in vars(item).items() if isinstance(value, torch.Tensor))
            return {name: value.to(device, non_blocking=non_blocking) for name, value in tensors}

        documents = tuple(dataclasses.replace(d, **moved(d)) for d in self.documents)
        columns = dataclasses.replace(self.columns, **moved(self.columns))
        return dataclasses.replace(self, **moved(self), documents=documents, columns=columns)


def collate(
    examples: Sequence[Example],
    settings: ObjectiveSettings,
    generator: torch.Generator | None = None,
    *,
    max_tokens: int | None = None,
) -> Batch:
    """Cut the answers into blocks and lay the examples out, on the CPU.

    Args:
        examples: at least one.
        settings: objective, block size, phase and mask token.
        generator: draws the random phases, one an answer, in order; the same state gives the same batch.
            PyTorch's own if None.
        max_tokens: refuse a batch of more tokens (masks and padding not counted).

    Raises:
        MarsError: no example, one without a response token that anything could predict, or too many tokens.
    """
    if not examples:
        raise MarsError("There is no example in this batch; give at least one.")
    documents = tuple(_document(example, settings, generator) for example in examples)
    num_tokens = sum(len(document.input_ids) for document in documents)
    if max_tokens is not None and num_tokens > max_tokens:
        raise MarsError(
            f"This batch has {num_tokens} tokens, and at most {max_tokens} are allowed; take fewer or "
            f"shorter examples. It holds {', '.join(document.name for document in documents)}."
        )
    return _lay_out(documents, settings)


def _document(example: Example, settings: ObjectiveSettings, generator: torch.Generator | None) -> Document:
    mask = example.loss_mask
    # Nothing sees what stands behind the last label, and nothing is learnt of it.
    length = max((i + 1 for i, learnt in enumerate(mask) if learnt), default=0)
    if length < 2:
        raise MarsError(
            f"{example.name}: no token of it is to be learnt, or only the very first, which nothing "
            "predicts; leave this example out."
        )
    blocks: list[int] = []
    for run in runs(mask[:length]):
        first = _first_block(run.start, settings, generator) if run.response else 0
        blocks += block_starts(run, settings.block_size, first)
    return Document(
        input_ids=torch.tensor(example.input_ids[:length]),
        response=torch.tensor([bool(learnt) for learnt in mask[:length]]),
        blocks=torch.tensor(blocks),
        name=example.name,
    )


def _first_block(start: int, settings: ObjectiveSettings, generator: torch.Generator | None) -> int:
    """Length of an answer's first block, 1 … B."""
    size = settings.block_size
    if settings.phase == "random":
        return int(torch.randint(1, size + 1, (), generator=generator))
    return size - start % size if settings.phase == "absolute" else size


@dataclass
class _Row:
    """Which documents stand behind one another in a row."""

    numbers: list[int] = field(default_factory=list)
    num_clean: int = 0
    num_noisy: int = 0


def _masks(document: Document) -> torch.Tensor:
    """Positions whose mask predicts something: response tokens that another of the same answer follows."""
    return (document.response[:-1] & document.response[1:]).nonzero()[:, 0]


def _firsts(document: Document) -> torch.Tensor:
    """Positions in front of an answer's first token."""
    return (~document.response[:-1] & document.response[1:]).nonzero()[:, 0]


def _rows(lengths: Sequence[tuple[int, int]]) -> list[_Row]:
    """Documents of (clean, noisy) lengths shared out to as many rows as cost least."""
    return min((_balanced(lengths, num_rows) for num_rows in range(1, len(lengths) + 1)), key=_cost)


def _balanced(lengths: Sequence[tuple[int, int]], num_rows: int) -> list[_Row]:
    """Longest document first, each into the row that is shortest so far."""
    rows = [_Row() for _ in range(num_rows)]
    shortest = [(0, number) for number in range(num_rows)]
    for document in sorted(range(len(lengths)), key=lambda i: sum(lengths[i]), reverse=True):
        load, number = heapq.heappop(shortest)
        row, (clean, noisy) = rows[number], lengths[document]
        row.numbers.append(document)
        row.num_clean += clean
        row.num_noisy += noisy
        heapq.heappush(shortest, (load + clean + noisy, number))
    return rows


def _cost(rows: Sequence[_Row]) -> float:
    """Of feeding these rows: columns, padding included, and what attention adds to each of them."""
    length = _longest(rows, "num_clean") + _longest(rows, "num_noisy")
    return len(rows) * length * (1 + length / EVEN_LENGTH)


def _longest(rows: Sequence[_Row], name: str) -> int:
    return max(getattr(row, name) for row in rows)


def _lay_out(documents: tuple[Document, ...], settings: ObjectiveSettings) -> Batch:
    nothing = torch.zeros(0, dtype=torch.long)
    masks = [_masks(d) if settings.has_noisy_stream else nothing for d in documents]
    rows = _rows([(len(d.input_ids), len(m)) for d, m in zip(documents, masks, strict=True)])
    sheet = _Sheet(len(rows), _longest(rows, "num_clean"), _longest(rows, "num_noisy"))
    for row_number, row in enumerate(rows):
        clean = noisy = 0
        for number in row.numbers:
            document, positions = documents[number], masks[number]
            sheet.write_clean(row_number, clean, number, document)
            sheet.write_noisy(row_number, noisy, number, document, positions, settings.mask_token_id)
            sheet.read(row_number, clean, noisy, document, positions)
            clean, noisy = clean + len(document.input_ids), noisy + len(positions)
    return sheet.batch(documents)


class _Sheet:
    """The rows while they are written, and the places that are read while they are found."""

    def __init__(self, num_rows: int, num_clean: int, num_noisy: int) -> None:
        shape, self.num_clean = (num_rows, num_clean + num_noisy), num_clean
        self.ids, self.position, self.block = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
        self.document = torch.full(shape, PADDING)
        self.noisy = torch.zeros(shape, dtype=torch.bool)
        self.behind_masks: list[tuple[torch.Tensor, ...]] = []  # labels, clean_at, noisy_at, offsets
        self.others: list[tuple[torch.Tensor, torch.Tensor]] = []  # labels, clean_at

    def write_clean(self, row: int, column: int, number: int, document: Document) -> None:
        length = len(document.input_ids)
        place = (row, slice(column, column + length))
        self.ids[place] = document.input_ids
        self.position[place] = torch.arange(length)
        self.document[place] = number

    def write_noisy(
        self, row: int, column: int, number: int, document: Document, positions: torch.Tensor, mask: int
    ) -> None:
        column += self.num_clean
        place = (row, slice(column, column + len(positions)))
        self.ids[place] = mask
        self.position[place] = positions
        self.block[place] = document.blocks[positions]
        self.document[place] = number
        self.noisy[place] = True

    def read(self, row: int, clean: int, noisy: int, document: Document, positions: torch.Tensor) -> None:
        """Note what predicts each label: position i − 1 predicts i."""
        ids = document.input_ids

        def at(columns: torch.Tensor) -> torch.Tensor:
            return torch.stack([torch.full_like(columns, row), columns])

        if len(positions):
            offsets = positions - document.blocks[positions] + 2
            at_masks = at(torch.arange(len(positions)) + noisy)
            self.behind_masks.append((ids[positions + 1], at(positions + clean), at_masks, offsets))
            others = _firsts(document)
        else:  # ordinary fine-tuning, or answers of one token: no mask predicts anything
            others = document.response[1:].nonzero()[:, 0]
        self.others.append((ids[others + 1], at(others + clean)))

    def batch(self, documents: tuple[Document, ...]) -> Batch:
        nothing = torch.zeros(0, dtype=torch.long)
        no_place = torch.zeros(2, 0, dtype=torch.long)
        behind = self.behind_masks or [(nothing, no_place, no_place, nothing)]
        labels, clean_at, noisy_at, offsets = (torch.cat(part, -1) for part in zip(*behind, strict=True))
        more_labels, more_at = (torch.cat(part, -1) for part in zip(*self.others, strict=True))
        return Batch(
            documents=documents,
            input_ids=self.ids,
            columns=Columns(self.noisy, self.document, self.position, self.block),
            num_clean_columns=self.num_clean,
            labels=torch.cat([labels, more_labels]),
            clean_at=torch.cat([clean_at, more_at], -1),
            noisy_at=noisy_at,
            offsets=offsets,
        )
