"""``python -m mars_core train`` and ``… distill``. What they need is imported when they run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .. import default_model
from ..errors import MarsError
from ..options import add_model_options, load_from

TRAIN = """Fine-tune a causal language model so that it predicts behind masks: MARS (arXiv 2604.07023). The
result in --out is loaded with --model DIR. Several GPUs: `accelerate launch --config_file
mars_core/train/configs/ddp.yaml -m mars_core train …` (or fsdp.yaml, for models that do not fit on one)."""
DISTILL = """Let a model answer prompts, one token a forward, many prompts at once. The output is data for
`train`; what a model says itself is what keeps its ways while it learns to predict behind masks. May be ended
and started again at any time: answers that are there already are kept."""


def add_train_command(commands: Any) -> None:
    """Register ``train`` with an argparse subparsers object."""
    from .arguments import TrainSettings
    from .options import add_options

    parser: argparse.ArgumentParser = commands.add_parser(
        "train", help="fine-tune a model with MARS", description=TRAIN
    )
    add_options(parser, TrainSettings)
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is loaded and why")
    parser.set_defaults(run=run_train)


def run_train(arguments: argparse.Namespace) -> int:
    """Train; the last line is one JSON object. Returns the exit status."""
    from .arguments import TrainSettings
    from .options import read_options
    from .processes import is_main_process
    from .run import train

    settings = read_options(arguments, TrainSettings)
    result = train(settings)
    if is_main_process():
        print(json.dumps(result, ensure_ascii=False))
    if result["ended_early"]:
        print(f"Ended at step {result['steps']}; --resume goes on from there.", file=sys.stderr)
        return 130
    return 0


def add_distill_command(commands: Any) -> None:
    """Register ``distill`` with an argparse subparsers object."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "distill", help="let a model answer prompts, as data to train it on", description=DISTILL
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="JSON lines with `prompt`; `source` and `licence` are carried over",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="JSON lines; added to if it exists"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument(
        "--sampled-share", type=float, default=0.5, metavar="P",
        help="share of the prompts whose answer is sampled; the others' is greedy (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.7, metavar="T", help="of the sampled answers")
    parser.add_argument("--top-p", type=float, default=0.9, metavar="P", help="of the sampled answers")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same answers")
    parser.add_argument(
        "--max-new-tokens", type=int, default=256, metavar="N",
        help="a longer answer is cut there and marked as not finished (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="prompts at once (default: %(default)s)"
    )
    parser.add_argument(
        "--bad-lines",
        choices=("skip", "refuse"),
        default="skip",
        help="what happens to a line that is no prompt",
    )
    add_model_options(parser)
    # the base itself: what the default's adapter adds is not what it should learn from
    parser.set_defaults(run=run_distill, model=default_model.HUB_ID)


def run_distill(arguments: argparse.Namespace) -> int:
    """Answer; the last line is one JSON object of counts. Returns the exit status."""
    from .distill import DistillSettings, answered_keys, distill, read_prompts
    from .reading import Findings

    settings = DistillSettings(
        sampled_share=arguments.sampled_share,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
        max_new_tokens=arguments.max_new_tokens,
        batch_size=arguments.batch_size,
    )
    findings = Findings(arguments.bad_lines)
    prompts = read_prompts(arguments.prompts, findings)[: arguments.limit]
    if not prompts:
        raise MarsError(f"{', '.join(map(str, arguments.prompts))}: there is no prompt in it.")
    answered_keys(arguments.out)  # a file of something else is refused before a model is loaded
    loaded = load_from(arguments)
    try:
        counts = distill(loaded, prompts, arguments.out, settings)
    except KeyboardInterrupt:
        print("Ended. What is done is kept: run the same command again to go on.", file=sys.stderr)
        return 130
    print(json.dumps({**findings.counts, **counts}))
    return 0
