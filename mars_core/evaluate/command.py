"""``python -m mars_core evaluate``. What it needs is imported when it runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MarsError
from ..options import add_model_options, load_from
from ..settings import LAYOUTS, METRICS, MODES, PROPOSERS, DecodeSettings

if TYPE_CHECKING:
    from .measure import Plan
    from .report import ModelReport

DESCRIPTION = """How good a model is under a way of decoding. Ask for one or several of: --tasks (questions
whose answers a program grades, by lm-evaluation-harness), --likelihood (of held-out answers, one token at a
time) and --agreement (with the model's own one-token decoding). All greedy. Ends with Markdown tables and a
line of JSON."""


def add_evaluate_command(commands: Any) -> None:
    """Register ``evaluate`` with an argparse subparsers object."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "evaluate", help="measure the quality of answers", description=DESCRIPTION
    )
    _add_measures(parser)
    _add_decoding(parser)
    add_model_options(parser)
    parser.set_defaults(run=run_evaluate)


def _add_measures(parser: argparse.ArgumentParser) -> None:
    from .names import TASKS

    group = parser.add_argument_group("what is measured")
    group.add_argument("--tasks", default="", metavar="NAME,…", help=f"of {', '.join(TASKS)}")
    group.add_argument(
        "--data-dir", type=Path, default=Path("."), metavar="DIR",
        help="where the tasks' files are: ifeval.jsonl, gsm8k_test.jsonl (default: here)",
    )  # fmt: skip
    group.add_argument(
        "--likelihood", nargs="+", default=(), metavar="FILE",
        help="chats as for `train`; their answers are scored",
    )  # fmt: skip
    group.add_argument(
        "--held-out", type=int, default=0, metavar="N",
        help="of --likelihood only the examples that `train` with --held-out N and --seed sets aside",
    )  # fmt: skip
    group.add_argument("--seed", type=int, default=0, metavar="S", help="of that choice (default: 0)")
    group.add_argument(
        "--max-length", type=int, default=512, metavar="L",
        help="of --likelihood: longer chats are cut behind their last answer that fits (default: 512)",
    )  # fmt: skip
    group.add_argument(
        "--agreement", type=Path, metavar="FILE", help="JSON lines with `turns` (a list) or `prompt`"
    )
    group.add_argument(
        "--against", metavar="MODEL",
        help="compare with this model, decoded one token a forward (tasks and likelihood)",
    )  # fmt: skip
    group.add_argument("--limit", type=int, metavar="N", help="only the first N examples or prompts of each")
    group.add_argument(
        "--max-new-tokens", type=int, metavar="N",
        help="of an answer (default: what each task says; 128 for --agreement)",
    )  # fmt: skip
    group.add_argument("--json", type=Path, metavar="FILE", help="write the line of JSON there too")
    group.add_argument(
        "--answers", type=Path, metavar="FILE",
        help="keep the tasks' answers there; a run that was ended goes on from it",
    )  # fmt: skip


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    defaults = DecodeSettings()
    group = parser.add_argument_group("decoding")
    group.add_argument("--mode", choices=MODES, default=defaults.mode, help="ar: one token a forward")
    group.add_argument(
        "--threshold", type=float, default=defaults.threshold, metavar="τ",
        help="confidence to commit a token behind a mask; 1 is exactly AR (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--metric", choices=METRICS, default=defaults.metric, help="what τ is compared with")
    group.add_argument(
        "--verify", action="store_true", help="check what was not sure enough in the next forward"
    )
    group.add_argument(
        "--layout", choices=LAYOUTS, default="full",
        help="of windows with drafts; auto goes by this machine's speed, so that figures differ between "
        "machines (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--proposer", choices=PROPOSERS, default=defaults.proposer, help="of drafts")
    group.add_argument("--block-size", type=int, metavar="B", help="most tokens a forward (default: model's)")
    group.add_argument(
        "--batch-size", type=int, default=8, metavar="R", help="prompts answered at once (default: 8)"
    )


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Measure, print, and write; returns the exit status."""
    from ..bench.command import check_writable
    from .report import as_json, markdown

    # bad options are refused before a model is loaded
    settings_of(arguments, 1 if arguments.block_size is None else arguments.block_size)
    plan = _plan(arguments)
    if arguments.json:
        check_writable(arguments.json)
    try:
        ours, base = _measure_both(plan, arguments)
    except KeyboardInterrupt:
        how = "Run the same command again to go on." if arguments.answers else "--answers FILE keeps answers."
        print(f"Ended. {how}", file=sys.stderr)
        return 130
    line = json.dumps(as_json(ours, base), ensure_ascii=False, allow_nan=False)
    if arguments.json:
        arguments.json.write_text(line + "\n", "utf-8")
    print(f"\n{markdown(ours, base)}\n")
    print(line)
    return 0


def _plan(arguments: argparse.Namespace) -> Plan:
    """Check what can be checked before a model is loaded. Raises `MarsError`."""
    from ..train.data import DataSettings
    from .measure import Plan
    from .names import Selection, task_names
    from .needs import check_packages

    for name in ("limit", "batch_size", "max_length", "max_new_tokens"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise MarsError(f"{name} is {value}; allowed is a whole number, 1 or more.")
    if arguments.answers and not arguments.tasks:
        raise MarsError("--answers keeps the answers of tasks. Give --tasks, or leave it out.")
    if arguments.against and not (arguments.tasks or arguments.likelihood):
        raise MarsError("--against compares tasks and likelihood. Give --tasks or --likelihood.")
    if arguments.tasks:
        check_packages()
    return Plan(
        tasks=task_names(arguments.tasks) if arguments.tasks else (),
        selection=Selection(arguments.data_dir, arguments.limit, arguments.max_new_tokens),
        data=DataSettings(
            sources=tuple(arguments.likelihood),
            held_out=arguments.held_out,
            max_length=arguments.max_length,
            seed=arguments.seed,
        ),
        agreement=arguments.agreement,
        batch_size=arguments.batch_size,
    )


def settings_of(arguments: argparse.Namespace, block_size: int) -> DecodeSettings:
    """How the options say that is decoded. Raises `MarsError`."""
    return DecodeSettings(
        mode=arguments.mode,
        threshold=arguments.threshold,
        metric=arguments.metric,
        verify=arguments.verify,
        layout=arguments.layout,
        proposer=arguments.proposer,
        block_size=block_size,
        num_alternatives=0,
    )


def _measure_both(plan: Plan, arguments: argparse.Namespace) -> tuple[ModelReport, ModelReport | None]:
    ours = _measure(plan, arguments, arguments.answers)
    if not arguments.against:
        return ours, None
    model = {"model": arguments.against, "adapter": None, "mask_token_id": None, "block_size": None}
    one_token = {"mode": "ar", "verify": False, "proposer": "masks"}
    of_base = argparse.Namespace(**{**vars(arguments), **model, **one_token})
    answers = arguments.answers
    beside = answers and answers.with_name(f"{answers.stem}.against{answers.suffix}")
    return ours, _measure(dataclasses.replace(plan, agreement=None), of_base, beside)


def _measure(plan: Plan, arguments: argparse.Namespace, answers: Path | None) -> ModelReport:
    """One model, which is not kept."""
    from .measure import measure

    loaded = load_from(arguments, arguments.block_size)
    for notice in loaded.notices:
        print(f"note: {notice}", file=sys.stderr)
    return measure(plan, loaded, settings_of(arguments, loaded.block_size), answers)
