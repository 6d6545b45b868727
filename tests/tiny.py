"""Models so small that a test takes milliseconds, and whose greedy text still varies."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mars_core.loaded import LoadedModel

END_OF_TEXT, IM_START, IM_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END, MASK)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
KINDS: dict[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}


def tiny_tokenizer(with_mask: bool = True) -> PreTrainedTokenizerFast:
    """One token a byte, then the special tokens: ids 0..255 and 256..259, with a ChatML template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    specials = SPECIAL_TOKENS if with_mask else SPECIAL_TOKENS[:-1]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokens = {"eos_token": IM_END, "bos_token": IM_START, "pad_token": END_OF_TEXT, "unk_token": END_OF_TEXT}
    if with_mask:
        tokens["mask_token"] = MASK
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, chat_template=CHATML, **tokens
    )
    return tokenizer


def tiny_model(
    vocab: int = 272,
    layers: int = 2,
    hidden: int = 32,
    tied: bool = True,
    seed: int = 0,
    kind: str = "llama",
    **config: Any,
) -> PreTrainedModel:
    """A random causal LM in fp32 and eval mode; the same seed gives the same weights.

    The default vocabulary leaves spare rows past `tiny_tokenizer`'s 260 tokens, as Qwen's does. The
    last norm is made to flip signs: a tied random model would otherwise only repeat its input.
    Probabilities of the likeliest token lie about between 0.04 and 0.5.
    """
    config_class, model_class = KINDS[kind]
    settings: dict[str, Any] = dict(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=257,
        eos_token_id=258,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config_class(**(settings | config)))
        model.get_decoder().norm.weight.data.copy_(torch.randn(hidden))
    model.generation_config.eos_token_id = [258, 256]
    return model.eval()


def tiny_loaded(
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    block_size: int = 4,
    mars_tuned: bool = True,
    **model_settings: Any,
) -> LoadedModel:
    """A `LoadedModel` of `tiny_model` and `tiny_tokenizer`, fp32 on the CPU, made without loading anything.

    The mask token is 259, 256 and 258 stop; mask and spare rows are suppressed. Keywords that are
    not named here go to `tiny_model`.
    """
    model = model or tiny_model(**model_settings)
    rows = model.config.vocab_size
    return LoadedModel(
        model=model,
        tokenizer=tokenizer or tiny_tokenizer(),
        mask_token_id=259,
        block_size=block_size,
        device=torch.device("cpu"),
        dtype=torch.float32,
        stop_token_ids=frozenset({256, 258}),
        suppressed_token_ids=tuple(range(259, rows)),
        context_length=model.config.max_position_embeddings,
        mars_tuned=mars_tuned,
        name="tiny",
        origins={part: "made in the test" for part in ORIGIN_PARTS},
    )


ORIGIN_PARTS = (
    "weights", "tokenizer", "adapter", "mask_token_id", "block_size", "device", "dtype", "attention",
    "weights_layout",
)  # fmt: skip
