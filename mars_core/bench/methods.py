"""What a speed benchmark compares: names, and how each method is made ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ..costs import ForwardCosts
from ..engine import Engine
from ..loaded import LoadedModel
from ..settings import DecodeSettings
from .baselines import run_generate
from .continuous import ContinuousBatching
from .ours import run_block, run_engine
from .outcome import Outcome
from .plan import SpeedPlan

TRANSFORMERS_AR = "transformers AR"
OUR_AR = "ours, AR"

Prompts = Sequence[Sequence[int]]
Run = Callable[[Prompts, int], Outcome]  # of a group of prompts, each answer at most so many tokens


@dataclass
class Bench:
    """What the methods of one batch size share.

    Attributes:
        ours: the model of our methods.
        plain: the same model as transformers loads it, for transformers' methods.
        groups: prompts answered together.
        costs: of forwards on this device, for the layout `auto`; measured when needed if None.
        on_exit: what ends what a method has started.
    """

    plan: SpeedPlan
    ours: LoadedModel
    plain: LoadedModel
    groups: Sequence[Prompts]
    costs: ForwardCosts | None = None
    on_exit: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        costs = self.costs
        self.engine = Engine(
            self.ours,
            # kept, a prompt that comes again, method by method, would have no prefill
            prefix_bytes=0,
            max_rows=max(map(len, self.groups)),
            costs=None if costs is None else lambda: costs,
        )

    def settings(self, **changes: Any) -> DecodeSettings:
        """Greedy, with the model's B."""
        return DecodeSettings(
            block_size=self.ours.block_size, ignore_eos=self.plan.ignore_eos, temperature=0.0, **changes
        )


@dataclass(frozen=True)
class Method:
    """One line of the table.

    Attributes:
        make: readies it; may load, start or allocate. What it returns answers a group of prompts.
        text_of: the method whose text this one's is compared with.
        exact: it claims to give that text, token for token, in fp32.
        drafted: it is MARS with verification at τ = 1, in the first layout: a table by category shows it.
    """

    name: str
    make: Callable[[Bench], Run]
    text_of: str
    exact: bool = False
    drafted: bool = False

    @property
    def of_transformers(self) -> bool:
        """It runs on the plain model."""
        return self.text_of == TRANSFORMERS_AR and self.name != OUR_AR


def methods(plan: SpeedPlan, batch_size: int) -> list[Method]:
    """Those that the plan wants for this batch size, in the table's order."""
    found = [_generate(TRANSFORMERS_AR)]
    if batch_size == 1:
        found += [_generate(f"transformers prompt lookup ({n})", n) for n in plan.lookup_tokens]
    else:
        found.append(Method("transformers continuous batching", _continuous, TRANSFORMERS_AR, exact=True))
    found.append(_ours(OUR_AR, TRANSFORMERS_AR, exact=True, mode="ar"))
    found += [
        _ours(f"ours, MARS τ = {_text(threshold)}", threshold=threshold) for threshold in plan.thresholds
    ]
    found += [
        _verified(threshold, layout, plan.layouts[0])
        for threshold in plan.verify_thresholds
        for layout in plan.layouts
    ]
    if batch_size == 1:
        found += [
            _lookup("ours, prompt lookup", "lookup"),
            _lookup("ours, MARS + verify τ = 1 + prompt lookup", "both"),
        ]
    else:
        found += [
            _block(size, threshold)
            for threshold in plan.block_thresholds_or_default()
            for size in plan.cache_blocks
        ]
    return [method for method in found if plan.wants(method.name)]


def _text(threshold: float) -> str:
    """1.0 -> "1", and never the same for two numbers."""
    return f"{threshold:.16g}"


def _generate(name: str, lookup_tokens: int | None = None) -> Method:
    def make(bench: Bench) -> Run:
        ignore_eos = bench.plan.ignore_eos
        return lambda prompts, most: run_generate(bench.plain, prompts, most, ignore_eos, lookup_tokens)

    return Method(name, make, TRANSFORMERS_AR, exact=True)


def _continuous(bench: Bench) -> Run:
    return ContinuousBatching(
        bench.plain,
        longest_prompt=max(len(prompt) for group in bench.groups for prompt in group),
        group_size=max(map(len, bench.groups)),
        max_new_tokens=bench.plan.max_new_tokens,
        ignore_eos=bench.plan.ignore_eos,
        on_exit=bench.on_exit,
    )


def _ours(
    name: str, text_of: str = OUR_AR, *, exact: bool = False, drafted: bool = False, **settings: Any
) -> Method:
    def make(bench: Bench) -> Run:
        chosen = bench.settings(**settings)
        return lambda prompts, most: run_engine(bench.engine, prompts, chosen, most)

    return Method(name, make, text_of, exact, drafted)


def _verified(threshold: float, layout: str, first_layout: str) -> Method:
    shape: dict[str, Any] = {"layout": "full", "max_drafts": 1} if layout == "full1" else {"layout": layout}
    suffix = {"auto": "", "full1": " (full, 1 draft)"}.get(layout, f" ({layout})")
    name = f"ours, MARS + verify τ = {_text(threshold)}{suffix}"
    exact = threshold >= 1
    drafted = exact and layout == first_layout
    return _ours(name, exact=exact, drafted=drafted, threshold=threshold, verify=True, **shape)


def _lookup(name: str, proposer: str) -> Method:
    return _ours(name, exact=True, threshold=1.0, verify=True, proposer=proposer)


def _block(cache_block: int, threshold: float) -> Method:
    def make(bench: Bench) -> Run:
        chosen = bench.settings(threshold=threshold)
        return lambda prompts, most: run_block(bench.ours, prompts, chosen, most, cache_block)

    return Method(f"ours, block-level cache B_cache = {cache_block}, τ = {_text(threshold)}", make, OUR_AR)
