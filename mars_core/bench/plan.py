"""What a speed benchmark is asked to compare, validated in one place."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MarsError

# How the windows of verification are laid out; `full1` is the full layout with one draft a forward.
LAYOUT_NAMES = ("auto", "linear", "full", "full1")


@dataclass(frozen=True)
class SpeedPlan:
    """The methods, and how long they answer.

    Attributes:
        batch_sizes: prompts answered at once, one table for each.
        max_new_tokens: the most tokens of an answer.
        thresholds: τ of MARS; empty leaves it out.
        verify_thresholds: τ of MARS with verification; empty leaves it out.
        layouts: of verification's windows, from `LAYOUT_NAMES`.
        lookup_tokens: `prompt_lookup_num_tokens` of transformers.
        cache_blocks: `B_cache` of the block-level cache; empty leaves it out.
        block_thresholds: τ of the block-level cache; the first of `thresholds` if None.
        ignore_eos: go on behind end-of-sequence tokens, so that all answers have the same length.
        only, skip: regular expressions; a method runs if its name holds a match of `only` and none of
            `skip` (capitals and small letters alike).
        warmup_tokens: length of the answer that is not measured; all of `max_new_tokens` if None.
        seed: of the order in which the methods answer a prompt.
    """

    batch_sizes: Sequence[int] = (1,)
    max_new_tokens: int = 64
    thresholds: Sequence[float] = (0.95, 0.9, 0.8)
    verify_thresholds: Sequence[float] = (1, 0.95, 0.9)
    layouts: Sequence[str] = ("auto",)
    lookup_tokens: Sequence[int] = (10,)
    cache_blocks: Sequence[int] = (4, 16, 32, 64)
    block_thresholds: Sequence[float] | None = None
    ignore_eos: bool = False
    only: str = ""
    skip: str | None = None
    warmup_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _whole_numbers("batch_sizes", self.batch_sizes)
        if not self.batch_sizes:
            raise MarsError("batch_sizes is empty; allowed are whole numbers, 1 or more.")
        _whole_numbers("max_new_tokens", [self.max_new_tokens])
        _whole_numbers("lookup_tokens", self.lookup_tokens)
        _whole_numbers("cache_blocks", self.cache_blocks)
        _whole_numbers("warmup_tokens", [] if self.warmup_tokens is None else [self.warmup_tokens])
        _whole_numbers("seed", [self.seed], low=0)
        _probabilities("thresholds", self.thresholds)
        _probabilities("verify_thresholds", self.verify_thresholds)
        _probabilities("block_thresholds", self.block_thresholds or ())
        if not self.layouts:
            raise MarsError(f"layouts is empty; allowed are {', '.join(LAYOUT_NAMES)}.")
        for layout in self.layouts:
            if layout not in LAYOUT_NAMES:
                raise MarsError(f"layouts holds {layout!r}; allowed are {', '.join(LAYOUT_NAMES)}.")
        if not isinstance(self.ignore_eos, bool):
            raise MarsError(f"ignore_eos is {self.ignore_eos!r}; allowed is True or False.")
        _pattern("only", self.only)
        _pattern("skip", self.skip or "")

    def wants(self, name: str) -> bool:
        """True for a method that `only` and `skip` leave in."""
        skipped = self.skip and re.search(self.skip, name, re.IGNORECASE)
        return bool(re.search(self.only, name, re.IGNORECASE)) and not skipped

    def block_thresholds_or_default(self) -> Sequence[float]:
        """τ of the block-level cache: a single one where nothing was said, for the runs are many."""
        return self.thresholds[:1] if self.block_thresholds is None else self.block_thresholds


def numbers(name: str, text: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
    """``"1,4,16"`` -> (1, 4, 16), each once. Raises `MarsError` for what is no such number."""
    try:
        return tuple(dict.fromkeys(kind(part) for part in text.split(",") if part.strip()))
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise MarsError(f"{name} is {text!r}; give {what} with commas between.") from error


def _whole_numbers(name: str, values: Sequence[Any], low: int = 1) -> None:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise MarsError(f"{name} holds {value!r}; allowed are whole numbers, {low} or more.")


def _probabilities(name: str, values: Sequence[Any]) -> None:
    for value in values:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not 0 <= value <= 1:
            raise MarsError(f"{name} holds {value!r}; allowed are numbers from 0 to 1.")


def _pattern(name: str, text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise MarsError(f"{name} is {text!r}, which is no regular expression: {error}.") from error
