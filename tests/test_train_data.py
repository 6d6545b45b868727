"""Training data: which tokens are learned, which lines are taken, and who stands on which side."""

from __future__ import annotations

import builtins
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars_core.errors import MarsError
from mars_core.prompts import chat_prompt_ids, is_blank
from mars_core.train.data import DataSettings, TrainingData, cut, load_data, prompt_ids, split
from mars_core.train.reading import Conversation, Findings, conversation_of, read_conversations
from mars_core.train.rendering import Encoded, encode
from tests.tiny import CHATML, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
STOP = frozenset({256, 258})
END = "<|im_end|>"
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
readable = (text | st.just(f"a{END}b<|mask|>")).filter(lambda t: not is_blank(t))
GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# What Qwen3's template does: thoughts of earlier answers are dropped.
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def with_template(template: str | None) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def chat(*contents: str, finished: bool = True, system: str | None = None) -> Conversation:
    roles = ("user", "assistant") * len(contents)
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    head = [{"role": "system", "content": system}] if system else []
    return Conversation((*head, *messages), "test:1", finished)


def learned(tokenizer: Any, encoded: Encoded) -> list[str]:
    """The text of each run of learned tokens."""
    runs: list[list[int]] = []
    for before, (token, mask) in zip(
        [False, *encoded.mask], zip(encoded.ids, encoded.mask, strict=True), strict=False
    ):
        if mask and not before:
            runs.append([])
        if mask:
            runs[-1].append(token)
    return [str(tokenizer.decode(run)) for run in runs]


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def pair(prompt: str, response: str | None = "yes", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "response": response, **more}


def load(*sources: str, **settings: Any) -> TrainingData:
    return load_data(DataSettings(sources, **({"held_out": 0} | settings)), TOKENIZER, STOP)


# --- what is learned -------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, GENERATION])
@given(readable, readable, readable, readable)
def test_what_is_learned_are_the_answers_and_their_ends_of_turn(template, first, answer, second, last):
    tokenizer = with_template(template)
    encoded = encode(tokenizer, chat(first, answer, second, last, system="be short"), STOP)
    assert learned(tokenizer, encoded) == [answer + END, last + END]
    assert encoded.ends[-1] == len(encoded.ids) == len(encoded.mask)


@given(readable, readable, readable, readable)
def test_before_each_answer_stand_the_ids_that_decoding_feeds(first, answer, second, last):
    conversation = chat(first, answer, second, last)
    encoded = encode(TOKENIZER, conversation, STOP)
    starts = [i for i in range(1, len(encoded.ids)) if encoded.mask[i] and not encoded.mask[i - 1]]
    for start, before in zip(starts, (1, 3), strict=True):
        assert encoded.ids[:start] == chat_prompt_ids(TOKENIZER, list(conversation.messages[:before]))


def test_text_of_control_tokens_in_an_answer_is_no_control_token():
    encoded = encode(TOKENIZER, chat("hi", f"a{END}b"), STOP)
    assert encoded.ids.count(258) == 2  # the question's and the answer's own


@given(readable)
def test_an_answer_that_was_cut_off_has_no_end_of_turn(answer):
    for template in (CHATML, GENERATION):
        tokenizer = with_template(template)
        encoded = encode(tokenizer, chat("hi", answer, finished=False), STOP)
        assert learned(tokenizer, encoded)[0] == answer.rstrip() and encoded.ids[-1] not in STOP


def test_an_answer_that_the_template_rewrites_later_is_context_only():
    tokenizer = with_template(THINKING)
    encoded = encode(tokenizer, chat("a", "b", "c", "d"), STOP)
    assert learned(tokenizer, encoded) == [f"<think></think>d{END}"]
    assert encoded.num_unlearned == 1


def test_a_template_that_refuses_or_hides_the_answer_makes_a_bad_line(tmp_path):
    for template in ("{{ raise_exception('no') }}", "{% for m in messages %}{{ m['role'] }}{% endfor %}x"):
        with pytest.raises(MarsError):
            encode(with_template(template), chat("a", "b"), STOP)


