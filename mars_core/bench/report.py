"""A speed benchmark as Markdown tables and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .categories import CategoryFigures
from .figures import Figures, Spread
from .places import PlaceShare

FORMAT, VERSION = "mars-bench-speed", 1


@dataclass(frozen=True)
class BatchReport:
    """All methods at one batch size.

    Attributes:
        skipped, failed: method -> why.
        interrupted: these are the figures of a part.
        detailed: methods that the table by category shows.
    """

    batch_size: int
    num_groups: int
    rows: list[Figures]
    categories: list[CategoryFigures] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    detailed: Sequence[str] = ()


def as_json(facts: dict[str, Any], batches: Sequence[BatchReport]) -> dict[str, Any]:
    """Everything, with where it was measured; plain values only."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **facts,
        "interrupted": any(batch.interrupted for batch in batches),
        "batches": [dataclasses.asdict(batch) for batch in batches],
    }


def heading(facts: dict[str, Any]) -> str:
    """One paragraph: what was measured, and where."""
    rate = facts.get("copy_bytes_per_s")
    return (
        f"{facts['model']}, {facts['dtype']}, {facts['hardware']}, {facts['threads']} threads"
        + (f", memory copy {rate / 1e9:.1f} GB/s" if rate else "")
        + f"; torch {facts['torch']}, transformers {facts['transformers']}; {facts['date'][:10]}"
    )


def markdown(batch: BatchReport) -> str:
    """The tables of one batch size."""
    partial = " (stopped before the end: part of the prompts)" if batch.interrupted else ""
    parts = [f"### Batch {batch.batch_size}, {_counted(batch)}{partial}"]
    if batch.rows:
        parts += [_speeds(batch.rows), _details(batch.rows)]
    else:
        parts.append("Nothing was measured.")
    if shown := [row for row in batch.categories if row.method in batch.detailed]:
        parts.append(_categories(shown))
    notes = [*_tie_notes(batch.rows), *_left_out(batch)]
    return "\n\n".join([*parts, *notes])


def _counted(batch: BatchReport) -> str:
    if batch.batch_size == 1:
        return f"{batch.num_groups} prompts"
    return f"{batch.num_groups} groups of {batch.batch_size} prompts"


def _speeds(rows: Sequence[Figures]) -> str:
    header = (
        "method", "tok/fwd", "ms/fwd", "fwd/s", "tok/s (decode)", "× transformers AR (quartiles)",
        "× our AR (quartiles)", "tok/s (whole call)", "× transformers AR (whole call)",
        "prefill, s", "same text",
    )  # fmt: skip
    return _table(
        header,
        [
            (
                row.method,
                _number(row.tokens_per_forward, ".2f"),
                _number(row.ms_per_forward, ".1f"),
                _number(row.forwards_per_s, ".1f"),
                _median(row.decode_tokens_per_s, ".1f"),
                _spread(row.over_transformers_ar.decode),
                _spread(row.over_our_ar.decode),
                _median(row.whole_tokens_per_s, ".1f"),
                _median(row.over_transformers_ar.whole, ".2f"),
                _number(row.prefill_s, ".2f"),
                _number(row.same_text, ".0%"),
            )
            for row in rows
        ],
    )


def _details(rows: Sequence[Figures]) -> str:
    header = (
        "method", "weights read, GB/s", "of a copy's rate", "outside the model",
        "drafts verified, by place", "predictions accepted, by offset",
    )  # fmt: skip
    return _table(
        header,
        [
            (
                row.method,
                _number(row.weight_bytes_per_s and row.weight_bytes_per_s / 1e9, ".1f"),
                _number(row.share_of_copy_rate, ".0%"),
                _number(row.outside_model, ".0%"),
                _places(row.drafts_verified),
                _places(row.predictions_accepted),
            )
            for row in rows
        ],
    )


def _categories(rows: Sequence[CategoryFigures]) -> str:
    header = (
        "method", "category", "prompts", "tok/fwd", "× transformers AR (quartiles)", "× our AR (quartiles)"
    )  # fmt: skip
    return _table(
        header,
        [
            (
                row.method,
                row.category,
                str(row.num_prompts),
                _number(row.tokens_per_forward, ".2f"),
                _spread(row.over_transformers_ar),
                _spread(row.over_our_ar),
            )
            for row in rows
        ],
    )


def _tie_notes(rows: Sequence[Figures]) -> list[str]:
    """Where exact methods parted from the text they were compared with."""
    notes = []
    for row in rows:
        if row.differences:
            known = [item for item in row.differences if item.gap is not None]
            between = sum(bool(item.between_best_two) for item in known)
            gap = f"{row.largest_gap:.4g}" if row.largest_gap is not None else "not known"
            notes.append(
                f"{row.method}: {len(row.differences)} of {row.num_prompts} texts part from that of "
                f"{row.text_of}; largest gap between its two best logits there {gap}; "
                f"{between} of {len(known)} between these two."
            )
    return notes


def _left_out(batch: BatchReport) -> list[str]:
    skipped = [f"{name}: skipped, it cannot run here ({why})." for name, why in batch.skipped.items()]
    return skipped + [f"{name}: FAILED ({why})." for name, why in batch.failed.items()]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _median(value: Spread | None, form: str) -> str:
    return _number(value.median if value else None, form)


def _spread(value: Spread | None) -> str:
    return "–" if value is None else f"{value.median:.2f} ({value.first:.2f}–{value.third:.2f})"


def _places(places: Sequence[PlaceShare]) -> str:
    return ", ".join(f"{item.place}: {item.share:.0%}" for item in places) or "–"
