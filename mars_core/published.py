"""A model's files: where they are, and what they say of MARS.

Covers the published MARS checkpoints (model type ``a2d-qwen2``, ``a2d-qwen3``), which are plain Qwen
models under another name. Code that a model brings is never run.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import errors, snapshot_download
from transformers import (
    AutoConfig,
    DynamicCache,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)

from mars_core.errors import MarsError

logger = logging.getLogger(__name__)

PLAIN_CONFIGS: dict[str, type[PretrainedConfig]] = {"a2d-qwen2": Qwen2Config, "a2d-qwen3": Qwen3Config}
MARS_FILE = "mars.json"
MARS_FORMAT = 1
MAX_BLOCK_SIZE = 64
DEFAULT_BLOCK_SIZE = 4

_UNKNOWN_CONTEXT = 2048
_ADAPTER_CONFIG = "adapter_config.json"
_ATTENTION_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
_WANTED_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_UNWANTED_FILES = ["*/*"]


@dataclass(frozen=True)
class Source:
    """Files of a model or of an adapter, what people call it, and where it came from."""

    directory: Path
    name: str
    origin: str

    @property
    def is_adapter(self) -> bool:
        """True for a PEFT adapter, which needs a base model."""
        return (self.directory / _ADAPTER_CONFIG).is_file()


@dataclass(frozen=True)
class MarsFacts:
    """What a model's files and name say of MARS; None where they say nothing."""

    mars_tuned: bool = False
    block_size: int | None = None
    block_size_origin: str = ""
    mask_token_id: int | None = None
    mask_token: str | None = None
    last_mask: bool = False

    def over(self, base: MarsFacts) -> MarsFacts:
        """These facts (an adapter's) where they say something, else `base`'s."""
        return self if self.mars_tuned else base


def find(name_or_path: str) -> Source:
    """The files of a local directory or of a Hub repository, which is downloaded if need be.

    Raises:
        MarsError: if it does not exist, is not a directory, or cannot be downloaded.
    """
    if not name_or_path.strip():
        raise MarsError("The model's name is empty. Give `default`, a directory or a Hub id (owner/name).")
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return Source(path, _people_name(path), f"local directory {path}")
    if path.exists():
        raise MarsError(
            f"{name_or_path} is a file. Give the directory that holds config.json and the weights."
        )
    if _looks_like_a_path(name_or_path):
        raise MarsError(
            f"There is no directory {name_or_path}. Check the path, or give a Hub id (owner/name)."
        )
    return Source(_snapshot(name_or_path), name_or_path.split("/")[-1], f"{name_or_path} from the Hub")


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1


def _people_name(directory: Path) -> str:
    """The directory's name, or the repository's for a directory inside the Hub's cache."""
    for part in directory.resolve().parts:
        if part.startswith("models--"):
            return part.split("--")[-1]
    return directory.resolve().name


def _snapshot(repo_id: str) -> Path:
    """What is cached whole is used without asking the network."""
    try:
        cached = Path(_download(repo_id, local_files_only=True))
        check_whole(cached)
        return cached
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, MarsError):
        pass
    try:
        directory = Path(_download(repo_id, local_files_only=False))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        raise MarsError(_why_hub_failed(repo_id, error)) from error
    except (httpx.HTTPError, OSError) as error:
        raise MarsError(f"{repo_id} could not be downloaded from the Hub: {error}. Try again.") from error
    return directory


def _download(repo_id: str, local_files_only: bool) -> str:
    return snapshot_download(
        repo_id,
        allow_patterns=_WANTED_FILES,
        ignore_patterns=_UNWANTED_FILES,
        local_files_only=local_files_only,
    )


def _why_hub_failed(repo_id: str, error: Exception) -> str:
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{repo_id} is gated: its owner asks you to accept terms first. Open its page on the Hub, accept "
            "them, run `hf auth login`, and start again."
        )
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return (
            f"{repo_id} is neither a local directory nor a model on the Hub that you may read. Check the "
            "spelling (owner/name); for a private one run `hf auth login`."
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{repo_id} is not on this machine, or not whole, and the Hub cannot be reached. Connect to the "
            "network once (or unset HF_HUB_OFFLINE), or give a local directory."
        )
    return f"The Hub refused {repo_id}: {error}. Try again later, or give a local directory."


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        MarsError: if it cannot be read or is not an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MarsError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise MarsError(f"{path} must hold a JSON object.")
    return content


