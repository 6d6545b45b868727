"""Keys and values of rows that have ended, kept for a prompt that begins as they did: the next turn of a
conversation then feeds only what is new.

They depend on the tokens before a position and on nothing else, whatever mode or threshold decided those, so
reuse changes no text but by the rounding of kernels: a position's keys can come from a forward of another
length than the prompt's own would have been.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .cache import CursorCache

logger = logging.getLogger(__name__)

MIN_TOKENS = 16  # shorter ones are computed anew in less than a forward

KeysValues = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class _Kept:
    tokens: tuple[int, ...]
    layers: KeysValues
    num_bytes: int


class PrefixStore:
    """The most recently used prefixes, within a bound of memory.

    Args:
        max_bytes: of keys and values; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._kept: list[_Kept] = []  # least recently used first

    @property
    def num_bytes(self) -> int:
        """What is kept now."""
        return sum(kept.num_bytes for kept in self._kept)

    def keep(self, tokens: Sequence[int], cache: CursorCache, place: int) -> None:
        """Copy a row's slots, one for each of `tokens`; what was used longest ago makes room.

        Where there is no memory for a copy nothing is kept of them.
        """
        try:
            self._keep(tokens, cache, place)
        except Exception as error:
            logger.warning("What is cached of a conversation could not be kept: %s", error)

    def _keep(self, tokens: Sequence[int], cache: CursorCache, place: int) -> None:
        num_bytes = cache.bytes_per_slot * len(tokens)
        if len(tokens) < MIN_TOKENS or not 0 < num_bytes <= self.max_bytes:
            return
        known = tuple(tokens)
        if any(kept.tokens[: len(known)] == known for kept in self._kept):
            return
        # what this one begins with is in it
        self._kept = [kept for kept in self._kept if known[: len(kept.tokens)] != kept.tokens]
        while self.num_bytes + num_bytes > self.max_bytes:
            self._kept.pop(0)
        self._kept.append(_Kept(known, cache.read_row(place, len(known)), num_bytes))

    def restore(self, tokens: Sequence[int], cache: CursorCache, place: int) -> int:
        """Write the longest kept prefix of `tokens`, short of the last, into a row; returns its length.

        Where there is no memory for it nothing is reused.
        """
        try:
            return self._restore(tokens, cache, place)
        except Exception as error:
            logger.warning("What is cached of a prompt could not be reused: %s", error)
            return 0

    def _restore(self, tokens: Sequence[int], cache: CursorCache, place: int) -> int:
        kept = max(self._kept, key=lambda kept: _common(kept.tokens, tokens), default=None)
        if kept is None or not cache.bytes_per_slot:  # nothing to take, or no layers yet to write to
            return 0
        # the last token is always fed: its logits are wanted
        length = min(_common(kept.tokens, tokens), len(tokens) - 1)
        if length < MIN_TOKENS:
            return 0
        self._kept.remove(kept)
        self._kept.append(kept)
        cache.reserve(place + 1, length)
        cache.write_row(place, kept.layers, length)
        return length

    def clear(self) -> bool:
        """Forget everything; returns whether there was anything."""
        had_any, self._kept = bool(self._kept), []
        return had_any


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
