"""``python -m mars_core bench``: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..costs import ForwardCosts, known_costs
from ..errors import MarsError
from ..loaded import LoadedModel
from ..options import add_model_options, load_from
from ..row import Request, check_request
from ..settings import DecodeSettings
from .categories import by_category
from .facts import facts_of
from .figures import figures_of
from .measure import Measured, measure
from .memory_rate import copy_rate, weight_bytes
from .methods import Bench, Method, Prompts, methods
from .plan import LAYOUT_NAMES, SpeedPlan, numbers
from .prompts_file import Prompt, choose, encode, read_prompts
from .report import BatchReport, as_json, heading, markdown

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_PROMPTS = ROOT / "tests" / "data" / "spec_bench_20.jsonl"
_SHORT_WARMUP = 16  # on a CPU nothing is compiled or captured for a length


def add_bench_command(commands: Any) -> None:
    """Register ``bench`` with an argparse subparsers object."""
    parser: argparse.ArgumentParser = commands.add_parser("bench", help="measure speed, pairwise in one run")
    kinds = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    speed: argparse.ArgumentParser = kinds.add_parser(
        "speed",
        help="decode speed against transformers' generate",
        description="Greedy answers to each prompt's first turn, every method on every prompt (or group of "
        "prompts) in turn. Ends with Markdown tables and a line of JSON; Ctrl-C ends it with what there is.",
    )
    _add_prompt_options(speed)
    _add_method_options(speed)
    add_model_options(speed)
    speed.set_defaults(run=run_speed)


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts and answers")
    group.add_argument(
        "--prompts",
        type=Path,
        default=DEFAULT_PROMPTS,
        metavar="FILE",
        help="JSON lines with `turns` (a list) or `prompt` (default: 20 prompts of Spec-Bench)",
    )
    group.add_argument("--limit", type=int, metavar="N", help="only N prompts: the first, or see --seed")
    group.add_argument(
        "--seed", type=int, metavar="S",
        help="draw the --limit prompts at random, evenly over their categories, and the order of methods",
    )  # fmt: skip
    group.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="(default: %(default)s)")
    group.add_argument("--ignore-eos", action="store_true", help="all answers have --max-new-tokens tokens")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the line of JSON there too")


def _add_method_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("methods")
    lists: list[tuple[str, str, str, str]] = [
        ("--batch-sizes", "1", "N,…", "prompts answered at once"),
        ("--thresholds", "0.95,0.9,0.8", "τ,…", "of MARS"),
        ("--verify-thresholds", "1,0.95,0.9", "τ,…", "of MARS with verification"),
        ("--layouts", "auto", "NAME,…", f"of verification's windows: {', '.join(LAYOUT_NAMES)}"),
        ("--cache-blocks", "4,16,32,64", "N,…", "B_cache of the block-level cache, for batches"),
        ("--lookup-tokens", "10", "N,…", "of transformers' prompt lookup"),
    ]
    for name, default, metavar, what in lists:
        group.add_argument(name, default=default, metavar=metavar, help=f"{what} (default: %(default)s)")
    group.add_argument(
        "--block-threshold", metavar="τ,…", help="of the block-level cache (default: MARS's first)"
    )
    group.add_argument("--only", default="", metavar="REGEX", help="only methods whose names hold a match")
    group.add_argument("--skip", metavar="REGEX", help="no methods whose names hold a match")
    group.add_argument(
        "--warmup-tokens", type=int, metavar="N",
        help="length of each method's first answer, which does not count (default: "
        f"{_SHORT_WARMUP} on a CPU, else --max-new-tokens)",
    )  # fmt: skip


def run_speed(arguments: argparse.Namespace) -> int:
    """Measure, print, and write; returns the exit status."""
    plan = plan_from(arguments)
    prompts = choose(read_prompts(arguments.prompts), arguments.limit, arguments.seed)
    check_plan(plan, len(prompts))
    if arguments.json:
        check_writable(arguments.json)
    ours = load_from(arguments)
    assert ours.tokenizer is not None
    ids = encode(prompts, ours.tokenizer)
    check_lengths(prompts, ids, ours, plan)
    plain = load_from(arguments, packed=False) if _needs_plain(plan, arguments, ours) else ours
    if plan.warmup_tokens is None and ours.device.type == "cpu":
        plan = dataclasses.replace(plan, warmup_tokens=_SHORT_WARMUP)
    costs = known_costs(ours)
    facts = {
        **facts_of(ours),
        "forward_costs": dataclasses.asdict(costs),
        "copy_bytes_per_s": copy_rate(ours.device),
        "weight_bytes": {"ours": weight_bytes(ours.model), "transformers": weight_bytes(plain.model)},
        "prompts": arguments.prompts.name,
        "num_prompts": len(prompts),
        "plan": dataclasses.asdict(plan),
    }
    batches = run_batches(plan, ours, plain, costs, ids, [prompt.category for prompt in prompts], facts)
    return report(facts, batches, arguments.json)


def plan_from(arguments: argparse.Namespace) -> SpeedPlan:
    """What the options ask for. Raises `MarsError`."""
    block = arguments.block_threshold
    return SpeedPlan(
        batch_sizes=numbers("batch-sizes", arguments.batch_sizes, int),
        max_new_tokens=arguments.max_new_tokens,
        thresholds=numbers("thresholds", arguments.thresholds, float),
        verify_thresholds=numbers("verify-thresholds", arguments.verify_thresholds, float),
        layouts=tuple(dict.fromkeys(part.strip() for part in arguments.layouts.split(",") if part.strip())),
        lookup_tokens=numbers("lookup-tokens", arguments.lookup_tokens, int),
        cache_blocks=numbers("cache-blocks", arguments.cache_blocks, int),
        block_thresholds=None if block is None else numbers("block-threshold", block, float),
        ignore_eos=arguments.ignore_eos,
        only=arguments.only,
        skip=arguments.skip,
        warmup_tokens=arguments.warmup_tokens,
        seed=arguments.seed or 0,
    )


def check_plan(plan: SpeedPlan, num_prompts: int) -> None:
    """Refuse a batch that there are not enough prompts for, or for which no method is left."""
    for size in plan.batch_sizes:
        if num_prompts < size:
            raise MarsError(
                f"A batch of {size} needs {size} prompts, and there are {num_prompts}: give more, or "
                "--batch-sizes that are smaller."
            )
        if not methods(plan, size):
            every = methods(dataclasses.replace(plan, only="", skip=None), size)
            names = "; ".join(method.name for method in every)
            raise MarsError(f"--only and --skip leave no method for batch {size}. The methods are: {names}.")


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before hours are spent on what belongs in it."""
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise MarsError(f"The file {path} cannot be written ({error}). Give another with --json.") from error


