"""Where two texts part that should be equal, and how near a tie the model was there.

Kernels for one and for several positions round differently, so that in low precision an exact method may
part from one-token decoding where two tokens are nearly as likely. One-token decoding says how nearly: the
difference of the two best logits at the first place where the texts differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .outcome import Outcome, RunnerUp


@dataclass(frozen=True)
class Difference:
    """The first place where an answer is not the one that it was compared with.

    Attributes:
        group, row: which prompt.
        position: tokens of the answers before it, all of them equal.
        expected, got: the tokens there; None where that answer had ended.
        gap: logit of the likeliest token less that of the second, in our one-token run; None where that
            run did not come to this place by the same tokens.
        between_best_two: `expected` and `got` are these two.
    """

    group: int
    row: int
    position: int
    expected: int | None
    got: int | None
    gap: float | None
    between_best_two: bool | None


def differences(
    outcomes: dict[int, Outcome], references: dict[int, Outcome], our_ar: dict[int, Outcome]
) -> list[Difference]:
    """One for each answer that is not the reference's; of the groups that both have answered."""
    found = []
    for group in sorted(outcomes.keys() & references.keys()):
        pairs = zip(outcomes[group].tokens, references[group].tokens, strict=True)
        for row, (got, expected) in enumerate(pairs):
            if got != expected:
                found.append(_difference(group, row, got, expected, our_ar.get(group)))
    return found


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are equal. Example: 5 7 9, 5 7 8 -> 2."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _difference(
    group: int, row: int, got: Sequence[int], expected: Sequence[int], ar: Outcome | None
) -> Difference:
    place = first_difference(got, expected)
    runner_up = _runner_up(ar, row, expected[:place])
    here = [tokens[place] if place < len(tokens) else None for tokens in (expected, got)]
    best = {ar.tokens[row][place], runner_up.id} if ar and runner_up else None
    return Difference(
        group=group,
        row=row,
        position=place,
        expected=here[0],
        got=here[1],
        gap=runner_up.gap if runner_up else None,
        between_best_two=set(here) == best if best else None,
    )


def _runner_up(ar: Outcome | None, row: int, before: Sequence[int]) -> RunnerUp | None:
    """What one-token decoding had for second best behind these tokens."""
    if ar is None or not ar.runners_up or ar.tokens[row][: len(before)] != tuple(before):
        return None
    of_row = ar.runners_up[row]
    return of_row[len(before)] if len(before) < len(of_row) else None
