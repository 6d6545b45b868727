"""Tokens to text as they come, never half a character.

Invariant, for every way of cutting the tokens into chunks: the pieces of `TextStream.push`, and of
`TextStream.finish` at the end, joined, equal ``tokenizer.decode(all ids, skip_special_tokens=True)``.
A decoder that rewrites text it has already given (WordPiece's clean-up of " n't") cannot be streamed
exactly; there the spacing may differ, and still nothing is lost.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Sequence
from typing import Protocol

from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerBase


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """All the text at once: the truth that streaming must add up to."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


# How vocabularies with byte fallback (Llama 2, Mistral, Gemma) spell a token that is one byte
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class TextStream(Protocol):
    """Text of one growing list of tokens."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" where it ends inside a character."""

    def finish(self) -> str:
        """What is left when no more tokens come (bytes that never became a character show as U+FFFD)."""


class Vocabulary:
    """What single tokens look like, and streams over many; made once for a tokenizer.

    Without a tokenizer (ids in, ids out) every text is empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.tokenizer = tokenizer
        self.special_ids: frozenset[int] = frozenset(_special_ids(tokenizer))
        self.is_byte_level = isinstance(_decoder(tokenizer), ByteLevel)
        self.label = functools.lru_cache(maxsize=65536)(self._label)

    def stream(self) -> TextStream:
        """A new, empty stream."""
        if self.tokenizer is None:
            return _NoText()
        return _ByteStream(self) if self.is_byte_level else _WindowStream(self)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a byte-level token stands for; b"" for special tokens and ids past the vocabulary."""
        if self.tokenizer is None or token_id in self.special_ids:
            return b""
        token = self.tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):
            return b""
        try:
            return bytes(_BYTE_OF[character] for character in token)
        except KeyError:  # an added token: it stands for its own text
            return token.encode()

    def fallback_byte(self, token_id: int) -> bytes | None:
        """The byte of a byte-fallback token; None for any other."""
        if self.tokenizer is None or self.is_byte_level:
            return None
        token = self.tokenizer.convert_ids_to_tokens(token_id)
        match = _BYTE_TOKEN.fullmatch(token) if isinstance(token, str) else None
        return bytes.fromhex(match[1]) if match else None

    def _label(self, token_id: int) -> str:
        """One token by itself, printable: bytes that are no character as ``⟨F0 9F⟩``."""
        if self.tokenizer is None:
            return ""
        fallback = self.fallback_byte(token_id)
        if fallback is not None:
            return _readable(fallback)
        if token_id in self.special_ids or not self.is_byte_level:
            return self.tokenizer.decode([token_id], skip_special_tokens=False)  # type: ignore[return-value]
        raw = self.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return _readable(raw)


def _readable(raw: bytes) -> str:
    """Bytes with what decodes as text and the rest in hexadecimal.

    Example: b" \\xf0\\x9f" -> " ⟨F0 9F⟩".
    """
    parts, unknown = [], bytearray()
    for character in raw.decode("utf-8", "surrogateescape"):
        if "\udc80" <= character <= "\udcff":
            unknown.append(ord(character) - 0xDC00)
            continue
        parts += [_hexadecimal(unknown), character]
        unknown.clear()
    return "".join([*parts, _hexadecimal(unknown)])


def _hexadecimal(raw: bytearray) -> str:
    return f"⟨{raw.hex(' ').upper()}⟩" if raw else ""


class _ByteStream:
    """For byte-level tokenizers: tokens are bytes, and Python's incremental decoder does the rest.

    Both it and the tokenizers' own decoder put one U+FFFD for each maximal invalid piece (Unicode 15,
    §3.9), so the texts agree on broken input too.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self.decoder.decode(self.vocabulary.token_bytes(token_id))

    def finish(self) -> str:
        return self.decoder.decode(b"", final=True)


class _WindowStream:
    """For any other tokenizer: decode the last few tokens with and without the new one, and take the
    difference.

    The window always holds a token with text before the new one: decoders treat the first text of all
    differently (its leading space goes). A run of byte-fallback tokens is decoded as one, so that a bad
    byte turns the good characters before it bad too: nothing of it is final before it ends.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        assert vocabulary.tokenizer is not None
        self.vocabulary = vocabulary
        self.tokenizer = vocabulary.tokenizer
        self.ids: list[int] = []
        self.window = 0  # decoding starts at this token …
        self.given = 0  # … and the text of tokens up to this one was given out
        self.in_bytes = False  # the last token that adds text is a byte

    def push(self, token_id: int) -> str:
        self.ids.append(token_id)
        if token_id in self.vocabulary.special_ids:
            return ""  # no text of its own, and it does not end a run of bytes
        self.in_bytes = self.vocabulary.fallback_byte(token_id) is not None
        return "" if self.in_bytes else self._give(final=False)

    def finish(self) -> str:
        return self._give(final=True)

    def _give(self, final: bool) -> str:
        before = decode(self.tokenizer, self.ids[self.window : self.given])
        after = decode(self.tokenizer, self.ids[self.window :])
        if after.endswith("\ufffd") and not final:
            return ""
        if after.startswith(before):
            piece = after[len(before) :]
        else:  # the decoder rewrote what was given: the new tokens by themselves, rather than nothing
            piece = decode(self.tokenizer, self.ids[self.given :])
        if piece:
            self.window = self.given
        self.given = len(self.ids)
        return piece


class _NoText:
    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


class StopStrings:
    """Finds stop strings in text that comes in pieces; holds back what might be the start of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self.held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that is certain not to belong to a stop string. Sets `found` when one is complete."""
        if not self.strings:
            return piece
        self.held += piece
        # The one complete first; of those complete together the one that began first. So the text does not
        # depend on how it was cut into pieces.
        found = [(self.held.find(text) + len(text), self.held.find(text)) for text in self.strings]
        places = [(end, place) for end, place in found if place >= 0]
        if places:
            self.found = True
            return self._release(min(places)[1], drop_rest=True)
        return self._release(len(self.held) - self._overlap())

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        return self._release(len(self.held))

    def _overlap(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(map(len, self.strings)) - 1
        for length in range(min(longest, len(self.held)), 0, -1):
            if any(text.startswith(self.held[-length:]) for text in self.strings):
                return length
        return 0

    def _release(self, length: int, drop_rest: bool = False) -> str:
        released, self.held = self.held[:length], "" if drop_rest else self.held[length:]
        return released


def _decoder(tokenizer: PreTrainedTokenizerBase | None) -> object:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return getattr(backend, "decoder", None)


def _special_ids(tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """What ``decode(…, skip_special_tokens=True)`` skips."""
    if tokenizer is None:
        return []
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return [*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)]


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table):
    bytes that print stand for themselves, the others for U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