def check_lengths(
    prompts: Sequence[Prompt], ids: Sequence[Sequence[int]], loaded: LoadedModel, plan: SpeedPlan
) -> None:
    """Refuse a prompt that does not fit the model's context, and name it."""
    settings = DecodeSettings(block_size=loaded.block_size, max_new_tokens=plan.max_new_tokens)
    for prompt, prompt_ids in zip(prompts, ids, strict=True):
        try:
            check_request(Request(prompt_ids, settings), loaded)
        except MarsError as error:
            raise MarsError(f"{prompt.where}: {error}") from error


def _needs_plain(plan: SpeedPlan, arguments: argparse.Namespace, ours: LoadedModel) -> bool:
    """Ours is packed where it is on a CPU; transformers' methods must not be faster for that."""
    wanted = any(method.of_transformers for size in plan.batch_sizes for method in methods(plan, size))
    return wanted and ours.device.type == "cpu" and not arguments.plain_weights


def run_batches(
    plan: SpeedPlan,
    ours: LoadedModel,
    plain: LoadedModel,
    costs: ForwardCosts,
    ids: Sequence[Sequence[int]],
    categories: Sequence[str | None],
    facts: dict[str, Any],
) -> list[BatchReport]:
    """One report for each batch size; after an interruption none for those that follow."""
    reports: list[BatchReport] = []
    for size in plan.batch_sizes:
        groups = groups_of(ids, size)
        chosen = methods(plan, size)
        measured = measure(chosen, Bench(plan, ours, plain, groups, costs), f"batch {size}")
        reports.append(_batch_report(size, chosen, measured, categories, facts, len(groups)))
        if measured.interrupted:
            break
        _free_memory()
    return reports


def groups_of(ids: Sequence[Sequence[int]], size: int) -> list[Prompts]:
    """Prompts that are answered together; what is left over at the end, fewer than `size`, is left out."""
    return [ids[first : first + size] for first in range(0, len(ids) - size + 1, size)]


def _batch_report(
    size: int,
    chosen: Sequence[Method],
    measured: Measured,
    categories: Sequence[str | None],
    facts: dict[str, Any],
    num_groups: int,
) -> BatchReport:
    read = facts["weight_bytes"]
    found = [
        figures_of(
            method,
            measured,
            read["transformers" if method.of_transformers else "ours"],
            facts["copy_bytes_per_s"],
        )
        for method in chosen
    ]
    rows = [row for row in found if row is not None]
    return BatchReport(
        batch_size=size,
        num_groups=max((row.num_groups for row in rows), default=0) if measured.interrupted else num_groups,
        rows=rows,
        categories=by_category(chosen, measured, categories) if size == 1 else [],
        skipped=measured.skipped,
        failed=measured.failed,
        interrupted=measured.interrupted,
        detailed=tuple(method.name for method in chosen if method.drafted),
    )


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def report(facts: dict[str, Any], batches: Sequence[BatchReport], path: Path | None) -> int:
    """Tables, then the JSON as the last line and to the file; the exit status."""
    line = json.dumps(as_json(facts, batches), ensure_ascii=False, allow_nan=False)
    if path:  # first: standard output may be a pipe that nobody reads any more
        path.write_text(line + "\n", "utf-8")
    print(f"\n{heading(facts)}\n")
    for batch in batches:
        print(markdown(batch) + "\n")
    print(line)
    if any(batch.interrupted for batch in batches):
        return 130
    return 1 if any(batch.failed for batch in batches) else 0
