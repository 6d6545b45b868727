"""MARS for people who live in transformers: ``model.generate(ids, custom_generate=mars_generate, …)``."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from .engine import Engine
from .errors import MarsError
from .loaded import LoadedModel
from .row import Request
from .settings import DecodeSettings, Metric

_WARPERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
# What `generate` prepares for a model's forward whether asked to or not; the engine makes its own.
_PREPARED = {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep"}


def mars_generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    *,
    generation_config: GenerationConfig,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    threshold: float = 0.9,
    block_size: int = 4,
    metric: Metric = "probability",
    mask_token_id: int | None = None,
    seed: int | None = None,
    token_streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> torch.Tensor:
    """The decoding loop for ``generate(custom_generate=…)``.

    Args:
        model, input_ids, generation_config, logits_processor, stopping_criteria: as `generate`
            prepares them; prompts [R, L], padded on the left.
        threshold, block_size, metric: see `mars_core.DecodeSettings`. threshold=1 is ordinary decoding.
        mask_token_id: the mask token; by default that of the model's config.
        seed: of the sampling, one more for each further prompt; by default drawn from torch's global
            random stream, so that ``torch.manual_seed`` governs it as it does in `generate`.
        token_streamer: is given the prompt, then each forward's new tokens together (one prompt only).
            `generate` (5.24) hands a callable neither its own `streamer` nor its `tokenizer`, so those
            names would be lost without a word.
        model_kwargs: what `generate` prepares for a forward, the attention mask of a padded batch among
            it (named as a parameter here, `generate` would give it twice).

    Returns:
        ids [R, L + new], prompts included; rows that ended early are filled up with the pad token.

    Raises:
        MarsError: no mask token, or an option of `generate` that MARS decoding does not know.
    """
    _refuse_unknown(generation_config, logits_processor, stopping_criteria, model_kwargs)
    if token_streamer is not None and input_ids.shape[0] > 1:
        raise MarsError(f"A streamer takes one prompt at a time, not {input_ids.shape[0]}.")
    loaded = _as_loaded(model, mask_token_id, generation_config)
    first_seed = int(torch.randint(2**31, ())) if seed is None else seed
    settings = DecodeSettings(
        threshold=threshold,
        block_size=block_size,
        metric=metric,
        max_new_tokens=generation_config.max_length - input_ids.shape[1],
        temperature=(generation_config.temperature or 1.0) if generation_config.do_sample else 0.0,
        top_k=generation_config.top_k or 0,
        top_p=generation_config.top_p or 1.0,
        seed=first_seed,
    )
    # rows of one seed would draw alike, and several answers to one prompt be one answer
    requests = [
        Request(prompt, dataclasses.replace(settings, seed=first_seed + row))
        for row, prompt in enumerate(_without_padding(input_ids, model_kwargs.get("attention_mask")))
    ]
    outputs = _run(Engine(loaded), requests, token_streamer)
    return _stack(input_ids, outputs, _pad_id(generation_config))


def _without_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[list[int]]:
    if attention_mask is None:
        return input_ids.tolist()
    return [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]


def _run(engine: Engine, requests: list[Request], streamer: BaseStreamer | None) -> list[list[int]]:
    """New tokens of each row; all rows are decoded together."""
    active = {row: engine.stream(request) for row, request in enumerate(requests)}
    outputs: list[list[int]] = [[] for _ in requests]
    if streamer is not None:
        streamer.put(torch.tensor(requests[0].prompt_ids))
    try:
        while active:
            for row in list(active):
                event = next(active[row], None)
                if event is None:
                    del active[row]
                    continue
                ids = [choice.id for choice in event.committed]
                outputs[row] += ids
                if streamer is not None and ids:
                    streamer.put(torch.tensor(ids))
    finally:
        # after an error too: somebody may be waiting for the next token in another thread
        if streamer is not None:
            streamer.end()
    return outputs


def _stack(input_ids: torch.Tensor, outputs: list[list[int]], pad_id: int) -> torch.Tensor:
    longest = max(map(len, outputs))
    new = [ids + [pad_id] * (longest - len(ids)) for ids in outputs]
    return torch.cat([input_ids, torch.tensor(new, dtype=input_ids.dtype, device=input_ids.device)], dim=1)


def _pad_id(config: GenerationConfig) -> int:
    if isinstance(config.pad_token_id, int):
        return config.pad_token_id
    return min(_eos_ids(config), default=0)


def _eos_ids(config: GenerationConfig) -> set[int]:
    eos = config.eos_token_id
    return set() if eos is None else {eos} if isinstance(eos, int) else set(eos)


def _as_loaded(
    model: PreTrainedModel, mask_token_id: int | None, generation_config: GenerationConfig
) -> LoadedModel:
    mask = getattr(model.config, "mask_token_id", None) if mask_token_id is None else mask_token_id
    if mask is None:
        raise MarsError("mask_token_id is missing: give generate mask_token_id=tokenizer.mask_token_id.")
    stop_ids = _eos_ids(generation_config)
    suppressed = {mask, *(generation_config.suppress_tokens or ())} - stop_ids
    return LoadedModel(
        model=model,
        tokenizer=None,  # type: ignore[arg-type]  # ids in, ids out
        mask_token_id=mask,
        block_size=4,
        device=model.device,
        dtype=model.dtype,
        stop_token_ids=frozenset(stop_ids),
        suppressed_token_ids=tuple(sorted(suppressed)),
        context_length=model.config.get_text_config().max_position_embeddings,
        mars_tuned=True,
        name=model.config.name_or_path or type(model).__name__,
    )


def _refuse_unknown(
    config: GenerationConfig,
    processors: LogitsProcessorList | None,
    criteria: StoppingCriteriaList | None,
    model_kwargs: dict[str, Any],
) -> None:
    """An option that would be ignored is an error instead."""
    known = (*_WARPERS, SuppressTokensLogitsProcessor)
    unknown = [type(item).__name__ for item in processors or () if not isinstance(item, known)]
    unknown += [
        type(item).__name__
        for item in criteria or ()
        if not isinstance(item, (EosTokenCriteria, MaxLengthCriteria))
    ]
    if unknown:
        raise MarsError(f"MARS decoding does not support {', '.join(unknown)}; leave out what asks for it.")
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise MarsError(f"MARS decoding is greedy or samples; these options ask for {mode.value}.")
    if config.return_dict_in_generate:
        raise MarsError("MARS decoding returns ids; leave return_dict_in_generate out.")
    given = {name for name, value in model_kwargs.items() if value is not None} - _PREPARED
    if given:
        raise MarsError(f"MARS decoding does not support {', '.join(sorted(given))}; leave that out.")
