"""Events without a model: a text cut into tokens, and how many of them each forward commits."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from mars_core.events import Alternative, Decided, StepEvent, TokenChoice


def split_tokens(text: str) -> list[str]:
    """Roughly what a tokenizer makes of `text`."""
    return re.findall(r"\n+|\t| ?[A-Za-z]+| ?[^\sA-Za-z]{1,2}|\s", text)


def token(text: str, decided: Decided = "ar", probability: float = 0.97, **fields: Any) -> TokenChoice:
    """A token whose id, entropy and alternatives follow from its text and probability."""
    label = fields.pop("label", text)
    rest = 1 - probability
    best = Alternative(len(label), label, probability)
    others = [
        Alternative(7 + k, name, rest * share) for k, (name, share) in enumerate([(" a", 0.6), ("\n", 0.2)])
    ]
    defaults: dict[str, Any] = {
        "id": sum(map(ord, label)) % 49152,
        "special": False,
        "sampled": False,
        "margin": max(0.0, probability - rest),
        "entropy": rest * 2.5,
        "alternatives": (best, *others),
    }
    return TokenChoice(
        text=text, label=label, decided=decided, probability=probability, **{**defaults, **fields}
    )


def event(
    index: int, committed: Sequence[TokenChoice] = (), candidates: Sequence[TokenChoice] = (), **fields: Any
) -> StepEvent:
    """One forward; the text is that of its tokens unless told otherwise."""
    defaults: dict[str, Any] = {
        "prefill": index == 0,
        "text": "".join(choice.text for choice in committed),
        "threshold": 0.9,
        "metric": "probability",
        "block_size": 4,
        "one_token": False,
        "window_length": 4,
        "num_cached": 40 + index,
        "seconds": 0.03,
        "elapsed": 0.03 * (index + 1),
    }
    return StepEvent(
        index=index, committed=tuple(committed), candidates=tuple(candidates), **{**defaults, **fields}
    )


def answer(
    text: str | Sequence[str], counts: Sequence[int] = (1, 3, 1, 2, 4, 1, 1, 2), seed: int = 0, **fields: Any
) -> list[StepEvent]:
    """A whole run that writes `text` (or a list of token texts) and ends with an end-of-sequence token."""
    pieces = split_tokens(text) if isinstance(text, str) else list(text)
    draw = random.Random(seed)
    events: list[StepEvent] = []
    start = 0
    while start < len(pieces):
        count = counts[len(events) % len(counts)]
        committed = [_draw(draw, piece, k) for k, piece in enumerate(pieces[start : start + count])]
        guesses = [
            token("", "candidate", draw.uniform(0.2, 0.88), label=draw.choice([piece, piece, " the"]))
            for piece in pieces[start + count : start + 4]
        ]
        events.append(event(len(events), committed, guesses, **fields))
        start += count
    ending = token("", probability=0.99, label="<|im_end|>", special=True)
    events.append(event(len(events), [ending], finish_reason="eos", **fields))
    return events


def _draw(draw: random.Random, piece: str, place: int) -> TokenChoice:
    """The first token of a forward may be unsure; those behind masks are sure, or they would not be there."""
    if place:
        return token(piece, "accepted", draw.uniform(0.985, 1))
    return token(piece, "ar", draw.choice([0.99, 0.93, 0.84, 0.61, 0.35]))
