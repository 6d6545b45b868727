"""One chat as token ids with what is to be learnt of it, and how its answers are cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

from ..errors import MarsError

Phase = Literal["random", "response", "absolute"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Example:
    """A whole chat.

    Attributes:
        input_ids: the chat template applied.
        loss_mask: True where the token is to be learnt: the assistant's answers, each with its
            end-of-turn token. As long as `input_ids`.
        name: for error messages, such as ``train.jsonl:17``.

    Raises:
        MarsError: the two differ in length.
    """

    input_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    name: str

    def __post_init__(self) -> None:
        if len(self.input_ids) != len(self.loss_mask):
            raise MarsError(
                f"{self.name}: {len(self.input_ids)} token ids but {len(self.loss_mask)} entries in the loss "
                "mask; give one entry a token."
            )


@dataclass(frozen=True)
class Run:
    """Tokens ``start … stop − 1``, all of one answer or all of none."""

    start: int
    stop: int
    response: bool


def runs(loss_mask: Sequence[bool]) -> Iterator[Run]:
    """The mask as runs of equal entries, in order."""
    start = 0
    for response, entries in groupby(loss_mask, key=bool):
        stop = start + sum(1 for _ in entries)
        yield Run(start, stop, response)
        start = stop


def block_starts(run: Run, block_size: int, first: int) -> list[int]:
    """For each token of a run the position at which its block starts.

    An answer is cut into a first block of `first` tokens, 1 … B, and blocks of B. Text between answers is
    one block: its noisy copy then sees just what its clean copy sees, so the two are equal.

    Example: answer at positions 5 … 11, B = 4, first = 2 → 5 5 7 7 7 7 11.
    """
    if not run.response:
        return [run.start] * (run.stop - run.start)
    second = run.start + first
    return [
        run.start if position < second else position - (position - second) % block_size
        for position in range(run.start, run.stop)
    ]