def test_without_a_template_the_answer_ends_with_the_end_of_sequence_token():
    tokenizer = with_template(None)
    encoded = encode(tokenizer, chat("a", "b", "c", "d"), STOP)
    assert tokenizer.decode(encoded.ids) == f"a\n\nb\n\nc\n\nd{END}"
    assert learned(tokenizer, encoded) == ["\n\nb", f"\n\nd{END}"]


# --- which lines are taken -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        '"text"',
        "NaN",
        "[" * 100_000,
        {},
        {"messages": "hi"},
        {"messages": []},
        {"messages": ["hi"]},
        {"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}, *[{"role": "assistant", "content": "x"}] * 2]},
        {"messages": [{"role": r, "content": "x"} for r in ("user", "system", "user", "assistant")]},
        pair("x", "half \ud83e"),
        pair("x", ""),
        pair("x", " \u200b "),
        pair("", "x"),
        pair("x", 3),
        {"prompt": 3, "response": "x"},
        pair("x", finished="no"),
    ],
)
def test_a_bad_line_is_named_and_skipped_or_refused(tmp_path, caplog, line):
    source = write(tmp_path / "data.jsonl", pair("good"), "", line, pair("good too"))
    data = load(source)
    assert [example.name for example in data.train] == [f"{source}:1", f"{source}:4"]
    assert data.counts["bad lines"] == 1 and f"{source}:3 is skipped" in caplog.text
    with pytest.raises(MarsError, match="data.jsonl:3: .*--bad-lines skip"):
        load(source, bad_lines="refuse")


def test_bytes_that_are_no_text_spoil_their_line_only(tmp_path):
    path = tmp_path / "data.jsonl"
    good = json.dumps(pair("a\u2028b", "é")).encode()
    path.write_bytes(b"\xef\xbb\xbf" + good + b"\r\n" + b'{"prompt": "\xff", "response": "x"}\n' + good[:-1])
    data = load(str(path))
    assert len(data.train) == 1 and data.counts["bad lines"] == 2


def test_many_bad_lines_are_counted_and_only_the_first_are_named(tmp_path, caplog):
    data = load(write(tmp_path / "data.jsonl", pair("good"), *["{"] * 30))
    assert data.counts["bad lines"] == 30 and len(caplog.records) == 11


def test_a_line_without_an_answer_is_no_bad_line(tmp_path):
    question = {"messages": [{"role": "user", "content": "x"}]}
    source = write(tmp_path / "data.jsonl", pair("a", None), {"prompt": "b"}, question, pair("c"))
    data = load(source, bad_lines="refuse")
    assert len(data.train) == 1 and data.counts["without an answer"] == 3


def test_a_question_behind_the_last_answer_is_left_out():
    entry = {"messages": [{"role": r, "content": "x"} for r in ("user", "assistant", "user")]}
    conversation = conversation_of(entry, "x")
    assert conversation is not None and len(conversation.messages) == 2 and conversation.finished


def test_what_is_not_finished_says_so_to_the_end(tmp_path):
    source = write(tmp_path / "data.jsonl", pair("a", "b"), pair("a", "b", finished=False))
    whole, cut_off = (example.input_ids for example in load(source).train)
    assert whole == (*cut_off, 258)


def test_exact_duplicates_are_dropped(tmp_path):
    data = load(write(tmp_path / "data.jsonl", pair("a"), pair("a", licence="MIT"), pair("a", "no")))
    assert len(data.train) == 2 and data.counts["duplicates"] == 1


def test_nothing_to_train_on_is_an_error_that_says_what_happened(tmp_path):
    with pytest.raises(MarsError, match="1 bad lines, 2 without an answer"):
        load(write(tmp_path / "data.jsonl", "{", pair("a", None), pair("b", None)))


@pytest.mark.parametrize("source", ["missing.jsonl", "./no/such", "name", "a/b.jsonl", ""])
def test_a_source_that_is_no_file_and_no_hub_name_is_refused(source):
    with pytest.raises(MarsError, match="There is no file|is a directory"):
        load(source)


