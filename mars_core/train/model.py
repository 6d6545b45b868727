"""The model to train: loaded, given an adapter, its attention and precision chosen."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from .. import default_model, published
from ..errors import MarsError
from ..loaded import LoadedModel
from ..models import load_model
from .arguments import TrainSettings
from .by_document import use_attention_by_document


def use_bfloat16(settings: TrainSettings) -> bool:
    """Whether to compute in bfloat16: as asked, else on a GPU that has it."""
    if settings.precision != "auto":
        return settings.precision == "bf16"
    on_gpu = settings.device == "auto" and torch.cuda.is_available()
    return on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)


def load_for_training(settings: TrainSettings) -> LoadedModel:
    """The base model on the CPU, and its mask token.

    Raises:
        MarsError: it cannot be loaded; or an adapter is merged into it already, so that another one would
            fit no model that exists.
    """
    frozen_in_half = settings.tune == "lora" and use_bfloat16(settings)
    with _no_advice_on_decoding():
        loaded = load_model(
            settings.model,
            device="cpu",
            dtype="bf16" if frozen_in_half else "fp32",
            mask_token_id=settings.mask_token_id,
            block_size=settings.block_size,
        )
    if settings.tune == "lora" and loaded.origins["adapter"] != "none":
        raise MarsError(
            f"{settings.model} has an adapter merged in, so a new one would need that as its base. To train "
            "the adapter on, give its base as model and it as init_adapter."
        )
    if settings.max_length > loaded.context_length:
        raise MarsError(
            f"max_length is {settings.max_length}; the model's context holds {loaded.context_length} tokens."
        )
    if settings.attention != "auto":
        loaded.model.set_attn_implementation(settings.attention)
    elif torch.cuda.is_available() and settings.device == "auto":
        loaded.model.set_attn_implementation("flex_attention")
    else:
        use_attention_by_document(loaded.model)
    return loaded


def trainable(loaded: LoadedModel, settings: TrainSettings) -> PreTrainedModel | PeftModel:
    """The model with what is to be trained: all of it, or an adapter; new weights by the global random state.

    Raises:
        MarsError: there are no such layers, or the adapter to go on from does not fit.
    """
    if settings.tune == "full":
        return loaded.model.requires_grad_(True)
    loaded.model.requires_grad_(False)
    with warnings.catch_warnings():
        # PEFT 0.21 uses a name that transformers 5.24 deprecates
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        model = _adapter_to_go_on(loaded, settings) if settings.init_adapter else _new(loaded, settings)
    model.peft_config["default"].base_model_name_or_path = base_name(settings.model)
    return model


def _new(loaded: LoadedModel, settings: TrainSettings) -> PeftModel:
    targets = settings.lora_targets
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_rank,
        lora_alpha=2 * settings.lora_rank if settings.lora_alpha is None else settings.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=settings.lora_dropout,
        target_modules=targets[0] if targets == ("all-linear",) else list(targets),
        # one row of the table; where head and table are one matrix, PEFT lets them share the row as well
        trainable_token_indices=[loaded.mask_token_id] if settings.train_mask_row else None,
    )
    try:
        return get_peft_model(loaded.model, config)  # type: ignore[return-value]
    except ValueError as error:
        raise MarsError(f"No adapter can be made for {' '.join(targets)}: {error}") from error


def _adapter_to_go_on(loaded: LoadedModel, settings: TrainSettings) -> PeftModel:
    source = published.find(str(settings.init_adapter))
    if not source.is_adapter:
        raise MarsError(f"{source.directory} is not a PEFT adapter: it has no adapter_config.json.")
    published.check_whole(source.directory)
    try:
        model = PeftModel.from_pretrained(loaded.model, str(source.directory), is_trainable=True)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise MarsError(
            f"The adapter in {source.directory} does not fit {settings.model}: {error}"
        ) from error
    config: Any = model.peft_config["default"]
    has_row = bool(config.trainable_token_indices)
    if settings.train_mask_row != has_row:
        raise MarsError(
            f"The adapter in {source.directory} {'has' if has_row else 'has no'} trained mask row: give "
            f"{'train_mask_row too' if has_row else 'no train_mask_row'}."
        )
    return model.float()


def base_name(model: str) -> str:
    """How an adapter names its base: the Hub id where there is one, else an absolute path."""
    if model == "default" or Path(model).name.startswith(default_model.HUB_ID.split("/")[-1]):
        return default_model.HUB_ID
    return str(Path(model).expanduser().resolve()) if Path(model).expanduser().is_dir() else model


@contextmanager
def _no_advice_on_decoding() -> Iterator[None]:
    """That a model was not MARS-tuned yet is no news to who tunes it."""

    def wanted(record: logging.LogRecord) -> bool:
        return "was not MARS-tuned" not in record.getMessage()

    logger: Any = logging.getLogger("mars_core.models")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
