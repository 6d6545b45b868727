"""Which examples make which batch: a function of their lengths, the seed and the batch's number alone.

So a run that goes on from a checkpoint sees what it would have seen, and several processes agree without
talking.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..errors import MarsError
from .batch import Batch, collate
from .examples import Example
from .losses import ObjectiveSettings

_PRIME = 1_000_003  # seeds of neighbouring numbers of one seed meet no other seed's


@dataclass(frozen=True)
class Plan:
    """All batches of a run, in order.

    Attributes:
        batches: numbers of the examples in each.
        batches_per_step: so many, of all processes together, make one step of the optimiser. Batch number n
            goes to process n modulo their count.
        epochs: passes through the data when all is done.
    """

    batches: tuple[tuple[int, ...], ...]
    batches_per_step: int
    epochs: float

    @property
    def num_steps(self) -> int:
        """Steps of the optimiser."""
        return len(self.batches) // self.batches_per_step


def make_plan(
    costs: Sequence[int],
    *,
    budget: int,
    seed: int,
    epochs: float,
    max_steps: int | None,
    batches_per_step: int,
) -> Plan:
    """Shuffle, anew in each epoch, and fill batches of at most `budget` tokens.

    The last step is filled up with batches of one more epoch.

    Args:
        costs: tokens of each example. One that costs more than the budget has a batch to itself.
        budget: most tokens of a batch.
        seed: of the order.
        epochs: passes through the data; part of one is its first batches.
        max_steps: this many steps instead, if not None.
        batches_per_step: batches of all processes in one step.

    Raises:
        MarsError: no examples.
    """
    if not costs:
        raise MarsError("There is nothing to train on.")
    batches: list[tuple[int, ...]] = []
    ends: list[int] = []  # number of batches at the end of each epoch
    wanted = None if max_steps is None else max_steps * batches_per_step
    while wanted is None or len(batches) < wanted:
        batches += epoch_batches(costs, budget, seed, len(ends))
        ends.append(len(batches))
        if wanted is None and len(ends) >= epochs:
            before = ends[-2] if len(ends) > 1 else 0
            used = before + (ends[-1] - before) * (epochs - len(ends) + 1)
            wanted = max(1, -(-round(used) // batches_per_step)) * batches_per_step
    last = next(number for number, end in enumerate(ends) if end >= wanted)
    before = ends[last - 1] if last else 0
    passes = last + (wanted - before) / (ends[last] - before)
    return Plan(tuple(batches[:wanted]), batches_per_step, passes)


def epoch_batches(costs: Sequence[int], budget: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """One epoch's batches: the examples in random order, each joining the one before if there is room."""
    order = torch.randperm(len(costs), generator=generator_of(seed, epoch)).tolist()
    batches: list[list[int]] = []
    room = -1
    for number in order:
        if costs[number] > room:
            batches.append([])
            room = budget
        batches[-1].append(number)
        room -= costs[number]
    return [tuple(batch) for batch in batches]


def generator_of(seed: int, number: int) -> torch.Generator:
    """A random stream of its own for each seed and number."""
    return torch.Generator().manual_seed((seed * _PRIME + number) % 2**63)


def costs_of(examples: Sequence[Example], settings: ObjectiveSettings) -> list[int]:
    """Tokens that each example is fed as, masks counted."""
    return [
        len(example.input_ids) + settings.has_noisy_stream * sum(example.loss_mask) for example in examples
    ]


class Batches(Dataset[dict[str, Batch]]):
    """Batch number n of a list, laid out; its block phases are drawn from a stream of its own.

    Steps that train the clean stream, `clean_share` of all, are spread evenly, the first among them.
    """

    def __init__(
        self,
        batches: Sequence[tuple[int, ...]],
        examples: Sequence[Example],
        settings: ObjectiveSettings,
        seed: int,
        batches_per_step: int = 1,
    ) -> None:
        self.batches = batches
        self.batches_per_step = batches_per_step
        self.examples = examples
        self.settings = settings
        self.seed = seed

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> dict[str, Batch]:
        examples = [self.examples[i] for i in self.batches[number]]
        batch = collate(examples, self.settings, generator_of(self.seed, number))
        trains_clean = evenly_chosen(number // self.batches_per_step, self.settings.clean_share)
        # without masks the clean stream's loss is all there is
        trains_clean = trains_clean or not batch.noisy_at.numel()
        return {"batch": dataclasses.replace(batch, trains_clean=trains_clean)}


def evenly_chosen(number: int, share: float) -> bool:
    """Whether number 0, 1, 2, … is one of a share that is spread evenly and begins with 0."""
    return number == 0 or math.ceil((number + 1) * share) > math.ceil(number * share)


def loader(batches: Batches, process: int, num_processes: int, workers: int = 0) -> DataLoader[Any]:
    """One process's share of the batches, in order: number p, p + P, p + 2P, …"""
    numbers = range(process, len(batches), num_processes)
    return DataLoader(batches, batch_size=1, sampler=numbers, collate_fn=_only, num_workers=workers)


def _only(items: list[dict[str, Batch]]) -> dict[str, Batch]:
    return items[0]
