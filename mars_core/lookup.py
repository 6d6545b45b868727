"""Prompt lookup: what followed the last few tokens where they stood before is proposed to follow again."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2  # tokens that must match; a single one matches nearly always, and for nothing


class NgramIndex:
    """Where each n-gram of a growing sequence was last followed by something."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}  # n-gram -> place of the token after its last occurrence

    def extend(self, tokens: Sequence[int]) -> None:
        """Append these tokens."""
        for token in tokens:
            # n-grams that end before this token have one that follows from now on
            for length in range(SHORTEST, LONGEST + 1):
                if length <= len(self._tokens):
                    self._next[tuple(self._tokens[-length:])] = len(self._tokens)
            self._tokens.append(token)

    def __len__(self) -> int:
        return len(self._tokens)

    def propose(self, most: int) -> list[int]:
        """At most this many tokens that followed the n-gram the sequence ends with, the longest known.

        Example: after 1 2 3 9 1 2 3 it proposes 9 1 2 3.
        """
        for length in range(min(LONGEST, len(self._tokens)), SHORTEST - 1, -1):
            place = self._next.get(tuple(self._tokens[-length:]))
            if place is not None:
                return self._tokens[place : place + most]
        return []
