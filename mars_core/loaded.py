"""What `load_model` returns: a model with everything decoding must know about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedModel:
    """A causal LM ready to decode, and where each of its parts came from.

    Attributes:
        model: in eval mode, on `device`, in `dtype`; adapters are merged.
        tokenizer: the model's own.
        mask_token_id: the token that stands for "not known yet".
        block_size: B, the most tokens one forward may commit by default.
        stop_token_ids: tokens that end a generation (end of turn, end of text).
        suppressed_token_ids: tokens that are never committed (the mask token, rows past the
            tokenizer's vocabulary, special tokens that a chat never produces). Their logits are
            set to -inf before any softmax. Disjoint from `stop_token_ids`.
        context_length: prompt and answer together may take this many positions.
        mars_tuned: False for an ordinary model that was never trained to predict behind masks.
        name: short name for people, such as ``SmolLM2-135M-Instruct + MARS adapter``.
        origins: for each of ``weights, tokenizer, adapter, mask_token_id, block_size, device,
            dtype, attention, weights_layout``, one phrase that says what it is and where it came from.
        notices: what a person should know (fallbacks taken, model not MARS-tuned), each one a
            sentence. Shown on the page and logged.
        last_mask: the checkpoint's last mask was trained to predict too, so that B masks are fed, not B − 1.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    mask_token_id: int
    block_size: int
    device: torch.device
    dtype: torch.dtype
    stop_token_ids: frozenset[int]
    suppressed_token_ids: tuple[int, ...]
    context_length: int
    mars_tuned: bool
    name: str
    origins: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    last_mask: bool = False

    @property
    def num_embeddings(self) -> int:
        """Rows of the embedding table: ids from here on cannot be fed."""
        embedding: Any = self.model.get_input_embeddings()
        return embedding.weight.shape[0]
