"""A conversation -> token ids, and which of them are learned: the answers, each with its end of turn.

Where answers begin and end comes from the chat template: from its own ``{% generation %}`` markers where it
has them, else from what rendering one message more adds. The answer's text is encoded apart from what stands
before it, as it is when the model writes it behind an encoded prompt. (Tokenizers that put a space before
any text would put one before each part.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from ..errors import MarsError
from ..prompts import Message, chat_prompt_ids, plain_ids, special_texts
from .reading import Conversation

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_FILL = re.compile("\ue000(\\d+)\ue001")
Span = tuple[int, int]  # characters of a rendered text, end exclusive


@dataclass(frozen=True)
class Encoded:
    """A conversation's tokens, up to the end of its last answer.

    Attributes:
        ids: [L] token ids.
        mask: [L] True for tokens to learn: answers and the end-of-turn token behind each.
        ends: where each learned answer ends, as a length of `ids`, ascending; the last is L.
        num_unlearned: answers that the template writes otherwise once the conversation goes on (it may drop
            earlier thoughts), so that they are context only.
    """

    ids: list[int]
    mask: list[bool]
    ends: list[int]
    num_unlearned: int = 0


def encode(
    tokenizer: PreTrainedTokenizerBase, conversation: Conversation, stop_ids: frozenset[int]
) -> Encoded:
    """Encode a conversation and mark its answers.

    Text of special tokens inside a message becomes ordinary characters, as in `mars_core.prompts`.

    Args:
        tokenizer: the model's own; without a chat template the messages are joined by blank lines.
        conversation: ends with an answer; with no end of turn behind it if it is not `finished`.
        stop_ids: tokens that end a turn.

    Raises:
        MarsError: the template refuses the conversation, or changes its last answer beyond recognition.
    """
    scaffold = _scaffold(tokenizer, conversation)
    text = scaffold.text(len(conversation.messages), False)
    spans, num_unlearned = scaffold.answer_spans(text)
    if not spans:
        raise MarsError("the chat template's generation markers mark no answer.")
    stops = [str(tokenizer.convert_ids_to_tokens(i)) for i in sorted(stop_ids)]
    spans = [_to_end_of_turn(text, span, stops) for span in spans]
    if not conversation.finished:
        spans[-1] = scaffold.without_end(text, spans[-1], stops)
    ids: list[int] = []
    mask: list[bool] = []
    ends: list[int] = []
    done = 0
    for start, end in spans:
        for piece, learned in ((text[done:start], False), (text[start:end], True)):
            new = scaffold.ids(piece, first=not ids)
            ids += new
            mask += [learned] * len(new)
        ends.append(len(ids))
        done = end
    if conversation.finished and ids[-1] not in stop_ids and tokenizer.eos_token_id is not None:
        # a template that closes no turn: without this the model would never learn to stop
        ids.append(tokenizer.eos_token_id)
        mask.append(True)
        ends[-1] += 1
    return Encoded(ids, mask, ends, num_unlearned)


def _scaffold(tokenizer: PreTrainedTokenizerBase, conversation: Conversation) -> _Joined | _Template:
    kind = _Template if tokenizer.chat_template else _Joined
    return kind(tokenizer, conversation.messages)


def _to_end_of_turn(text: str, span: Span, stops: Sequence[str]) -> Span:
    """End the span with its end-of-turn token: the last inside, or the one right behind it."""
    start, end = span
    inside = max(
        (text.rfind(stop, start, end) + len(stop) for stop in stops if stop in text[start:end]), default=0
    )
    behind = max((len(stop) for stop in stops if text.startswith(stop, end)), default=0)
    return start, inside or end + behind


class _Joined:
    """Without a chat template: messages joined by blank lines, as `chat_prompt_ids` does."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> None:
        self.tokenizer = tokenizer
        self.messages = messages

    def text(self, num_messages: int, for_answer: bool) -> str:
        """The first messages as text."""
        return "\n\n".join(message["content"] for message in self.messages[:num_messages])

    def answer_spans(self, text: str) -> tuple[list[Span], int]:
        """Where the answers stand in `text`, and how many cannot be learned."""
        return _spans_by_difference(self, text)

    def without_end(self, text: str, span: Span, stops: Sequence[str]) -> Span:
        """The span of an answer that was cut off."""
        return span

    def ids(self, piece: str, first: bool) -> list[int]:
        """Token ids of a piece of the text; the first piece is a whole prompt."""
        if first:
            return chat_prompt_ids(self.tokenizer, [{"role": "user", "content": piece}])
        return plain_ids(self.tokenizer, piece)


