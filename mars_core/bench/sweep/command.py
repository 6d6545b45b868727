"""``python -m mars_core sweep``: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...costs import known_costs
from ...engine import Engine
from ...errors import MarsError
from ...options import add_model_options, load_from
from ...settings import METRICS
from ..command import check_writable
from ..facts import facts_of
from ..plan import numbers
from ..prompts_file import Prompt, choose
from .grid import ENTROPY_THRESHOLDS, THRESHOLDS, VERIFY, SweepPlan
from .identity import weights_digest
from .prompts import BUILT_IN, built_in, parse_prompts, read_lines, ready
from .reading import load_sweep
from .result import SweepResult
from .run import Sweep
from .table import markdown

_DESCRIPTION = """\
Answer the same prompts at every point of a grid of thresholds, block sizes and metrics, with and without
verification, and compare each answer with the model's own one-token text (AR, always part of the grid):
tokens a forward, decode speed, speed-up over AR prompt by prompt, agreement with AR's text, and how likely
that text is under AR. Greedy. Prints a Markdown table.
"""
_EXAMPLES = """\
examples:
  python -m mars_core sweep
      the built-in prompts with the default model
  python -m mars_core sweep --prompts my.txt --thresholds 0.5,0.7,0.9,1 --verify both --json out.json --csv out.csv
      your prompts, one a line; everything measured as JSON, the table as CSV
  python -m mars_core sweep --prompts my.txt --json out.json --resume
      go on with the same sweep after Ctrl-C or a crash (out.json is written after every prompt)
  python -m mars_core sweep --metric entropy --entropy-thresholds 0.1,0.3,1 --block-sizes 4,8

Ctrl-C ends it with what is done: prompts that every setting has answered. Exit status 130 then.
"""  # noqa: E501
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} answers [{elapsed}<{remaining}{postfix}]"
_SAME_PLACE = ("model", "weights", "dtype", "hardware", "threads", "torch", "weights_layout")


def add_sweep_command(commands: Any) -> None:
    """Register ``sweep`` with an argparse subparsers object."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sweep",
        help="compare settings: speed, agreement with AR, likelihood",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_prompt_options(parser)
    _add_grid_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run_sweep)


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts and answers")
    group.add_argument(
        "--prompts",
        default="built-in",
        metavar="FILE",
        help="one prompt a line, or JSON lines with `prompt` or `turns`; 'built-in' for the "
        f"{len(BUILT_IN)} that come with this program (default: built-in)",
    )
    group.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    group.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="(default: %(default)s)")
    group.add_argument("--json", type=Path, metavar="OUT", help="write every answer and figure there")
    group.add_argument("--csv", type=Path, metavar="OUT", help="write the table there")
    group.add_argument(
        "--resume", action="store_true", help="go on with the sweep in --json, if the file is there"
    )


def _add_grid_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("grid", "every value of each list with every value of the others")
    group.add_argument(
        "--thresholds",
        default=_joined(THRESHOLDS),
        metavar="τ,…",
        help="τ on probability and margin, 0 to 1; 1 without verification is AR and not run again "
        "(default: %(default)s)",
    )
    group.add_argument("--block-sizes", metavar="B,…", help="most tokens a forward (default: the model's)")
    group.add_argument(
        "--metric",
        default="probability",
        metavar="NAME,…",
        help=f"what τ is compared with: {', '.join(METRICS)} (default: %(default)s)",
    )
    group.add_argument(
        "--entropy-thresholds",
        default=_joined(ENTROPY_THRESHOLDS),
        metavar="τ,…",
        help="τ on entropy, in nats, lower is surer (default: %(default)s)",
    )
    group.add_argument(
        "--verify", choices=VERIFY, default="both", help="check unsure predictions next time (default: both)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="S", help="of the order of settings")


def run_sweep(arguments: argparse.Namespace) -> int:
    """Measure, print, and write; returns the exit status."""
    prompts = choose(_prompts(arguments.prompts), arguments.limit, None)
    _plan(arguments, block_size=4)  # any: what is wrong with the options is said before a model is loaded
    if arguments.resume and not arguments.json:
        raise MarsError("--resume goes on with the sweep in --json, which is not given.")
    for path in filter(None, (arguments.json, arguments.csv)):
        check_writable(path)
    loaded = load_from(arguments)
    plan = _plan(arguments, loaded.block_size)
    facts = {
        **facts_of(loaded),
        "weights": weights_digest(loaded),
        "prompts_from": Path(arguments.prompts).name,
    }
    texts = tuple(prompt.text for prompt in prompts)
    before = SweepResult(facts, plan, texts, ())
    if arguments.resume and arguments.json.exists():
        before = resumable(load_sweep(arguments.json), before)
    # kept, a prompt that comes again, setting by setting, would have no prefill
    engine = Engine(loaded, prefix_bytes=0, costs=partial(known_costs, loaded))
    sweep = Sweep(engine, plan, ready(prompts, loaded, plan.max_new_tokens), before.answers)
    return _finish(arguments, *_run(sweep, before, arguments.json))


def _prompts(name: str) -> list[Prompt]:
    return built_in() if name == "built-in" else parse_prompts(read_lines(Path(name)), name)


def _plan(arguments: argparse.Namespace, block_size: int) -> SweepPlan:
    blocks = arguments.block_sizes
    return SweepPlan(
        block_sizes=(block_size,) if blocks is None else numbers("block-sizes", blocks, int),
        thresholds=numbers("thresholds", arguments.thresholds, float),
        metrics=tuple(dict.fromkeys(part.strip() for part in arguments.metric.split(",") if part.strip())),  # type: ignore[arg-type]
        entropy_thresholds=numbers("entropy-thresholds", arguments.entropy_thresholds, float),
        verify=arguments.verify,
        max_new_tokens=arguments.max_new_tokens,
        seed=arguments.seed,
    )


def _joined(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def resumable(saved: SweepResult, wanted: SweepResult) -> SweepResult:
    """What there is of `wanted` already: the prompts that every point has answered, for ratios are taken in
    one run.

    Raises:
        MarsError: it is a sweep of other settings or prompts, or from another place.
    """
    different = [name for name in ("plan", "prompts") if getattr(saved, name) != getattr(wanted, name)]
    different += [name for name in _SAME_PLACE if saved.facts.get(name) != wanted.facts.get(name)]
    if different:
        raise MarsError(
            f"The saved sweep differs in {', '.join(different)}. Go on with the same, or give another --json."
        )
    return saved.only_complete()


def _run(sweep: Sweep, before: SweepResult, path: Path | None) -> tuple[SweepResult, bool]:
    """The result, and whether it was interrupted."""

    def result() -> SweepResult:
        return SweepResult(before.facts, before.plan, before.prompts, tuple(sweep.answers))

    num_saved, interrupted = before.num_complete, False
    total = len(sweep.points) * len(sweep.prompts)
    with tqdm(
        total=total,
        initial=len(sweep.answers),
        desc="Sweep",
        smoothing=0,  # the average of all so far, for the settings' speeds differ
        dynamic_ncols=True,
        bar_format=_BAR,
    ) as bar:
        try:
            for progress in sweep.steps():
                bar.set_postfix_str(progress.point.name, refresh=False)
                bar.update(progress.share * total - bar.n)
                if path and not progress.num_tokens and result().num_complete > num_saved:
                    num_saved += 1
                    save(path, result())
        except KeyboardInterrupt:
            interrupted = True
    return result(), interrupted


def save(path: Path, result: SweepResult) -> None:
    """Write the JSON; the file is always whole, the one before or this one."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(result.to_json(), ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    os.replace(unfinished, path)


def _finish(arguments: argparse.Namespace, result: SweepResult, interrupted: bool) -> int:
    # files first: standard output may be a pipe that nobody reads any more
    if arguments.json:
        save(arguments.json, result)
    if arguments.csv:
        arguments.csv.write_text(result.to_csv(), "utf-8")
    if not result.figures:
        print("Nothing was measured.", file=sys.stderr)
    else:
        print(f"\n{markdown(result)}")
    return 130 if interrupted else 0
