"""``python -m mars_core generate``: an answer streamed to a terminal, each forward's tokens in its colour."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from .costs import known_costs
from .engine import Engine
from .errors import MarsError
from .events import Statistics, StatisticsCounter, StepEvent
from .loaded import LoadedModel
from .options import add_model_options, load_from
from .prompts import chat_prompt_ids
from .row import Request
from .settings import LAYOUTS, METRICS, MODES, PROPOSERS, DecodeSettings, LiveSettings
from .traces import record, save_trace

# Two hues that stay apart for the colour-blind, on dark and light terminals; one-token forwards are plain.
GROUP_COLOURS = ("\x1b[34m", "\x1b[33m")
RESET = "\x1b[0m"


def add_generate_command(commands: Any) -> None:
    """Register ``generate`` with an argparse subparsers object."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "generate",
        help="answer one prompt",
        description="Answer one prompt. In a terminal the tokens of one forward pass share a colour.",
    )
    parser.add_argument("prompt", help="what to ask; '-' reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, no chat template")
    _add_decoding_options(parser)
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="save every forward there, for the page's Replay tab",
    )
    parser.set_defaults(run=run_generate)


def _add_decoding_options(parser: argparse.ArgumentParser) -> None:
    defaults = DecodeSettings()
    group = parser.add_argument_group("decoding")
    group.add_argument("--mode", choices=MODES, default=defaults.mode, help="ar: one token a forward")
    group.add_argument(
        "--threshold",
        type=float,
        default=defaults.threshold,
        metavar="τ",
        help="confidence to commit a token behind a mask; 1 is exactly AR (default: %(default)s)",
    )
    group.add_argument("--metric", choices=METRICS, default=defaults.metric, help="what τ is compared with")
    group.add_argument(
        "--verify",
        action="store_true",
        help="check what was not sure enough in the next forward; with τ = 1 the output is exactly AR's",
    )
    group.add_argument(
        "--layout",
        choices=LAYOUTS,
        default=defaults.layout,
        help="of windows with drafts; auto: what pays most here, down to none (default: %(default)s)",
    )
    group.add_argument(
        "--proposer",
        choices=PROPOSERS,
        default=defaults.proposer,
        help="where drafts come from: the model's masks, or what followed the same words before "
        "(lookup; needs --verify), or both (default: %(default)s)",
    )
    group.add_argument(
        "--last-mask",
        action=argparse.BooleanOptionalAction,
        help="feed B masks, not B - 1, to commit up to B + 1 tokens a forward (default: as the model says)",
    )
    group.add_argument("--max-drafts", type=int, metavar="K", help="most drafts a forward (default: B - 1)")
    group.add_argument("--block-size", type=int, metavar="B", help="most tokens a forward (default: model's)")
    group.add_argument("--max-new-tokens", type=int, default=defaults.max_new_tokens, metavar="N")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="0 is off (default)")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 is off (default)")
    group.add_argument("--seed", type=int, help="same seed, same text")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; repeatable")


def run_generate(arguments: argparse.Namespace) -> int:
    """Load, decode, print. Returns the exit status."""
    settings_of = _settings_maker(arguments)
    settings_of(1)  # bad options are refused before a model is loaded
    prompt = _read_standard_input() if arguments.prompt == "-" else arguments.prompt
    loaded = load_from(arguments, arguments.block_size)
    settings = settings_of(loaded.block_size)
    for notice in loaded.notices:
        print(f"note: {notice}", file=sys.stderr)
    prompt_ids = _prompt_ids(loaded, prompt, arguments)
    live = LiveSettings(settings.live_values())
    counter = StatisticsCounter(len(prompt_ids))
    told: list[StepEvent] = []
    engine = Engine(loaded, costs=partial(known_costs, loaded))
    if settings.verify:
        engine.costs()  # now, not within the first forward, whose time is told
    events = engine.stream(Request(prompt_ids, settings, live))
    for event in _until_interrupted(events, live):
        counter.add(event)
        told.append(event)
        _show(event, sys.stdout)
    figures = counter.read()
    print()
    if arguments.trace:
        trace = record(loaded, _messages(prompt, arguments), prompt_ids, settings, told)
        save_trace(trace, arguments.trace)
    if arguments.json:
        print(json.dumps(_summary(loaded, settings, figures, "".join(event.text for event in told))))
    else:
        print(_figures_line(loaded, settings, figures))
    return 130 if figures.finish_reason == "cancelled" else 0


