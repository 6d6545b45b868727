"""Transformers' own `generate`: one token at a time, and with prompt lookup."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence

import torch
from transformers.generation.streamers import BaseStreamer

from ..loaded import LoadedModel
from .model_clock import ModelClock
from .outcome import Outcome

# `generate` takes an id that no token has for "never stop", and says so each time (5.24: generation/utils.py)
NEVER_STOP = -1
_GENERATION_LOGGER = logging.getLogger("transformers.generation.utils")


class _Clock(BaseStreamer):
    """Notes when `generate` hands over how much: first the prompt, then each forward's tokens."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sizes: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())
        self.sizes.append(value.numel())

    def end(self) -> None:
        pass


def run_generate(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    ignore_eos: bool,
    lookup_tokens: int | None = None,
) -> Outcome:
    """Answer a group of prompts in one left-padded batch, as `generate` does it.

    It pads rows that have ended and goes on to the longest. The padding is not counted, neither among the
    tokens nor among the forwards of a row.

    Args:
        lookup_tokens: `prompt_lookup_num_tokens`; None decodes one token at a time. For one prompt only.
    """
    ids, attention_mask = _left_padded(loaded, prompts)
    clock = _Clock()
    lookup = {} if lookup_tokens is None else {"prompt_lookup_num_tokens": lookup_tokens}
    with ModelClock(loaded.model) as calls, _quiet(ignore_eos):
        begin = time.perf_counter()
        output = loaded.model.generate(  # type: ignore[operator]
            ids,
            attention_mask=attention_mask,
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=stop_ids_for_generate(loaded, ignore_eos),
            pad_token_id=padding_id(loaded),
            streamer=clock,
            **lookup,
        )
        answers = output[:, ids.shape[1] :].tolist()
        wall_s = time.perf_counter() - begin
    stop_ids = frozenset() if ignore_eos else loaded.stop_token_ids
    tokens = tuple(up_to_stop(answer, stop_ids) for answer in answers)
    num_decode_forwards, prefilled = len(clock.times) - 2, clock.times[1]
    one_at_a_time = lookup_tokens is None
    return Outcome(
        tokens=tokens,
        wall_s=wall_s,
        prefill_s=prefilled - begin,
        # with lookup the forward that reads the prompt may already verify some
        num_prefill_tokens=min(clock.sizes[1], sum(map(len, tokens))),
        num_decode_forwards=num_decode_forwards,
        num_row_forwards=sum(map(len, tokens)) if one_at_a_time else num_decode_forwards + 1,
        model_s=calls.seconds(prefilled, num_decode_forwards),
    )


def up_to_stop(tokens: Sequence[int], stop_ids: frozenset[int]) -> tuple[int, ...]:
    """A row's answer without what comes behind its end; the token that ends it stays."""
    end = next((place for place, token in enumerate(tokens) if token in stop_ids), len(tokens))
    return tuple(tokens[: end + 1])


def stop_ids_for_generate(loaded: LoadedModel, ignore_eos: bool) -> list[int]:
    """What to give as `eos_token_id`: None would mean the model's own."""
    return [NEVER_STOP] if ignore_eos or not loaded.stop_token_ids else sorted(loaded.stop_token_ids)


def padding_id(loaded: LoadedModel) -> int:
    """Any token that can be fed: padding is masked where it stands, and cut where it was put."""
    return min(loaded.stop_token_ids, default=0)


def _left_padded(loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, both [rows, longest prompt]."""
    longest = max(map(len, prompts))
    ids = [[padding_id(loaded)] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=loaded.device), torch.tensor(mask, device=loaded.device)


@contextlib.contextmanager
def _quiet(ignore_eos: bool) -> Iterator[None]:
    """Without the warning, at every call, that the answer will not stop: it is not meant to."""
    level = _GENERATION_LOGGER.level
    if ignore_eos:
        _GENERATION_LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _GENERATION_LOGGER.setLevel(level)
