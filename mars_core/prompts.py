"""Messages to prompt ids: the chat template's control tokens are its own, never the user's.

A chat template makes a string, so a literal ``<|im_end|>`` typed by a user would become a real control
token: a forged turn. Here only the template's scaffolding can yield special tokens; the same text in a
message is encoded as ordinary characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from .errors import MarsError

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": …}
ROLES = ("system", "user", "assistant")
# Unicode categories of characters that leave nothing to read by themselves: controls, and formatting such
# as zero-width spaces, joiners and byte-order marks
_INVISIBLE = ("Cc", "Cf")
_CUT = "\ud800"  # a lone surrogate, which no message holds
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt that fits the context, and how many of the oldest messages were left out for it."""

    ids: list[int]
    num_dropped: int


def is_blank(text: str | None) -> bool:
    """True where there is nothing to read: empty, white space, zero-width characters."""
    return all(char.isspace() or unicodedata.category(char) in _INVISIBLE for char in text or "")


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what no chat template could make sense of. Raises `MarsError`."""
    if not messages:
        raise MarsError("messages is empty: give at least one message of the user.")
    for message in messages:
        if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise MarsError(f"A message needs a role ({', '.join(ROLES)}) and a content that is text.")
        if _LONE_SURROGATE.search(message["content"]):
            raise MarsError("The message holds half a character (a lone surrogate): type that part again.")
    if is_blank(messages[-1]["content"]):
        raise MarsError("The message is empty: type something first.")


def chat_prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Ids of the conversation, ready for the assistant's answer.

    Equal to the tokenizer's own ``apply_chat_template`` wherever no message contains the text of a
    special token. Without a chat template the messages are joined by blank lines.

    Raises:
        MarsError: no messages, an unknown role, an empty last message, or a conversation that the
            template refuses (some know no system prompt).
    """
    check_messages(messages)
    markers = special_texts(tokenizer)
    if not tokenizer.chat_template:
        text = "\n\n".join(message["content"] for message in messages)
        return list(tokenizer(text, split_special_tokens=True)["input_ids"])
    if not any(marker in message["content"] for message in messages for marker in markers):
        return list(_render(tokenizer, messages, tokenize=True))
    return _guarded_ids(tokenizer, messages, markers)


def fit_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], room: int) -> FittedPrompt:
    """The prompt with as many of the latest messages as fit into `room` tokens.

    The system message and the last message always stay; the oldest turns go first, a question together
    with its answer.

    Raises:
        MarsError: system message and last message alone are too long; says by how much.
    """
    check_messages(messages)
    system = [message for message in messages[:1] if message["role"] == "system"]
    turns = list(messages[len(system) :])
    while True:
        ids = chat_prompt_ids(tokenizer, [*system, *turns])
        if len(ids) <= room:
            return FittedPrompt(ids, len(messages) - len(system) - len(turns))
        if len(turns) <= 1:
            raise MarsError(
                f"The message is too long: with its system prompt it takes {len(ids)} tokens, and there is "
                f"room for {max(room, 0)} beside the answer. Shorten it, or ask for fewer new tokens."
            )
        del turns[0]
        # an answer without its question would be no conversation
        while len(turns) > 1 and turns[0]["role"] == "assistant":
            del turns[0]


def special_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Texts that the tokenizer turns into one added token wherever they stand, longest first."""
    return sorted({str(token) for token in tokenizer.added_tokens_decoder.values()}, key=len, reverse=True)


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tokenize: bool) -> Any:
    try:
        return tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=tokenize, return_dict=False
        )
    except TemplateError as error:
        raise MarsError(f"The model's chat template refuses this conversation: {error}.") from error


def _guarded_ids(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], markers: Sequence[str]
) -> list[int]:
    """Render with stand-ins for the contents, cut at the scaffolding's special tokens, put the contents
    back, and encode each run between two special tokens as plain characters."""
    stand_ins = [f"\ue000{index}\ue001" for index in range(len(messages))]
    rendered = _render(
        tokenizer,
        [{**message, "content": mark} for message, mark in zip(messages, stand_ins, strict=True)],
        tokenize=False,
    )
    contents = {mark: message["content"] for mark, message in zip(stand_ins, messages, strict=True)}
    fill = re.compile("\ue000\\d+\ue001")
    ids: list[int] = []
    for piece in re.split(f"({'|'.join(map(re.escape, markers))})", rendered):
        if piece in markers:
            ids.append(tokenizer.convert_tokens_to_ids(piece))  # type: ignore[arg-type]
        elif piece:
            ids += plain_ids(tokenizer, fill.sub(lambda match: contents[match.group()], piece))
    return ids


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode text without any added token.

    Tokenizers can be told to split special tokens, but not added ones that are not called special (Qwen's
    ``</think>`` or ``<tool_call>``, control tokens all the same): those are cut behind their first character.
    """
    for token in tokenizer.added_tokens_decoder.values():
        content = str(token)
        if not token.special and len(content) > 1:
            text = text.replace(content, f"{content[0]}{_CUT}{content[1:]}")
    ids: list[int] = []
    for piece in text.split(_CUT):
        ids += tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids
