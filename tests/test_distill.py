"""Self-distillation: every prompt is answered once, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars_core.__main__ import main
from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.prompts import chat_prompt_ids
from mars_core.row import Request
from mars_core.settings import DecodeSettings
from mars_core.train import distill as module
from mars_core.train.distill import (
    DistillSettings,
    answered_keys,
    distill,
    is_degenerate,
    read_prompts,
)
from mars_core.train.reading import Findings
from tests.scripted import saying, scripted_loaded
from tests.tiny import tiny_loaded, tiny_model, tiny_tokenizer


def prompts_file(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def prompts_of(tmp_path: Path, *texts: str) -> list[Any]:
    path = prompts_file(tmp_path / "prompts.jsonl", *({"prompt": text, "licence": "MIT"} for text in texts))
    return read_prompts([path], Findings())


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.fixture
def keep_loops(monkeypatch):
    """A random model does go round in circles."""
    monkeypatch.setattr(module, "is_degenerate", lambda ids: False)


@pytest.mark.usefixtures("keep_loops")
def test_greedy_answers_in_a_pool_are_the_engines_own_one_by_one(tmp_path):
    loaded = tiny_loaded()
    texts = [f"question {i}" for i in range(7)]
    settings = DistillSettings(sampled_share=0, max_new_tokens=12, batch_size=3)
    counts = distill(loaded, prompts_of(tmp_path, *texts), tmp_path / "out.jsonl", settings)
    lines = lines_of(tmp_path / "out.jsonl")
    assert sorted(line["prompt"] for line in lines) == texts and counts["answered"] == 7
    for line in lines:
        ids = chat_prompt_ids(tiny_tokenizer(), [{"role": "user", "content": line["prompt"]}])
        decoding = DecodeSettings(mode="ar", block_size=1, max_new_tokens=12)
        events = list(Engine(loaded).stream(Request(ids, decoding)))
        assert line["response"] == "".join(event.text for event in events).removesuffix("\ufffd")
        assert line["tokens"] == sum(len(event.committed) for event in events)
        assert line["finished"] == (events[-1].finish_reason == "eos")
        assert (line["mode"], line["licence"]) == ("greedy", "MIT")


@pytest.mark.usefixtures("keep_loops")
def test_a_run_that_was_ended_goes_on_and_gives_the_same_answers(tmp_path, monkeypatch):
    prompts = prompts_of(tmp_path, *map(str, range(9)))
    settings = DistillSettings(max_new_tokens=8, batch_size=2, seed=5)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    distill(tiny_loaded(), prompts, whole, settings)
    assert {line["mode"] for line in lines_of(whole)} == {"greedy", "sampled"}

    answer = module._Answer.line

    def interrupted(self: Any) -> Any:
        if len(out.read_text().splitlines()) == 4:
            raise KeyboardInterrupt
        return answer(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module._Answer, "line", interrupted)
        distill(tiny_loaded(), prompts, out, settings)
    assert len(lines_of(out)) == 4
    with out.open("a") as file:
        file.write('{"key": "half a li')  # and the machine went off while it wrote
    counts = distill(tiny_loaded(), prompts, out, settings)
    assert (counts["there already"], counts["answered"]) == (4, 5)
    by_prompt = [sorted(lines_of(path), key=lambda line: line["prompt"]) for path in (whole, out)]
    assert by_prompt[0] == by_prompt[1]
    assert distill(tiny_loaded(), prompts, out, settings)["answered"] == 0


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path):
    out = prompts_file(tmp_path / "out.jsonl", {"prompt": "x", "response": "y"})
    with pytest.raises(MarsError, match="out.jsonl:1 is no line of a self-distillation"):
        answered_keys(out)
    assert out.read_text() == '{"prompt": "x", "response": "y"}\n'


@pytest.mark.usefixtures("keep_loops")
def test_an_answer_cut_at_its_length_is_not_finished_and_one_that_ends_is(tmp_path):
    prompts = prompts_of(tmp_path, "x")
    start = len(chat_prompt_ids(tiny_tokenizer(), [{"role": "user", "content": "x"}]))
    ids = [*tiny_tokenizer()("yes é")["input_ids"], 258]
    for max_new_tokens, response, finished in ((9, "yes é", True), (6, "yes é", False), (5, "yes ", False)):
        out = tmp_path / f"{max_new_tokens}.jsonl"
        settings = DistillSettings(sampled_share=0, max_new_tokens=max_new_tokens)
        distill(scripted_loaded(saying(ids, start)), prompts, out, settings)
        (line,) = lines_of(out)
        assert (line["response"], line["finished"]) == (response, finished)


def test_an_empty_answer_is_noted_as_dropped_and_not_asked_for_again(tmp_path):
    prompts, out = prompts_of(tmp_path, "x"), tmp_path / "out.jsonl"
    start = len(chat_prompt_ids(tiny_tokenizer(), [{"role": "user", "content": "x"}]))
    loaded = scripted_loaded(saying([258], start))
    counts = distill(loaded, prompts, out, DistillSettings(sampled_share=0))
    (line,) = lines_of(out)
    assert line["response"] is None and line["dropped"] == "empty" and counts["dropped: empty"] == 1
    assert distill(loaded, prompts, out, DistillSettings())["there already"] == 1


def test_a_loop_is_dropped(tmp_path):
    out = tmp_path / "out.jsonl"
    loaded = scripted_loaded(lambda position, masked: (65, 1.0))
    counts = distill(
        loaded, prompts_of(tmp_path, "x"), out, DistillSettings(sampled_share=0, max_new_tokens=40)
    )
    assert counts["dropped: loop"] == 1 and lines_of(out)[0]["response"] is None


def test_a_prompt_that_does_not_fit_is_counted_and_the_others_are_answered(tmp_path):
    prompts = prompts_of(tmp_path, "x" * 600, "y")
    counts = distill(tiny_loaded(), prompts, tmp_path / "out.jsonl", DistillSettings(max_new_tokens=4))
    assert (counts["too long for the context"], counts["answered"]) == (1, 1)


def test_a_prompt_is_read_once_and_a_bad_line_named(tmp_path, caplog):
    path = prompts_file(tmp_path / "p.jsonl", {"prompt": "a"}, "{", {"prompt": ""}, [], {"prompt": "a"})
    findings = Findings()
    assert [prompt.text for prompt in read_prompts([path, path], findings)] == ["a"]
    assert findings.counts["bad lines"] == 6 and "p.jsonl:2 is skipped" in caplog.text
    with pytest.raises(MarsError, match="p.jsonl:2"):
        read_prompts([path], Findings("refuse"))


def test_about_the_asked_share_is_sampled_whatever_the_order():
    settings = DistillSettings(sampled_share=0.25, seed=1)
    modes = [settings.mode_of(str(i)) for i in range(2000)]
    assert 400 < modes.count("sampled") < 600
    assert settings.mode_of("77") == modes[77]
    assert set(map(DistillSettings(sampled_share=1).mode_of, "abc")) == {"sampled"}


def test_each_prompt_is_sampled_in_its_own_way():
    seeds = {DistillSettings(seed=seed).decoding("sampled", key).seed for seed in (0, 1) for key in "ab"}
    assert len(seeds) == 4


@pytest.mark.parametrize(
    "settings",
    [{"sampled_share": 2}, {"batch_size": 0}, {"temperature": 0}, {"top_p": 0}, {"max_new_tokens": 0}],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(MarsError):
        DistillSettings(**settings)


# --- loops -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=24, max_size=40, unique=False), st.integers(3, 5))
def test_a_piece_three_times_in_a_row_is_a_loop_wherever_it_stands(piece, times):
    assert is_degenerate([*range(100, 150), *piece * times, *range(200, 250)])


@given(st.permutations(range(200)))
def test_what_never_repeats_is_no_loop(ids):
    assert not is_degenerate(ids)


def test_a_loop_that_counts_on_is_one_and_a_list_is_none():
    step = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert is_degenerate([token for i in range(6) for token in [100 + i, *step]])
    items = [token for i in range(20) for token in (1, 100 + 3 * i, 2, 101 + 3 * i, 102 + 3 * i, 3)]
    assert not is_degenerate(items)
    assert not is_degenerate([7] * 20 + list(range(100, 140)))  # a short rule of dashes
    assert not is_degenerate([]) and not is_degenerate([1])


# --- the command -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("keep_loops")
def test_the_command_answers_a_file_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mars_core.options.tame_malloc", lambda: None)
    monkeypatch.setattr("mars_core.__main__.set_up_logging", lambda verbose: None)
    model = tmp_path / "model"
    tiny_model().save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    prompts = prompts_file(tmp_path / "p.jsonl", *({"prompt": str(i), "source": "s"} for i in range(5)))
    out = tmp_path / "out.jsonl"
    command = ["distill", "--model", str(model), "--device", "cpu", "--dtype", "float32"]
    command += ["--prompts", str(prompts), "--out", str(out), "--max-new-tokens", "6", "--batch-size", "2"]
    assert main([*command, "--limit", "3"]) == 0
    assert main(command) == 0
    lines = lines_of(out)
    assert sorted(line["prompt"] for line in lines) == list("01234")
    assert all(line["source"] == "s" and line["tokens"] <= 6 for line in lines)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["there already"] == 3 and report["answered"] == 2
    assert main(["distill", "--prompts", str(tmp_path / "no"), "--out", str(out)]) == 2
    assert main([*command, "--top-p", "0"]) == 2


def test_control_c_keeps_what_is_done_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mars_core.__main__.set_up_logging", lambda verbose: None)
    monkeypatch.setattr("mars_core.train.command.load_from", lambda *_: tiny_loaded())
    monkeypatch.setattr(module._Answer, "line", lambda self: (_ for _ in ()).throw(KeyboardInterrupt()))
    prompts = prompts_file(tmp_path / "p.jsonl", {"prompt": "x"})
    out = tmp_path / "out.jsonl"
    assert main(["distill", "--prompts", str(prompts), "--out", str(out), "--max-new-tokens", "2"]) == 130
    assert "run the same command again" in capsys.readouterr().err