class _Template:
    """The chat template around the messages, or around stand-ins if one holds a special token's text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> None:
        self.tokenizer = tokenizer
        self.contents = [message["content"] for message in messages]
        self.markers = special_texts(tokenizer)
        self.guarded = any(marker in content for content in self.contents for marker in self.markers)
        shown = [f"\ue000{i}\ue001" for i in range(len(messages))] if self.guarded else self.contents
        self.messages: Sequence[Message] = [
            {**message, "content": content} for message, content in zip(messages, shown, strict=True)
        ]

    def text(self, num_messages: int, for_answer: bool) -> str:
        """The first messages rendered; with the header of an answer behind them if it is `for_answer`."""
        try:
            rendered: Any = self.tokenizer.apply_chat_template(
                list(self.messages[:num_messages]), add_generation_prompt=for_answer, tokenize=False
            )
        except TemplateError as error:
            raise MarsError(f"the model's chat template refuses this conversation: {error}.") from error
        return rendered

    def answer_spans(self, text: str) -> tuple[list[Span], int]:
        """Where the answers stand in `text`, and how many cannot be learned."""
        template = self.tokenizer.get_chat_template()
        if not _GENERATION.search(template):
            return _spans_by_difference(self, text)
        render: Any = render_jinja_template  # its annotation leaves out half of what it returns
        _, spans = render(
            [list(self.messages)],
            chat_template=template,
            return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )
        return [(start, end) for start, end in spans[0] if start < end], 0

    def without_end(self, text: str, span: Span, stops: Sequence[str]) -> Span:
        """The span of an answer that was cut off: up to its last character, what closes the turn left out."""
        start, end = span
        closing = max(text.rfind(stop, start, end) for stop in stops)
        end = end if closing < 0 else closing
        content = self.messages[-1]["content"].strip()
        # a template may put more in front of the end of turn, such as a space
        found = text.rfind(content, start, end)
        return start, end if found < 0 else found + len(content)

    def ids(self, piece: str, first: bool) -> list[int]:
        """Token ids of a piece of the text; only the template's own special tokens become such."""
        if not self.guarded:
            return list(self.tokenizer(piece, add_special_tokens=False)["input_ids"])
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, self.markers))})", piece):
            if part in self.markers:
                ids.append(self.tokenizer.convert_tokens_to_ids(part))  # type: ignore[arg-type]
            elif part:
                ids += plain_ids(self.tokenizer, _FILL.sub(self._content, part))
        return ids

    def _content(self, stand_in: re.Match[str]) -> str:
        return self.contents[int(stand_in[1])]


def _spans_by_difference(scaffold: _Joined | _Template, text: str) -> tuple[list[Span], int]:
    """An answer is what its message adds to the prompt before it, where both are beginnings of `text`."""
    spans: list[Span] = []
    num_unlearned = 0
    for index, message in enumerate(scaffold.messages):
        if message["role"] != "assistant":
            continue
        before, after = scaffold.text(index, True), scaffold.text(index + 1, False)
        is_last = index + 1 == len(scaffold.messages)
        if text.startswith(before) and len(before) < len(after) and text.startswith(after):
            spans.append((len(before), len(after)))
        elif is_last:
            raise MarsError("the last answer cannot be told from what the chat template puts around it.")
        else:
            num_unlearned += 1
    return spans, num_unlearned