def read_config(source: Source) -> PretrainedConfig:
    """The model's config, a plain Qwen one for the published MARS types.

    Raises:
        MarsError: if this is not a model that MARS can decode; says why.
    """
    raw = read_json(_config_path(source.directory))
    _refuse_block_diffusion(source.name, raw)
    config = _build_config(source, raw)
    _refuse_undecodable(source.name, config, raw)
    return config


def _config_path(directory: Path) -> Path:
    path = directory / "config.json"
    if not path.is_file():
        raise MarsError(
            f"{directory} is not a model directory: it has neither config.json nor {_ADAPTER_CONFIG}."
        )
    return path


def _build_config(source: Source, raw: dict[str, Any]) -> PretrainedConfig:
    model_type = str(raw.get("model_type", ""))
    build: Callable[[], PretrainedConfig]
    if plain := PLAIN_CONFIGS.get(model_type):
        kept = {k: v for k, v in raw.items() if k not in ("model_type", "architectures", "auto_map")}

        def build() -> PretrainedConfig:
            return plain.from_dict(kept)
    else:

        def build() -> PretrainedConfig:
            return AutoConfig.from_pretrained(
                source.directory, trust_remote_code=False, local_files_only=True
            )

    try:
        return build()
    except Exception as error:
        # transformers raises a dozen types here, some of its own making.
        code = "It brings its own code, which MARS never runs. " if "auto_map" in raw else ""
        raise MarsError(
            f"{source.name} has model type {model_type!r}, which cannot be loaded. {code}MARS takes causal "
            f"language models that transformers knows, {' and '.join(PLAIN_CONFIGS)}. ({error})"
        ) from error


def _refuse_block_diffusion(name: str, raw: dict[str, Any]) -> None:
    if "bd3lm" in name.lower() or "bd3lm" in json.dumps(raw).lower():
        raise MarsError(
            f"{name} is a block diffusion model (BD3LM): inside a block its tokens see each other in both "
            "directions, so it cannot be decoded left to right. Take one of the MARS checkpoints (blk4, "
            "blk8, blk16)."
        )


def _refuse_undecodable(name: str, config: PretrainedConfig, raw: dict[str, Any]) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise MarsError(f"{name} is an encoder-decoder model. MARS decodes causal (decoder-only) models.")
    text_config = config.get_text_config()
    heads = raw.get("architectures") or []
    if getattr(text_config, "is_decoder", None) is False and not any("CausalLM" in head for head in heads):
        raise MarsError(f"{name} ({config.model_type}) reads in both directions. MARS decodes causal models.")
    layers = {type(layer).__name__ for layer in DynamicCache(config=text_config).layers}
    if others := layers - _ATTENTION_LAYERS:
        raise MarsError(
            f"{name} ({config.model_type}) keeps a running state ({', '.join(sorted(others))}), from which "
            "tokens tried in advance cannot be taken back. MARS needs attention in every layer."
        )


def check_whole(directory: Path) -> None:
    """Check that every weight file of a model or adapter is there.

    Raises:
        MarsError: naming what is missing.
    """
    if (directory / _ADAPTER_CONFIG).is_file():
        needed = {"adapter_model.safetensors"}
    elif (index := directory / "model.safetensors.index.json").is_file():
        weight_map = read_json(index).get("weight_map")
        needed = set(weight_map.values()) if isinstance(weight_map, dict) else {"model.safetensors"}
    else:
        _config_path(directory)
        needed = {"model.safetensors"}
    if missing := sorted(file for file in needed if not (directory / file).is_file()):
        raise MarsError(
            f"{directory} lacks {', '.join(missing)}. Weights must be safetensors files; if a download or a "
            "copy was cut short, do it again."
        )


def read_facts(source: Source) -> MarsFacts:
    """What ``mars.json``, the config and the name say of MARS.

    Raises:
        MarsError: if ``mars.json`` is not in a form that this program knows.
    """
    if (source.directory / MARS_FILE).is_file():
        return _facts_of_file(source.directory / MARS_FILE)
    block = re.search(r"blk(\d+)", source.name, re.IGNORECASE)
    size = int(block[1]) if block else None
    origin = f"{size}: from the name {source.name}" if block else ""
    return MarsFacts(_is_published(source, block is not None), size, origin)


def _is_published(source: Source, has_block: bool) -> bool:
    """The AR-SFT controls have the same model type as the MARS checkpoints, but never saw a mask."""
    name = source.name.lower()
    config = source.directory / "config.json"
    if "ar-sft" in name or not config.is_file():
        return False
    return read_json(config).get("model_type") in PLAIN_CONFIGS or ("mars" in name and has_block)


def _facts_of_file(path: Path) -> MarsFacts:
    raw = read_json(path)
    if raw.get("format") != MARS_FORMAT:
        raise MarsError(f"{path} has format {raw.get('format')!r}; this program knows format {MARS_FORMAT}.")
    size, mask_id, mask = (raw.get(key) for key in ("block_size", "mask_token_id", "mask_token"))
    for key, value in (("block_size", size), ("mask_token_id", mask_id)):
        if value is not None and type(value) is not int:
            raise MarsError(f"{path}: {key} is {value!r}; it must be a whole number.")
    last_mask = raw.get("last_mask", False)
    if not isinstance(last_mask, bool):
        raise MarsError(f"{path}: last_mask is {last_mask!r}; it must be true or false.")
    if mask is not None and not isinstance(mask, str):
        raise MarsError(f"{path}: mask_token is {mask!r}; it must be the token's text.")
    origin = f"{size}: from {MARS_FILE}" if size is not None else ""
    return MarsFacts(True, size, origin, mask_id, mask, last_mask)


def check_block_size(block_size: int, origin: str) -> int:
    """`block_size` if it is a whole number from 1 to 64.

    Raises:
        MarsError: otherwise; `origin` says in it where the number came from.
    """
    if type(block_size) is not int or not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise MarsError(
            f"block_size is {block_size!r} ({origin}); it must be a whole number from 1 to {MAX_BLOCK_SIZE}."
        )
    return block_size


def choose_block_size(asked: int | None, facts: MarsFacts) -> tuple[int, str, tuple[str, ...]]:
    """The block size, where it came from, and notices: as asked, else what the files say, else 4.

    Raises:
        MarsError: if it is not from 1 to 64.
    """
    if asked is not None:
        return check_block_size(asked, "as given"), f"{asked}: as given", ()
    if facts.block_size is not None:
        size = check_block_size(facts.block_size, facts.block_size_origin)
        return size, facts.block_size_origin, ()
    origin = f"{DEFAULT_BLOCK_SIZE}: the default, the model's files name none"
    notice = f"Nothing says which block size this model was tuned for; {DEFAULT_BLOCK_SIZE} is used."
    return DEFAULT_BLOCK_SIZE, origin, (notice,) if facts.mars_tuned else ()


def context_length(config: PretrainedConfig) -> tuple[int, tuple[str, ...]]:
    """How many positions the model was made for, and a notice if its config does not say."""
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(length, int) and length > 0:
        return length, ()
    notice = f"The model does not say how long its context is; {_UNKNOWN_CONTEXT} tokens are assumed."
    return _UNKNOWN_CONTEXT, (notice,)


def mask_of_file(tokenizer: PreTrainedTokenizerBase, facts: MarsFacts) -> tuple[int, str]:
    """The mask token that ``mars.json`` names, and where it came from.

    Raises:
        MarsError: if text and id in it do not fit this tokenizer.
    """
    by_name = tokenizer.get_vocab().get(facts.mask_token) if facts.mask_token else facts.mask_token_id
    mask = by_name if facts.mask_token_id is None else facts.mask_token_id
    if mask is None or (by_name is not None and by_name != mask):
        raise MarsError(
            f"{MARS_FILE} says that the mask token is {facts.mask_token!r}, id {facts.mask_token_id}; in "
            f"this tokenizer that text has id {by_name}. Adapter and base do not belong together."
        )
    text = f" ({facts.mask_token})" if facts.mask_token else ""
    return mask, f"from {MARS_FILE}{text}"
