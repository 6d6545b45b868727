"""``python -m mars_core bench``: its arguments and its report."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

from ..errors import MarsError
from ..loaded import LoadedModel
from ..options import add_model_options, load_from
from ..prompts import chat_prompt_ids
from .speed import as_json, markdown, measure, methods

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_PROMPTS = ROOT / "tests" / "data" / "spec_bench_20.jsonl"


def add_bench_command(commands: Any) -> None:
    """Register ``bench`` with an argparse subparsers object."""
    parser: argparse.ArgumentParser = commands.add_parser("bench", help="measure speed, pairwise in one run")
    kinds = parser.add_subparsers(title="benchmarks", required=True, metavar="BENCHMARK")
    speed: argparse.ArgumentParser = kinds.add_parser(
        "speed",
        help="decode speed against transformers' generate",
        description="Greedy decoding of each prompt's first turn, every method on every prompt in turn.",
    )
    speed.add_argument(
        "--prompts",
        type=Path,
        default=DEFAULT_PROMPTS,
        metavar="FILE",
        help="JSON lines with `turns` (a list) or `prompt` (default: 20 prompts of Spec-Bench)",
    )
    speed.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    speed.add_argument("--max-new-tokens", type=int, default=64, metavar="N")
    speed.add_argument(
        "--thresholds", default="0.95,0.9,0.8,0.7", metavar="τ,…", help="of MARS (default: %(default)s)"
    )
    speed.add_argument(
        "--verify-thresholds", default="1,0.9", metavar="τ,…", help="with verification (default: %(default)s)"
    )
    speed.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    add_model_options(speed)
    speed.set_defaults(run=run_speed)


def run_speed(arguments: argparse.Namespace) -> int:
    """Measure, print a Markdown table, and one JSON object as the last line."""
    texts = read_prompts(arguments.prompts)[: arguments.limit]
    thresholds, verified = _thresholds(arguments.thresholds), _thresholds(arguments.verify_thresholds)
    loaded = load_from(arguments)
    assert loaded.tokenizer is not None
    prompts = [chat_prompt_ids(loaded.tokenizer, [{"role": "user", "content": text}]) for text in texts]
    rows = measure(methods(loaded, thresholds, verified, arguments.max_new_tokens), prompts)
    facts = _facts(loaded, arguments, len(prompts))
    print(f"\n{facts['model']}, {facts['hardware']}, {facts['dtype']}, batch 1, {len(prompts)} prompts\n")
    print(markdown(rows))
    result = json.dumps(as_json(rows, facts), ensure_ascii=False)
    if arguments.json:
        arguments.json.write_text(result + "\n", "utf-8")
    print(result)
    return 0


def read_prompts(path: Path) -> list[str]:
    """The first turn of each line. Raises `MarsError`, naming the line, for what is no prompt."""
    if not path.is_file():
        raise MarsError(f"There is no file {path}.")
    texts = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), start=1):
        if line.strip():
            texts.append(_prompt_of(line, f"{path}, line {number}"))
    if not texts:
        raise MarsError(f"{path} holds no prompts.")
    return texts


def _prompt_of(line: str, where: str) -> str:
    try:
        data = json.loads(line)
        return str(data["turns"][0] if "turns" in data else data["prompt"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise MarsError(f"{where}: give a JSON object with `turns` or `prompt`.") from error


def _thresholds(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise MarsError(f"thresholds is {text!r}; give numbers with commas between.") from error


def _facts(loaded: LoadedModel, arguments: argparse.Namespace, num_prompts: int) -> dict[str, Any]:
    on_gpu = loaded.device.type == "cuda"
    hardware = torch.cuda.get_device_name(loaded.device) if on_gpu else _cpu_name()
    return {
        "model": loaded.name,
        "hardware": hardware,
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "block_size": loaded.block_size,
        "batch_size": 1,
        "prompts": arguments.prompts.name,
        "num_prompts": num_prompts,
        "max_new_tokens": arguments.max_new_tokens,
    }


def _cpu_name() -> str:
    """The processor's model name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"
