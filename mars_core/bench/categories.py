"""One method's speed by the category of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figures import Spread, ratios, tokens_per_forward
from .measure import Measured
from .methods import OUR_AR, TRANSFORMERS_AR, Method


@dataclass(frozen=True)
class CategoryFigures:
    """One method on the prompts of one category; speed-ups in decode tok/s."""

    method: str
    category: str
    num_prompts: int
    tokens_per_forward: float | None
    over_transformers_ar: Spread | None
    over_our_ar: Spread | None


def by_category(
    methods: Sequence[Method], measured: Measured, categories: Sequence[str | None]
) -> list[CategoryFigures]:
    """For batch size 1: every method on every category, in the order of the prompts.

    Args:
        categories: of each group, which is one prompt; None for a prompt that names none.
    """
    found = []
    for method in methods:
        for category in dict.fromkeys(name for name in categories if name is not None):
            groups = {number for number, name in enumerate(categories) if name == category}
            found += _of_category(method.name, category, groups, measured)
    return found


def _of_category(name: str, category: str, groups: set[int], measured: Measured) -> list[CategoryFigures]:
    ran = {group: measured.outcomes[name][group] for group in groups & measured.outcomes[name].keys()}
    if not ran:
        return []
    return [
        CategoryFigures(
            method=name,
            category=category,
            num_prompts=len(ran),
            tokens_per_forward=tokens_per_forward(ran.values()),
            over_transformers_ar=ratios(ran, measured.outcomes.get(TRANSFORMERS_AR, {})).decode,
            over_our_ar=ratios(ran, measured.outcomes.get(OUR_AR, {})).decode,
        )
    ]
