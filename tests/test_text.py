"""Tokens to text: never half a character, never a character lost, however the tokens come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from transformers import PreTrainedTokenizerFast

from mars_core.text import StopStrings, Vocabulary, decode
from tests.tiny import tiny_tokenizer

FAMILY = "👨‍👩‍👧‍👦"
TEXTS = ["🤗", FAMILY, "你好", "naïve Ωmega", "a\ufffdb", "", " leading and trailing ", "\u2028\x85\r\n"]


def with_added_tokens() -> PreTrainedTokenizerFast:
    """Byte-level with added tokens that are not special, in and out of the byte alphabet."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in ("<tool call>", "<think>", "é", "你")]
    )
    return tokenizer


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2's and Mistral's: words with ▁ for a space, single bytes for all else."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "▁Hello", "▁world", "ing", "a", "é", "▁▁"]
    model = BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return fast(backend)


def metaspace() -> PreTrainedTokenizerFast:
    words = ["<unk>", "<s>", "</s>", "▁Hello", "▁world", "▁", "ing", "好", "."]
    backend = Tokenizer(BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return fast(backend)


def word_piece(cleanup: bool = False) -> PreTrainedTokenizerFast:
    words = ["<unk>", "<s>", "</s>", "hello", "##ing", "world", ".", "好", "do", "n", "'", "t"]
    backend = Tokenizer(WordPiece({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.decoder = decoders.WordPiece(cleanup=cleanup)
    return fast(backend)


def fast(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


TOKENIZERS = {
    "byte level": tiny_tokenizer(),
    "byte level with added tokens": with_added_tokens(),
    "byte fallback": byte_fallback(),
    "metaspace": metaspace(),
    "word piece": word_piece(),
}
VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def pieces(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    stream = vocabulary.stream()
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


def assert_streams_whole(name: str, ids: Sequence[int]) -> list[str]:
    got = pieces(VOCABULARIES[name], ids)
    assert "".join(got) == decode(TOKENIZERS[name], ids)
    return got


@pytest.mark.parametrize("text", TEXTS)
def test_whole_characters_come_out_whole_and_never_as_a_replacement(text):
    name = "byte level"
    got = assert_streams_whole(name, TOKENIZERS[name](text)["input_ids"])
    assert "".join(got) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in got)
    assert all(piece.isprintable() or not piece.strip() or piece in FAMILY for piece in got)


@given(st.binary(max_size=12))
@example(b"\xf0\x9f\xa4")
@example(b"\xed\xa0\x80")
@example(b"\xf0\x90\x28\xbc")
@example(b"a\xff\xc3")
def test_broken_utf8_gives_what_decoding_all_at_once_gives(raw):
    tokenizer = TOKENIZERS["byte level"]
    of_byte = {VOCABULARIES["byte level"].token_bytes(i): i for i in range(256)}
    ids = [of_byte[bytes([byte])] for byte in raw]
    assert "".join(pieces(VOCABULARIES["byte level"], ids)) == decode(tokenizer, ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_any_tokens_stream_to_what_decoding_all_at_once_gives(name, data):
    top = len(TOKENIZERS[name]) - 1
    likely = st.integers(max(0, top - 12), top)
    ids = data.draw(st.lists(st.one_of(likely, st.integers(0, top)), max_size=14))
    assert_streams_whole(name, ids)


def test_a_special_token_in_the_middle_does_not_eat_the_space_behind_it():
    tokenizer = TOKENIZERS["metaspace"]
    ids = tokenizer.convert_tokens_to_ids(["▁Hello", "</s>", "</s>", "▁world"])
    assert "".join(assert_streams_whole("metaspace", ids)) == "Hello world"


def test_a_bad_byte_behind_a_good_character_loses_nothing_that_follows():
    tokenizer = TOKENIZERS["byte fallback"]
    tokens = ["▁Hello", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "▁world", "a"]
    got = assert_streams_whole("byte fallback", tokenizer.convert_tokens_to_ids(tokens))
    assert got[-2] == "a" and got[-3].endswith(" world")


def test_a_decoder_that_rewrites_its_text_loses_no_words():
    tokenizer = word_piece(cleanup=True)
    ids = tokenizer.convert_tokens_to_ids(["do", "n", "'", "t", "hello", "##ing", "world"])
    text = "".join(pieces(Vocabulary(tokenizer), ids))
    assert text.replace(" ", "") == "don'thelloingworld" and text.endswith("helloing world")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_past_the_vocabulary_add_nothing(name):
    past = len(TOKENIZERS[name]) + 5
    known = TOKENIZERS[name].convert_tokens_to_ids("a")
    assert "".join(pieces(VOCABULARIES[name], [past, known, past])) == decode(TOKENIZERS[name], [known])
    assert isinstance(VOCABULARIES[name].label(past), str)


def test_labels_show_bytes_that_are_no_character():
    bytes_of_hug = TOKENIZERS["byte level"]("🤗")["input_ids"]
    assert [VOCABULARIES["byte level"].label(i) for i in bytes_of_hug] == ["⟨F0⟩", "⟨9F⟩", "⟨A4⟩", "⟨97⟩"]
    assert VOCABULARIES["byte level"].label(258) == "<|im_end|>"
    fallback = TOKENIZERS["byte fallback"].convert_tokens_to_ids(["<0xE4>", "<0x41>"])
    assert [VOCABULARIES["byte fallback"].label(i) for i in fallback] == ["⟨E4⟩", "A"]


def test_without_a_tokenizer_there_is_no_text():
    assert pieces(Vocabulary(None), [1, 2]) == ["", "", ""]
    assert Vocabulary(None).label(3) == ""


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def stopped(strings: Sequence[str], parts: Sequence[str]) -> tuple[str, bool]:
    finder, out = StopStrings(strings), ""
    for part in parts:
        out += finder.push(part)
        if finder.found:
            return out, True
    return out + finder.finish(), False


@given(
    st.text("abc", max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 12), max_size=6),
)
@example("abc", ["abc", "b"], [])
@example("aabaab", ["aab", "ab"], [1, 2])
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(text, strings, places):
    ends = [text.find(s) + len(s) for s in strings if s in text]
    if ends:
        end = min(ends)
        begin = min(end - len(s) for s in strings if text[:end].endswith(s))
        expected = text[:begin], True
    else:
        expected = text, False
    assert stopped(strings, cut(text, places)) == expected


def test_the_start_of_a_stop_string_is_held_back_until_it_is_told():
    finder = StopStrings(["\nUser:"])
    assert finder.push("hello\nUs") == "hello"
    assert finder.push("ual") == "\nUsual"
    assert finder.push("\n") == "" and finder.finish() == "\n"


def test_no_stop_strings_hold_nothing_back():
    assert StopStrings([]).push("abc") == "abc"
