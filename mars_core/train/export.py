"""What a training run leaves behind: an adapter or an ordinary checkpoint, each with its ``mars.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from .. import published
from ..devices import DTYPES
from ..loaded import LoadedModel
from .losses import ObjectiveSettings

ADAPTER_WEIGHTS = "adapter_model.safetensors"


def finish(into: Path, loaded: LoadedModel, settings: ObjectiveSettings, adapter_dtype: str) -> None:
    """Complete a directory that the trained weights were saved to.

    Args:
        into: holds a PEFT adapter, or a whole model, which gets its tokenizer.
        loaded: the model before training: tokenizer and mask token.
        settings: what it was trained for; nothing says MARS after ordinary fine-tuning.
        adapter_dtype: ``fp32`` or ``bf16``, of an adapter's weights.
    """
    if (into / ADAPTER_WEIGHTS).is_file():
        _cast(into / ADAPTER_WEIGHTS, DTYPES[adapter_dtype])
        (into / "README.md").unlink(missing_ok=True)  # PEFT's form to fill in
    elif loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(into)
    write_mars_file(into, loaded.tokenizer, settings)


def save_merged(model: PeftModel, into: Path, loaded: LoadedModel, settings: ObjectiveSettings) -> None:
    """Fold the adapter into its base and write an ordinary checkpoint, in the precision that the base's own
    files have. `model` is used up.

    The weights are merged in float32; embeddings that were tied stay tied.
    """
    base: Any = model.get_base_model()
    stored = _stored_dtype(Path(base.config._name_or_path))
    merged: Any = model.to(torch.float32).merge_and_unload(safe_merge=True)  # type: ignore[operator]
    merged.to(stored).save_pretrained(into)
    finish(into, loaded, settings, "fp32")


def write_mars_file(
    into: Path, tokenizer: PreTrainedTokenizerBase | None, settings: ObjectiveSettings
) -> None:
    """``mars.json``, as `mars_core.published` reads it; none after ordinary fine-tuning."""
    if not settings.has_noisy_stream:
        return
    mask = settings.mask_token_id
    facts: dict[str, Any] = {
        "format": published.MARS_FORMAT,
        "block_size": settings.block_size,
        "mask_token_id": mask,
    }
    if tokenizer is not None and (text := tokenizer.convert_ids_to_tokens(mask)):
        facts["mask_token"] = text
    (into / published.MARS_FILE).write_text(json.dumps(facts, ensure_ascii=False) + "\n", "utf-8")


def _cast(weights: Path, dtype: torch.dtype) -> None:
    tensors = load_file(weights)
    if any(tensor.dtype != dtype for tensor in tensors.values()):
        cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        save_file(cast, weights, metadata={"format": "pt"})


def _stored_dtype(directory: Path) -> torch.dtype:
    """The precision that a model directory's config names; float32 if it names none."""
    if not (directory / "config.json").is_file():
        return torch.float32
    config = published.read_json(directory / "config.json")
    name = config.get("dtype") or config.get("torch_dtype")
    return DTYPES.get(str(name), torch.float32)
