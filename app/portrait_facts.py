"""What a portrait says about its run: model, settings, figures; all of it text for anybody's eyes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mars_core.events import StepEvent, Trace

from .feed import threshold_in_force

LONGEST_VALUE = 160  # characters
LONGEST_TITLE = 90
ENDINGS = {
    "eos": "the model ended it",
    "stop": "at a stop text",
    "length": "at the limit on tokens",
    "cancelled": "stopped by hand",
    "error": "the model failed",
}

Fact = tuple[str, str]


def title_of(trace: Trace) -> str:
    """The last question, in one short line."""
    asked = [message["content"] for message in trace.prompt if message["role"] == "user"]
    text = " ".join(asked[-1].split()) if asked else ""
    return short(text, LONGEST_TITLE) or "A recorded answer"


def facts(trace: Trace) -> list[Fact]:
    """Names and values: model, settings in force, figures."""
    return [*_model(trace.model), *_settings(trace), *_figures(trace)]


def short(value: Any, longest: int = LONGEST_VALUE) -> str:
    """`value` in one line, cut where it is long. Settings of a trace may hold whatever JSON can."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def threshold_text(events: Sequence[StepEvent]) -> str:
    """τ in force, with its unit; from least to most where it was turned."""
    used = [event for event in events if event.window_length and threshold_in_force(event) is not None]
    if not used:
        return "none: one token a forward"
    values = [event.threshold for event in used]
    metrics = sorted({event.metric for event in used})
    unit = " nats" if metrics == ["entropy"] else ""
    low, high = min(values), max(values)
    shown = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}, turned while it wrote"
    return f"{shown}{unit} ({', '.join(metrics)})"


def _model(model: dict[str, Any]) -> list[Fact]:
    where = [short(model[name]) for name in ("device", "dtype") if model.get(name)]
    if model.get("attention"):
        where.append(f"{short(model['attention'])} attention")
    return [
        ("model", short(model.get("name") or "not named")),
        *([("on", ", ".join(where))] if where else []),
    ]


def _settings(trace: Trace) -> list[Fact]:
    settings, events = trace.settings, trace.events
    chosen: list[Fact] = [("threshold τ", threshold_text(events))]
    sizes = sorted({event.block_size for event in events})
    if sizes:
        chosen.append(("block size B", " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))))
    verified = {event.verify for event in events}
    chosen.append(("verification", "changed" if len(verified) > 1 else "on" if True in verified else "off"))
    temperature = settings.get("temperature")
    if temperature:
        for name in ("temperature", "top_p", "top_k", "seed"):
            if settings.get(name) not in (None, 0):
                chosen.append((name.replace("_", "-"), short(settings[name])))
    else:
        chosen.append(("choice", "greedy"))
    return chosen


def _figures(trace: Trace) -> list[Fact]:
    read = trace.statistics()
    figures: list[Fact] = [
        ("tokens", f"{read.num_tokens:,} in {read.num_forwards:,} forwards"),
        ("tokens per forward", f"{read.tokens_per_forward:.2f}"),
    ]
    if read.tokens_per_s:
        figures.append(("decode speed", f"{read.tokens_per_s:.1f} tok/s over {read.decode_s:.2f} s"))
    figures.append(("prompt", f"{read.num_prompt_tokens:,} tokens read in {read.prefill_s:.2f} s"))
    figures.append(("ended", ENDINGS.get(read.finish_reason or "", "it is not complete")))
    return figures
