"""The paper's own figures (assets/paper.json), to lay over ours: other models and tasks, other machines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from .token_view import ASSETS


@dataclass(frozen=True)
class PaperPoint:
    """One model of the paper in one mode.

    Attributes:
        threshold: 1 is the one-token mode.
        tokens_per_forward, accuracy: averages over the paper's six tasks, the latter in percent.
    """

    threshold: float
    tokens_per_forward: float
    accuracy: float


@dataclass(frozen=True)
class PaperCurve:
    """One checkpoint of the paper: its one-token mode, where the paper has it, and one τ below.

    Attributes:
        name: for the legend. Example: ``7B, B 4``.
        points: by τ, falling.
    """

    name: str
    points: tuple[PaperPoint, ...]


@cache
def paper() -> dict[str, Any]:
    """The file: where it is from, its licence, and Tables 2, 4 and 5."""
    data: dict[str, Any] = json.loads((ASSETS / "paper.json").read_text("utf-8"))
    return data


def paper_curves() -> list[PaperCurve]:
    """tok/fwd against accuracy, a curve for each MARS checkpoint of Table 4."""
    table, one_token = paper()["table_4"], _one_token()
    curves = []
    for row in table["rows"]:
        fast = PaperPoint(table["threshold"], row["average_tokens_per_forward"], row["average_accuracy"])
        slow = one_token.get((row["size"], row["block_size"]))
        exact = () if slow is None else (PaperPoint(1.0, 1.0, slow),)
        curves.append(PaperCurve(f"{row['size']}, B {row['block_size']}", (*exact, fast)))
    return curves


def _one_token() -> dict[tuple[str, int], float]:
    """(size, B) -> average accuracy in one-token mode, of the checkpoints that Table 4 has too."""
    rows = paper()["table_2"]["rows"]
    return {
        (row["size"], row["block_size"]): row["average_accuracy"]
        for row in rows
        if row["name"] == f"{row['size']} MARS B={row['block_size']}"
    }


def source_line() -> str:
    """Who measured it, on what, and under which licence."""
    data = paper()
    models = " and ".join(data["models"].values())
    return (
        f"Paper: {data['authors']}, {data['date']}, arXiv 2604.07023, {data['licence']}; {models}, average "
        "accuracy over six tasks. Other models and another measure than ours: compare the shapes, not the "
        "heights."
    )