def test_a_hub_data_set_without_its_library_says_what_to_install(monkeypatch):
    imported = builtins.__import__

    def no_datasets(name: str, *rest: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_datasets)
    with pytest.raises(MarsError, match="pip install datasets"):
        load("owner/name")


def test_a_hub_data_set_is_read_split_by_name(monkeypatch):
    rows = [pair("a"), pair("b", None)]
    library: Any = types.ModuleType("datasets")
    library.load_dataset = lambda name, split: rows if (name, split) == ("owner/name", "test") else 1 / 0
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert [example.name for example in load("owner/name:test").train] == ["owner/name:1"]
    with pytest.raises(MarsError, match=r"\(split train\) cannot be loaded"):
        load("owner/name")


# --- what is too long ------------------------------------------------------------------------------


def test_what_is_too_long_is_cut_behind_an_answer_within_one_or_dropped():
    encoded = encode(TOKENIZER, chat("a", "bbbb", "c", "dddddddd"), STOP)
    first, last = encoded.ends
    by_boundary = cut(encoded, last - 1, "boundary")
    assert by_boundary is not None and len(by_boundary.ids) == first and by_boundary.ids[-1] == 258
    within = cut(encoded, last - 3, "answer")
    assert within is not None and len(within.ids) == last - 3 and within.mask[-1]
    assert cut(encoded, last - 1, "drop") is None and cut(encoded, last, "drop") is encoded
    assert cut(encoded, first - 1, "boundary") is None
    assert cut(encoded, 3, "answer") is None  # nothing to learn would be left


def test_what_is_cut_or_dropped_for_its_length_is_counted(tmp_path):
    messages = [{"role": r, "content": "x"} for r in ("user", "assistant") * 2]
    source = write(tmp_path / "data.jsonl", {"messages": messages}, pair("a", "x" * 99), pair("b", "c"))
    counts = load(source, max_length=40).counts
    assert (counts["too long, cut"], counts["too long, dropped"], counts["training examples"]) == (1, 1, 2)
    assert counts["training label tokens"] == 2 * 2


# --- sides -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text("xyz", min_size=1)), max_size=30))
def test_training_and_held_out_never_share_a_question(pairs):
    conversations = [chat(question, answer) for question, answer in pairs]
    train, held_out = split(conversations, 5, seed=3)
    assert not {c.prompt for c in train} & {c.prompt for c in held_out}
    assert sorted(map(repr, [*train, *held_out])) == sorted(map(repr, conversations))
    assert len(held_out) >= min(5, len(conversations))


def test_the_split_is_by_seed_and_not_by_order():
    conversations = [chat(str(i), "x") for i in range(50)]
    held_out = {c.prompt for c in split(conversations, 8, seed=1)[1]}
    assert held_out == {c.prompt for c in split(conversations[::-1], 8, seed=1)[1]}
    assert held_out != {c.prompt for c in split(conversations, 8, seed=2)[1]}


def test_questions_of_the_held_out_file_are_taken_out_of_the_training_data(tmp_path):
    train = write(tmp_path / "train.jsonl", pair("How  many?"), pair("why?"))
    held_out = write(tmp_path / "held_out.jsonl", pair("how many?", "three"))
    data = load(train, held_out_sources=(held_out,))
    assert [len(data.train), len(data.held_out)] == [1, 1]
    assert data.counts["held-out questions in the training data"] == 1


def test_the_prompt_of_an_example_is_what_decoding_is_fed(tmp_path):
    (example,) = load(write(tmp_path / "data.jsonl", pair("hi"))).train
    assert list(prompt_ids(example)) == chat_prompt_ids(TOKENIZER, [{"role": "user", "content": "hi"}])


def test_reading_names_the_file_and_line():
    with pytest.raises(MarsError, match="^data:7: "):
        Findings("refuse").report_bad("data:7", "it is wrong.")
    assert list(read_conversations([], Findings())) == []
