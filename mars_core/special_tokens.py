"""The tokens of a model that decoding treats apart: the mask, those that stop, those never committed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mars_core import published
from mars_core.errors import MarsError
from mars_core.published import MarsFacts

MASK_TOKEN = "<|mask|>"
_END_OF_TEXT = re.compile(r"^(<\|?(end_?of_?text|endoftext|end▁of▁sentence|eos)\|?>|</s>)$", re.IGNORECASE)


@dataclass(frozen=True)
class Tokens:
    """The tokens that decoding treats apart, and where the mask token came from."""

    mask: int
    mask_origin: str
    stop: frozenset[int]
    suppressed: tuple[int, ...]
    notices: tuple[str, ...] = ()


def choose_tokens(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, facts: MarsFacts, asked: int | None
) -> Tokens:
    rows = _embedding_rows(model)
    stop = stop_tokens(tokenizer, model)
    mask, origin, notices = _choose_mask(tokenizer, facts, asked, rows, stop)
    if not 0 <= mask < rows:
        raise MarsError(
            f"mask_token_id is {mask} ({origin}); the model's embedding table has rows 0 to {rows - 1}."
        )
    if mask in stop:
        raise MarsError(
            f"mask_token_id is {mask} ({origin}), which ends a generation in this model. Give another one."
        )
    return Tokens(mask, f"{mask}: {origin}", stop, suppressed_tokens(tokenizer, mask, stop, rows), notices)


def _embedding_rows(model: PreTrainedModel) -> int:
    embedding: Any = model.get_input_embeddings()
    return embedding.weight.shape[0]


def _choose_mask(
    tokenizer: PreTrainedTokenizerBase, facts: MarsFacts, asked: int | None, rows: int, stop: frozenset[int]
) -> tuple[int, str, tuple[str, ...]]:
    """The mask token, where it came from, and notices. Adds one to the tokenizer where the table has room."""
    if asked is not None:
        return asked, "as given", ()
    if facts.mask_token_id is not None or facts.mask_token is not None:
        return *published.mask_of_file(tokenizer, facts), ()
    vocabulary = tokenizer.get_vocab()
    for token in (tokenizer.mask_token, MASK_TOKEN):
        if token in vocabulary:
            return vocabulary[token], f"{token} of the tokenizer", ()
    if max(vocabulary.values()) + 1 < rows and len(tokenizer) < rows:
        tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})
        return tokenizer.get_vocab()[MASK_TOKEN], f"{MASK_TOKEN}, added at a spare row of the table", ()
    if unused := _unused_specials(tokenizer, stop):
        text = tokenizer.convert_ids_to_tokens(unused[-1])
        notice = f"This model has no mask token and no spare row; its unused token {text} stands in."
        return unused[-1], f"{text}, a special token that a chat never uses", (notice,)
    raise MarsError(
        "This model has no mask token, no spare row in its embedding table and no unused special token. Give "
        "mask_token_id: the id of a token that its answers never need."
    )


def stop_tokens(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    """Ids that end a generation: end of turn, and end of text where it serves as padding."""
    listed: Any = getattr(model.generation_config, "eos_token_id", None)
    ids = set(listed if isinstance(listed, list) else [listed])
    ids.add(tokenizer.eos_token_id)
    if tokenizer.pad_token and _END_OF_TEXT.match(str(tokenizer.pad_token)):
        ids.add(tokenizer.pad_token_id)
    return frozenset(int(i) for i in ids if i is not None)


def suppressed_tokens(
    tokenizer: PreTrainedTokenizerBase, mask: int, stop: frozenset[int], rows: int
) -> tuple[int, ...]:
    """Ids that must never be committed, ascending: the mask token, rows that no token of the vocabulary
    has, and special tokens that neither stop a generation nor stand in the chat template."""
    nameless = set(range(rows)) - set(tokenizer.get_vocab().values())
    unused = _unused_specials(tokenizer, stop)
    return tuple(sorted(i for i in ({mask} | nameless | set(unused)) - stop if i < rows))


def _unused_specials(tokenizer: PreTrainedTokenizerBase, stop: frozenset[int]) -> list[int]:
    """Special tokens that no chat produces; none without a template, which would tell what chats use."""
    template = _template_text(tokenizer)
    if not template:
        return []
    added = tokenizer.added_tokens_decoder.items()
    return sorted(i for i, t in added if t.special and i not in stop and t.content not in template)


def _template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""
