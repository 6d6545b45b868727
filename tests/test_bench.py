"""``python -m mars_core bench speed`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mars_core import MarsError
from mars_core.__main__ import main
from mars_core.bench import command
from mars_core.bench.continuous import CannotRun
from mars_core.bench.methods import OUR_AR, TRANSFORMERS_AR
from mars_core.bench.plan import SpeedPlan
from mars_core.bench.prompts_file import Prompt, choose, read_prompts
from mars_core.costs import ForwardCosts
from tests.tiny import tiny_loaded, tiny_model, tiny_tokenizer

ROOT = Path(__file__).parent.parent
LINES = [
    {"turns": ["hello", "again"], "category": "writing"},
    {"turns": ["what?"], "category": "math"},
    {"prompt": "once upon"},
]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n\n", "utf-8")
    return path


@pytest.fixture
def bench(monkeypatch, prompts):
    """Run the command here, on the tiny model."""
    loaded = []

    def load(arguments, packed=True):
        loaded.append(packed)
        return tiny_loaded()

    def run(*arguments):
        return main(["bench", "speed", "--prompts", str(prompts), "--max-new-tokens", "8", *arguments])

    monkeypatch.setattr(command, "load_from", load)
    monkeypatch.setattr(command, "copy_rate", lambda device: 1e9)
    monkeypatch.setattr(command, "known_costs", lambda loaded: ForwardCosts((1, 2), (32,), ((1.0, 1.0),)))
    monkeypatch.setattr("mars_core.__main__.set_up_logging", lambda verbose: None)
    run.loaded = loaded
    return run


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_tables_for_each_batch_size_and_json_as_the_last_line(bench, capsys, tmp_path):
    file = tmp_path / "new" / "directory" / "out.json"
    status = bench(
        "--batch-sizes", "1,2", "--thresholds", "0.1", "--verify-thresholds", "1", "--cache-blocks", "4",
        "--json", str(file),
    )  # fmt: skip
    assert status == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out.splitlines()[-1])
    assert data == json.loads(file.read_text("utf-8"))
    assert "### Batch 1, 3 prompts" in captured.out and "### Batch 2, 1 groups of 2 prompts" in captured.out
    assert "run/s" in captured.err and "run/s" not in captured.out  # the progress bar
    assert data.keys() >= {
        "model", "dtype", "hardware", "cores", "threads", "torch", "transformers", "date", "command",
        "copy_bytes_per_s", "weight_bytes", "forward_costs", "prompts", "num_prompts", "plan", "interrupted",
        "batches",
    }  # fmt: skip
    one, two = data["batches"]
    assert [row["method"] for row in one["rows"]] == [
        TRANSFORMERS_AR, "transformers prompt lookup (10)", OUR_AR, "ours, MARS τ = 0.1",
        "ours, MARS + verify τ = 1", "ours, prompt lookup", "ours, MARS + verify τ = 1 + prompt lookup",
    ]  # fmt: skip
    assert {row["method"] for row in two["rows"]} >= {"ours, block-level cache B_cache = 4, τ = 0.1"}
    assert not one["failed"] and not two["failed"]
    for row in one["rows"]:
        assert row["over_transformers_ar"]["decode"]["median"] > 0 and row["prefill_s"] > 0
        assert row["num_prompts"] == 3 and row["weight_bytes_per_s"] > 0
    by_name = {row["method"]: row for row in one["rows"]}
    assert by_name[OUR_AR]["tokens_per_forward"] == 1 and by_name[TRANSFORMERS_AR]["same_text"] == 1
    assert by_name["ours, MARS τ = 0.1"]["tokens_per_forward"] > 1
    assert by_name["ours, MARS + verify τ = 1"]["same_text"] == 1
    assert {item["category"] for item in one["categories"]} == {"writing", "math"} and not two["categories"]
    assert bench.loaded == [True, False]


def test_no_second_copy_is_loaded_where_none_is_needed(bench, capsys):
    assert bench("--only", "^ours, AR") == 0
    assert bench.loaded == [True]
    assert [row["method"] for row in last_line(capsys)["batches"][0]["rows"]] == [OUR_AR]
    assert bench("--only", "AR", "--plain-weights") == 0
    assert bench.loaded == [True, True]


def test_control_c_prints_what_there_is_and_writes_it(bench, capsys, tmp_path, monkeypatch):
    original, calls = command.measure, []

    def interrupted(methods, *rest):
        def make(bench, method=methods[0]):
            run = method.make(bench)

            def counted(prompts, most):
                calls.append(prompts)
                if len(calls) == 3:
                    raise KeyboardInterrupt
                return run(prompts, most)

            return counted

        return original([type(methods[0])(methods[0].name, make, OUR_AR)], *rest)

    monkeypatch.setattr(command, "measure", interrupted)
    file = tmp_path / "out.json"
    assert bench("--only", "^ours, AR", "--batch-sizes", "1,2", "--json", str(file)) == 130
    out = capsys.readouterr().out
    data = json.loads(out.splitlines()[-1])
    assert data["interrupted"] and data == json.loads(file.read_text("utf-8"))
    assert "### Batch 1, 1 prompts (stopped before the end" in out and "### Batch 2" not in out
    assert data["batches"][0]["rows"][0]["num_prompts"] == 1


def test_continuous_batching_that_cannot_run_is_named_with_the_reason(bench, capsys, monkeypatch):
    def refuse(*_, **__):
        raise CannotRun("no such kernel")

    monkeypatch.setattr("mars_core.bench.methods.ContinuousBatching", refuse)
    assert bench("--only", "transformers", "--batch-sizes", "2") == 0
    out = capsys.readouterr().out
    assert "transformers continuous batching: skipped, it cannot run here (no such kernel)." in out
    batch = json.loads(out.splitlines()[-1])["batches"][0]
    assert batch["skipped"] == {"transformers continuous batching": "no such kernel"}


def test_a_method_that_fails_makes_the_exit_status_1(bench, capsys, monkeypatch):
    def fail(*_):
        raise ValueError("a fault")

    monkeypatch.setattr("mars_core.bench.methods.run_generate", fail)
    assert bench("--only", "AR") == 1
    assert last_line(capsys)["batches"][0]["failed"] == {TRANSFORMERS_AR: "ValueError: a fault"}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--thresholds", "0.9,x"], "thresholds is '0.9,x'"),
        (["--thresholds", "1.5"], "thresholds holds 1.5"),
        (["--verify-thresholds", "nan"], "verify_thresholds holds nan"),
        (["--block-threshold", "-0.1"], "block_thresholds holds -0.1"),
        (["--batch-sizes", "0"], "batch_sizes holds 0"),
        (["--batch-sizes", "-4"], "batch_sizes holds -4"),
        (["--batch-sizes", "True"], "batch-sizes is 'True'"),
        (["--batch-sizes", "1.5"], "give whole numbers"),
        (["--batch-sizes", ""], "batch_sizes is empty"),
        (["--batch-sizes", "4"], "A batch of 4 needs 4 prompts, and there are 3"),
        (["--cache-blocks", "0"], "cache_blocks holds 0"),
        (["--lookup-tokens", "0"], "lookup_tokens holds 0"),
        (["--layouts", "wide"], "layouts holds 'wide'"),
        (["--layouts", ""], "layouts is empty"),
        (["--max-new-tokens", "0"], "max_new_tokens holds 0"),
        (["--warmup-tokens", "0"], "warmup_tokens holds 0"),
        (["--limit", "0"], "limit is 0"),
        (["--limit", "-1"], "limit is -1"),
        (["--seed", "-1"], "seed holds -1"),
        (["--only", "("], "only is '(', which is no regular expression"),
        (["--only", "nothing"], "leave no method for batch 1. The methods are: transformers AR;"),
        (["--prompts", "/nowhere/prompts.jsonl"], "There is no file /nowhere/prompts.jsonl"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_loaded(bench, capsys, arguments, message):
    assert bench(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err and not bench.loaded


def test_a_file_that_cannot_be_written_is_refused_before_the_run(bench, capsys, tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "out.json"):
        assert bench("--json", str(path)) == 2
        assert "cannot be written" in capsys.readouterr().err
    assert not bench.loaded


def test_looking_whether_a_file_can_be_written_leaves_it_as_it_was(tmp_path):
    path = tmp_path / "new" / "out.json"
    command.check_writable(path)
    assert path.parent.is_dir() and not path.exists()
    path.write_text("before")
    command.check_writable(path)
    assert path.read_text() == "before"


def test_a_prompt_that_is_too_long_is_named(bench, capsys):
    assert bench("--max-new-tokens", "600") == 2
    captured = capsys.readouterr()
    assert "line 1: The prompt has" in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize("value", [True, 0, -1, 2.0, "4"])
def test_batch_sizes_are_whole_numbers(value):
    with pytest.raises(MarsError, match="batch_sizes"):
        SpeedPlan(batch_sizes=(value,))


@pytest.mark.parametrize("value", [True, -0.5, 1.01, float("nan"), "0.9", None])
def test_thresholds_are_numbers_from_0_to_1(value):
    with pytest.raises(MarsError, match="thresholds"):
        SpeedPlan(thresholds=(value,))


# Prompts


@pytest.mark.parametrize("line", ["{", '{"turns": []}', "[1]", '{"text": "x"}', '{"prompt": 5}', "7"])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line, "utf-8")
    with pytest.raises(MarsError, match="line 2"):
        read_prompts(path)


def test_prompts_are_first_turns_with_their_category(prompts):
    found = read_prompts(prompts)
    assert [(prompt.text, prompt.category) for prompt in found] == [
        ("hello", "writing"), ("what?", "math"), ("once upon", None),
    ]  # fmt: skip


def test_an_empty_prompt_and_a_file_that_is_no_text_are_named(bench, capsys, prompts):
    prompts.write_text('{"prompt": "fine"}\n{"prompt": " "}', "utf-8")
    assert bench() == 2 and "line 2: The message is empty" in capsys.readouterr().err
    prompts.write_bytes(b"\xff\xfe{}")
    assert bench() == 2 and "is not UTF-8" in capsys.readouterr().err


def test_a_limit_takes_the_first_and_with_a_seed_draws_evenly_over_categories():
    pool = [Prompt(str(number), "ab"[number >= 9], "") for number in range(12)]
    assert choose(pool, 3, None) == pool[:3]
    drawn = choose(pool, 6, 1)
    assert [prompt.category for prompt in drawn] == ["a"] * 3 + ["b"] * 3
    assert drawn == choose(pool, 6, 1) != choose(pool, 6, 2)
    assert drawn == sorted(drawn, key=lambda prompt: int(prompt.text))
    assert len(choose(pool, 99, 1)) == 12 and choose(pool, None, 1) == pool


def test_prompts_left_over_are_in_no_group():
    ids = [[number] for number in range(7)]
    assert command.groups_of(ids, 3) == [ids[:3], ids[3:6]]


# As a program of its own


def test_from_a_shell_on_a_model_from_disk(tmp_path, prompts):
    directory = tmp_path / "tiny-blk4"
    tiny_model().save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    arguments = [
        "--model", str(directory), "--device", "cpu", "--dtype", "float32", "--prompts", str(prompts),
        "--max-new-tokens", "6", "--only", "^ours, (AR|MARS . verify τ = 1)$",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "mars_core", "bench", "speed", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MARS_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout.splitlines()[-1])
    assert data["command"].startswith("python -m mars_core bench speed --model")
    assert [row["same_text"] for row in data["batches"][0]["rows"]] == [None, 1.0]
