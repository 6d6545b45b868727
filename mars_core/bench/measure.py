"""Every method on every group of prompts in turn: what disturbs the machine disturbs all methods alike."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from .continuous import CannotRun
from .methods import Bench, Method, Run
from .outcome import Outcome


@dataclass
class Measured:
    """What has been measured, perhaps not all that was to be.

    Attributes:
        outcomes: for each method, by the number of the group.
        skipped: methods that cannot run here, and why.
        failed: methods that ended in an error, which none should, and the error.
        interrupted: it was stopped before its end.
    """

    outcomes: dict[str, dict[int, Outcome]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def is_out(self, name: str) -> bool:
        """True for a method that is not asked again."""
        return name in self.skipped or name in self.failed

    def drop_unfinished_group(self) -> None:
        """After an interruption: keep the groups that all methods answered, if there is one."""
        answered = [set(by_group) for name, by_group in self.outcomes.items() if not self.is_out(name)]
        complete = set.intersection(*answered) if answered else set()
        for by_group in self.outcomes.values() if complete else ():
            for number in set(by_group) - complete:
                del by_group[number]


def measure(methods: Sequence[Method], bench: Bench, label: str) -> Measured:
    """Run all methods on all groups, each first on one group unmeasured (warm-up).

    Ctrl-C ends it with what there is. A method that raises is left out from there on and named.

    Args:
        label: stands before the progress bar.
    """
    result = Measured(outcomes={method.name: {} for method in methods})
    runs: dict[str, Run] = {}
    jobs = _jobs(methods, len(bench.groups), bench.plan.seed)
    try:
        with bench.on_exit:
            # the average of all so far, for the methods' speeds differ
            for group, method in tqdm(jobs, desc=label, unit="run", smoothing=0):
                if not result.is_out(method.name):
                    _do(method, group, bench, runs, result)
    except KeyboardInterrupt:
        result.interrupted = True
        result.drop_unfinished_group()
    return result


def _jobs(methods: Sequence[Method], num_groups: int, seed: int) -> list[tuple[int | None, Method]]:
    """(group, method) in the order in which they run; None is the warm-up.

    The order of the methods changes from group to group: none always has the same one before it.
    """
    order = random.Random(seed)
    jobs: list[tuple[int | None, Method]] = [(None, method) for method in methods]
    for group in range(num_groups):
        jobs += [(group, method) for method in order.sample(methods, len(methods))]
    return jobs


def _do(method: Method, group: int | None, bench: Bench, runs: dict[str, Run], result: Measured) -> None:
    most = bench.plan.max_new_tokens
    try:
        if method.name not in runs:
            runs[method.name] = method.make(bench)
        if group is None:
            runs[method.name](bench.groups[0], min(most, bench.plan.warmup_tokens or most))
        else:
            result.outcomes[method.name][group] = runs[method.name](bench.groups[group], most)
    except CannotRun as error:
        result.skipped[method.name] = str(error)
    except Exception as error:  # one method's fault is no reason to lose hours of the others'
        result.failed[method.name] = f"{type(error).__name__}: {error}"
        tqdm.write(f"{method.name} failed: {result.failed[method.name]}", file=sys.stderr)
