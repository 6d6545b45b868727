"""A sweep's figures as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from ..figures import Spread
from .figures import DEFINITIONS, PointFigures
from .result import SweepResult

HEADER = (
    "setting", "tok/fwd", "decode tok/s", "× AR (quartiles)", "agreement with AR's text (95 %)",
    "tokens AR would choose", "same text", "ln p a token", "prompts", "tokens", "forwards",
)  # fmt: skip


def markdown(result: SweepResult) -> str:
    """The table, what its columns mean, and where it was measured."""
    facts = result.facts
    where = ", ".join(str(facts[name]) for name in ("model", "dtype", "hardware") if facts.get(name))
    part = "" if result.finished else (
        f"\n\nStopped before the end: {result.num_complete} of {len(result.prompts)} prompts answered by "
        "every setting; the table is of these, or of what there is where there are none."
    )  # fmt: skip
    notes = "\n".join(f"- {name.replace('_', ' ')}: {text}." for name, text in DEFINITIONS.items())
    limit = f"at most {result.plan.max_new_tokens} new tokens"
    return f"{where}; {limit}{part}\n\n{_table(result.figures)}\n\n{notes}"


def _table(rows: Sequence[PointFigures]) -> str:
    lines = [HEADER, ["---"] * len(HEADER), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: PointFigures) -> tuple[str, ...]:
    agreement = "–"
    if row.agreement is not None and row.agreement_interval is not None:
        low, high = row.agreement_interval
        agreement = f"{row.agreement:.0%} ({low:.0%}–{high:.0%})"
    return (
        row.point.name,
        f"{row.tokens_per_forward:.2f}",
        "–" if row.tokens_per_s is None else f"{row.tokens_per_s.median:.1f}",
        _spread(row.speedup),
        agreement,
        f"{row.ar_choices:.1%}",
        "–" if row.same_text is None else f"{row.same_text} of {row.num_prompts}",
        f"{row.log_likelihood:.3f}",
        str(row.num_prompts),
        str(row.num_tokens),
        str(row.num_forwards),
    )


def _spread(value: Spread | None) -> str:
    return "–" if value is None else f"{value.median:.2f} ({value.first:.2f}–{value.third:.2f})"