def _read_standard_input() -> str:
    if sys.stdin is None:
        raise MarsError("Standard input is closed. Open it, or give the prompt itself in place of '-'.")
    return sys.stdin.read()


def _settings_maker(arguments: argparse.Namespace) -> Callable[[int], DecodeSettings]:
    def make(block_size: int) -> DecodeSettings:
        return DecodeSettings(
            mode=arguments.mode,
            threshold=arguments.threshold,
            metric=arguments.metric,
            verify=arguments.verify,
            layout=arguments.layout,
            max_drafts=arguments.max_drafts,
            proposer=arguments.proposer,
            last_mask=arguments.last_mask,
            block_size=block_size if arguments.block_size is None else arguments.block_size,
            max_new_tokens=arguments.max_new_tokens,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            seed=arguments.seed,
            stop_strings=tuple(arguments.stop),
        )

    return make


def _prompt_ids(loaded: LoadedModel, prompt: str, arguments: argparse.Namespace) -> list[int]:
    assert loaded.tokenizer is not None
    if arguments.raw:
        return list(loaded.tokenizer(prompt)["input_ids"])
    return chat_prompt_ids(loaded.tokenizer, _messages(prompt, arguments))


def _messages(prompt: str, arguments: argparse.Namespace) -> list[dict[str, str]]:
    system = [{"role": "system", "content": arguments.system}] if arguments.system else []
    return [*system, {"role": "user", "content": prompt}]


def _until_interrupted(events: Iterator[StepEvent], live: LiveSettings) -> Iterator[StepEvent]:
    """Ctrl-C ends the generation, not the report on it."""
    previous = signal.signal(signal.SIGINT, lambda *_: live.cancel())
    try:
        yield from events
    finally:
        signal.signal(signal.SIGINT, previous)


def _show(event: StepEvent, out: TextIO) -> None:
    if not out.isatty() or len(event.committed) < 2:
        out.write(event.text)
    else:
        out.write(f"{GROUP_COLOURS[event.index % 2]}{event.text}{RESET}")
    out.flush()


def _figures_line(loaded: LoadedModel, settings: DecodeSettings, figures: Statistics) -> str:
    return (
        f"[{figures.num_tokens} tokens in {figures.num_forwards} forwards: "
        f"{figures.tokens_per_forward:.2f} tok/fwd, {figures.tokens_per_s:.1f} tok/s; "
        f"prefill {figures.prefill_s:.2f} s, decode {figures.decode_s:.2f} s; {figures.finish_reason}; "
        f"{_mode_name(settings)}, τ = {settings.threshold:g}, B = {settings.block_size}; "
        f"{loaded.name}, {loaded.device}, {_dtype_name(loaded)}]"
    )


def _summary(loaded: LoadedModel, settings: DecodeSettings, figures: Statistics, text: str) -> dict[str, Any]:
    return {
        "text": text,
        **dataclasses.asdict(figures),
        "mode": settings.mode,
        "threshold": settings.threshold,
        "metric": settings.metric,
        "verify": settings.verify,
        "layout": settings.layout,
        "max_drafts": settings.max_drafts,
        "proposer": settings.proposer,
        "block_size": settings.block_size,
        "seed": settings.seed,
        "model": loaded.name,
        "device": str(loaded.device),
        "dtype": _dtype_name(loaded),
    }


def _dtype_name(loaded: LoadedModel) -> str:
    return str(loaded.dtype).removeprefix("torch.")


def _mode_name(settings: DecodeSettings) -> str:
    return f"{settings.mode} + verify" if settings.verify and settings.mode == "mars" else settings.mode
