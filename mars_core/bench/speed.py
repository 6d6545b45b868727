"""``python -m mars_core bench speed``: decode speed of ours against transformers' own `generate`.

Every method answers every prompt, prompt by prompt in turn, so that what disturbs the machine disturbs all
alike. Ratios are taken prompt by prompt against `generate`, and their median is reported. The first prompt
is answered once more before the clock counts (warm-up).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tqdm import tqdm
from transformers.generation.streamers import BaseStreamer

from ..engine import Engine
from ..events import StatisticsCounter
from ..loaded import LoadedModel
from ..row import Request
from ..settings import DecodeSettings

BASELINE = "transformers generate"


@dataclass(frozen=True)
class Run:
    """One method's answer to one prompt.

    Attributes:
        ids: committed tokens.
        num_forwards: the prefill counted as one.
        decode_s: seconds after the first forward's end; its tokens are not counted in `tokens_per_s`.
    """

    ids: tuple[int, ...]
    num_forwards: int
    prefill_s: float
    decode_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Row:
    """One method over all prompts: medians over prompts, totals for tok/fwd.

    Attributes:
        speedup: median over prompts of tok/s over `generate`'s tok/s on the same prompt.
        spread: the quartiles of that.
        same_text: share of prompts whose tokens equal `generate`'s.
    """

    method: str
    tokens_per_forward: float
    ms_per_forward: float
    prefill_s: float
    tokens_per_s: float
    speedup: float
    spread: tuple[float, float]
    same_text: float


Method = Callable[[list[int]], Run]


VERIFY_WINDOWS: dict[str, dict[str, Any]] = {
    "linear": {"layout": "linear"},
    "full, 1 draft": {"layout": "full", "max_drafts": 1},
    "full": {"layout": "full"},
}


def methods(
    loaded: LoadedModel,
    thresholds: Sequence[float],
    verify_thresholds: Sequence[float],
    max_new_tokens: int,
) -> dict[str, Method]:
    """What is compared, by name: `generate`, ours AR, MARS at each τ, and with verification at each τ and
    layout of the window."""
    engine = Engine(loaded)

    def ours(settings: DecodeSettings) -> Method:
        return lambda ids: _run_ours(engine, ids, settings)

    common: dict[str, Any] = dict(max_new_tokens=max_new_tokens, block_size=loaded.block_size)
    table: dict[str, Method] = {
        BASELINE: lambda ids: _run_generate(loaded, ids, max_new_tokens),
        "ours, AR": ours(DecodeSettings(mode="ar", **common)),
    }
    for threshold in thresholds:
        table[f"ours, MARS τ = {threshold:g}"] = ours(DecodeSettings(threshold=threshold, **common))
    for threshold in verify_thresholds:
        for name, window in VERIFY_WINDOWS.items():
            settings = DecodeSettings(threshold=threshold, verify=True, **window, **common)
            table[f"ours, MARS + verify τ = {threshold:g} ({name})"] = ours(settings)
    return table


def measure(table: dict[str, Method], prompts: Sequence[list[int]]) -> list[Row]:
    """Run every method on every prompt, interleaved."""
    for method in table.values():
        method(prompts[0])
    runs: dict[str, list[Run]] = {name: [] for name in table}
    for prompt in tqdm(prompts, desc="prompts", unit="prompt"):
        for name, method in table.items():
            runs[name].append(method(prompt))
    return [_row(name, runs[name], runs[BASELINE]) for name in table]


def _run_ours(engine: Engine, ids: list[int], settings: DecodeSettings) -> Run:
    counter, tokens = StatisticsCounter(len(ids)), []
    for event in engine.stream(Request(ids, settings)):
        counter.add(event)
        tokens += [choice.id for choice in event.committed]
    read = counter.read()
    return Run(tuple(tokens), read.num_forwards, read.prefill_s, read.decode_s, read.tokens_per_s)


class _Clock(BaseStreamer):
    """Notes when each token of `generate` arrives; the first `put` is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _run_generate(loaded: LoadedModel, ids: list[int], max_new_tokens: int) -> Run:
    clock = _Clock()
    prompt = torch.tensor([ids], device=loaded.device)
    output = loaded.model.generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(loaded.stop_token_ids),
        pad_token_id=min(loaded.stop_token_ids),
        streamer=clock,
    )
    start, first, last = clock.times[0], clock.times[1], clock.times[-1]
    tokens = tuple(output[0, len(ids) :].tolist())
    speed = (len(tokens) - 1) / (last - first) if len(tokens) > 1 else 0.0
    return Run(tokens, len(tokens), first - start, last - first, speed)


def _row(name: str, runs: Sequence[Run], baseline: Sequence[Run]) -> Row:
    pairs = [(run, base) for run, base in zip(runs, baseline, strict=True)]
    ratios = [run.tokens_per_s / base.tokens_per_s for run, base in pairs if base.tokens_per_s]
    num_decode = sum(run.num_forwards - 1 for run in runs)
    return Row(
        method=name,
        tokens_per_forward=sum(len(run.ids) for run in runs) / sum(run.num_forwards for run in runs),
        ms_per_forward=1000 * sum(run.decode_s for run in runs) / max(1, num_decode),
        prefill_s=statistics.median(run.prefill_s for run in runs),
        tokens_per_s=statistics.median(run.tokens_per_s for run in runs),
        speedup=statistics.median(ratios),
        spread=_quartiles(ratios),
        same_text=sum(run.ids == base.ids for run, base in pairs) / len(pairs),
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0], values[0])
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def markdown(rows: Sequence[Row]) -> str:
    """The table for a terminal or a document."""
    lines = [
        "| method | tok/fwd | ms/fwd | tok/s (decode) | × generate (quartiles) | prefill, s | same text |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        quartiles = f"{row.spread[0]:.2f}–{row.spread[1]:.2f}"
        lines.append(
            f"| {row.method} | {row.tokens_per_forward:.2f} | {row.ms_per_forward:.1f} "
            f"| {row.tokens_per_s:.1f} | {row.speedup:.2f} ({quartiles}) | {row.prefill_s:.2f} "
            f"| {row.same_text:.0%} |"
        )
    return "\n".join(lines)


def as_json(rows: Sequence[Row], facts: dict[str, Any]) -> dict[str, Any]:
    """Everything, with where it was measured."""
    return {**facts, "rows": [asdict(row) for row in rows]}
