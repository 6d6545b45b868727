"""A trace -> what the replay view is sent: all of it at once, so that scrubbing never asks the server.

The message is the last one of a `Feed` (feed.py) with two more keys. `steps[k]` belongs to event k:

    c   tokens committed, each as below   g   the predictions not committed (— none)
    d   drafts the forward was fed (— 0)  k   positions read from the cache
    u   labels of tokens whose character is not complete (— none)
    o   1: no masks were fed (—)          f   why the run ended with it (—)

A token has the keys of a feed's cell, "x" and "o" apart, always "l", and each alternative ends with its id.
`about` says where the run was recorded, and whether the page can branch off it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mars_core.events import StepEvent, TokenChoice, Trace
from mars_core.settings import Metric

from .feed import Feed, Message


def replay_message(trace: Trace, branching: str = "", *, can_branch: bool = False) -> Message:
    """The value of the replay view.

    Args:
        branching: what to know before branching, or why there is none; a sentence.
        can_branch: whether the view offers to branch.
    """
    feed = Feed(len(trace.prompt_ids))
    steps = []
    for event in trace.events:
        feed.push(event)
        message = feed.take()
        steps.append(_step(event, message["waiting"] if message else []))
    about = {**recorded_facts(trace), "branching": branching, "can_branch": can_branch}
    return {**feed.final(), "steps": steps, "about": about}


def _step(event: StepEvent, waiting: list[str]) -> dict[str, Any]:
    step: dict[str, Any] = {
        "c": [_token(choice, event.metric) for choice in event.committed],
        "k": event.num_cached,
    }
    if event.candidates:
        step["g"] = [_token(choice, event.metric) for choice in event.candidates]
    for key, value in (("d", event.num_drafts), ("u", waiting), ("f", event.finish_reason)):
        if value:
            step[key] = value
    if event.one_token:
        step["o"] = 1
    return step


def _token(choice: TokenChoice, metric: Metric) -> dict[str, Any]:
    token: dict[str, Any] = {
        "i": choice.id,
        "l": choice.label,
        "p": round(choice.probability, 4),
        "h": round(choice.entropy, 3),
        "d": choice.decided,
    }
    confidence = round(choice.confidence(metric), 4)
    if confidence != token["p"]:
        token["c"] = confidence
    if choice.sampled:
        token["r"] = 1
    if choice.special:
        token["s"] = 1
    if choice.alternatives:
        token["a"] = [[best.label, round(best.probability, 4), best.id] for best in choice.alternatives]
    return token


def recorded_facts(trace: Trace) -> dict[str, Any]:
    """Where and when the run was recorded, how it was decoded, and what was asked: plain text."""
    asked = [message["content"] for message in trace.prompt if message["role"] == "user"]
    return {
        "when": day(trace.recorded),
        "where": " · ".join(_texts(trace.model, "name", "device", "dtype")),
        "how": how_decoded(trace),
        "question": asked[-1] if asked else "",
        "num_prompt": len(trace.prompt_ids),
    }


def day(recorded: str) -> str:
    """``2026-04-07T12:30:00Z`` -> ``7 April 2026, 12:30 UTC``."""
    moment = datetime.strptime(recorded, "%Y-%m-%dT%H:%M:%SZ")
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def how_decoded(trace: Trace) -> str:
    """Mode and threshold in a few words, as the first forward had them."""
    if not trace.events:
        return ""
    first = trace.events[0]
    if trace.settings.get("mode") == "ar":
        return "one token a forward (AR)"
    unit = " nats" if first.metric == "entropy" else ""
    words = [f"τ = {first.threshold:.2f}{unit}", "verified" if first.verify else "not verified"]
    return ", ".join([*words, f"B = {first.block_size}"])


def _texts(facts: dict[str, Any], *names: str) -> list[str]:
    return [str(facts[name]) for name in names if isinstance(facts.get(name), str)]
