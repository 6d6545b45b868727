"""Sweeps on disk and from the command line: whole files, plain refusals, nothing done is lost."""

from __future__ import annotations

import copy
import csv
import io
import json

import pytest
import torch

from mars_core import Engine, MarsError
from mars_core.__main__ import main
from mars_core.bench.sweep import command
from mars_core.bench.sweep.grid import SweepPlan
from mars_core.bench.sweep.identity import weights_digest
from mars_core.bench.sweep.prompts import built_in, ready
from mars_core.bench.sweep.reading import load_sweep, sweep_from_json
from mars_core.bench.sweep.result import SweepResult
from mars_core.bench.sweep.run import Sweep
from mars_core.bench.sweep.table import HEADER, markdown
from mars_core.packed import pack_weights
from mars_core.planner import NOMINAL_COSTS
from tests.tiny import tiny_loaded

FACTS = {
    "model": "tiny, with a comma",
    "dtype": "float32",
    "hardware": "here",
    "device": "cpu",
    "date": "now",
}


@pytest.fixture(scope="module")
def result():
    loaded = tiny_loaded()
    plan = SweepPlan((4,), thresholds=(0.05, 0.2), max_new_tokens=10)
    prompts = ready(built_in(2), loaded, 10)
    sweep = Sweep(Engine(loaded, costs=lambda: NOMINAL_COSTS), plan, prompts)
    for _ in sweep.steps():
        pass
    return SweepResult(FACTS, plan, tuple(prompt.text for prompt in prompts), tuple(sweep.answers))


@pytest.fixture
def saved(result):
    return json.loads(json.dumps(result.to_json(), allow_nan=False))


# JSON


def test_what_is_saved_reads_back_whole(result, saved):
    read = sweep_from_json(saved)
    assert (read.facts, read.plan, read.prompts, read.answers) == (
        FACTS, result.plan, result.prompts, result.answers
    )  # fmt: skip
    assert json.loads(json.dumps(read.to_json())) == saved and read.finished


def test_the_json_says_what_it_is_and_how_it_was_made(saved):
    assert (saved["format"], saved["version"], saved["finished"]) == ("mars-sweep", 1, True)
    assert saved["plan"]["thresholds"] == [0.05, 0.2] and saved["plan"]["max_new_tokens"] == 10
    assert saved["hardware"] == "here" and saved["num_complete_prompts"] == 2
    assert len(saved["figures"]) == len(result_points(saved)) == 5
    assert "AR" in saved["definitions"]["agreement"]
    curve = saved["what_if"][0]
    assert curve["point"]["threshold"] == 0.2 and not curve["point"]["verify"]
    own = curve["estimated_tokens_per_forward"][curve["thresholds"].index(0.2)]
    row = next(row for row in saved["figures"] if row["point"] == curve["point"])
    assert own == pytest.approx(row["tokens_per_forward"])


def result_points(saved):
    return {json.dumps(row["point"]) for row in saved["figures"]}


def damaged(saved, path, value):
    data = copy.deepcopy(saved)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["format"], "other", "no|not a saved sweep"),
        (["version"], 2, "version 2; this program reads version 1"),
        (["version"], True, "version True"),
        (["plan", "thresholds"], [3], "damaged: thresholds"),
        (["plan", "verify"], "perhaps", "damaged: verify"),
        (["plan"], {}, "its plan has not the fields"),
        (["answers", 0, "ids"], [-1], "damaged: -1 is no whole number"),
        (["answers", 0, "ids"], [], "do not go together"),
        (["answers", 0, "point"], 77, "point 77"),
        (["answers", 0, "log_likelihood"], None, "damaged: None is no finite number"),
        (["answers", 0, "log_likelihood"], "1" * 5000, "damaged: '111"),
        (["answers", 0, "finish_reason"], "bored", "bored"),
        (["answers", 0, "windows"], [[0, 0, 1]], "damaged"),
        (["answers", 0, "ar_choices"], [2], "neither 0 nor 1"),
        (["prompts"], "text", "not a list"),
        (["answers"], [], None),
    ],
)
def test_damage_is_refused_in_plain_words(saved, path, value, said):
    if said is None:  # nothing answered yet is no damage
        assert sweep_from_json(damaged(saved, path, value)).figures == []
        return
    with pytest.raises(MarsError, match=said) as refusal:
        sweep_from_json(damaged(saved, path, value))
    assert len(str(refusal.value)) < 400


def test_an_answer_given_twice_or_a_part_that_is_missing_is_damage(saved):
    twice = damaged(saved, ["answers"], [*saved["answers"], saved["answers"][0]])
    with pytest.raises(MarsError, match="answers a prompt twice"):
        sweep_from_json(twice)
    del saved["prompts"]
    with pytest.raises(MarsError, match="'prompts' is missing"):
        sweep_from_json(saved)


@pytest.mark.parametrize("data", [None, [], 3, "mars-sweep", {"format": ["mars-sweep"]}])
def test_what_is_no_sweep_at_all_is_refused(data):
    with pytest.raises(MarsError, match="not a saved sweep"):
        sweep_from_json(data)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(MarsError, match="x.json"):
        load_sweep(tmp_path / "x.json")


# CSV and table


def test_the_csv_has_a_row_a_point_with_version_and_settings(result):
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert len(rows) == 5 and {row["version"] for row in rows} == {"1"}
    assert rows[0]["mode"] == "ar" and float(rows[0]["tokens_per_forward"]) == 1
    assert {row["model"] for row in rows} == {"tiny, with a comma"} and rows[1]["max_new_tokens"] == "10"
    assert (rows[1]["threshold"], rows[1]["block_size"], rows[1]["verify"]) == ("0.05", "4", "False")
    figures = result.figures[1]
    assert float(rows[1]["agreement_low"]) == figures.agreement_interval[0]
    assert float(rows[1]["speedup_median"]) == figures.speedup.median


def test_without_figures_the_csv_is_its_header(result):
    empty = SweepResult(FACTS, result.plan, result.prompts, ())
    assert empty.to_csv().count("\n") == 1 and "tokens_per_forward" in empty.to_csv()


def test_the_table_has_a_line_a_point_and_says_if_it_is_a_part(result):
    text = markdown(result)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 5 and {line.count("|") for line in table} == {len(HEADER) + 1}
    assert "tiny, with a comma, float32, here" in text and "Stopped" not in text
    part = SweepResult(FACTS, result.plan, result.prompts, result.answers[:7])
    assert "1 of 2 prompts" in markdown(part) and "| 1 |" in markdown(part)


def test_what_is_not_complete_can_be_left_out(result):
    part = SweepResult(FACTS, result.plan, result.prompts, result.answers[:7])
    assert part.only_complete().answers == result.answers[:5] and not part.finished


# The command line


@pytest.fixture
def sweep_command(monkeypatch, tmp_path, capsys):
    """Runs the command on the tiny model; the exit status and what it printed."""
    monkeypatch.setattr(command, "load_from", lambda arguments: tiny_loaded())
    monkeypatch.setattr(command, "known_costs", lambda loaded: NOMINAL_COSTS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("one\n\ntwo\nthree\n")

    def run(*arguments):
        defaults = ["--prompts", "my.txt", "--thresholds", "0.1", "--verify", "off", "--max-new-tokens", "6"]
        status = main(["sweep", *defaults, *arguments])
        return status, capsys.readouterr()

    return run


def test_the_command_measures_prints_and_writes(sweep_command, tmp_path):
    status, printed = sweep_command("--limit", "2", "--json", "out.json", "--csv", "out.csv")
    assert status == 0 and "| τ 0.1, B 4 |" in printed.out and "4 answers" in printed.err.replace("4/4", "4")
    found = load_sweep(tmp_path / "out.json")
    assert found.finished and found.prompts == ("one", "two") and found.facts["prompts_from"] == "my.txt"
    assert (tmp_path / "out.csv").read_text() == found.to_csv()
    assert not list(tmp_path.glob("*.part"))


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on_from_there(sweep_command, tmp_path, monkeypatch):
    steps = Sweep.steps

    def interrupted(self, *arguments):
        for progress in steps(self, *arguments):
            yield progress
            if progress.num_done == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(Sweep, "steps", interrupted)
    status, printed = sweep_command("--json", "out.json")
    assert status == 130 and "1 of 3 prompts" in printed.out
    kept = load_sweep(tmp_path / "out.json")
    assert len(kept.answers) == 3 and kept.num_complete == 1
    monkeypatch.setattr(Sweep, "steps", steps)
    status, _ = sweep_command("--json", "out.json", "--resume")
    whole = load_sweep(tmp_path / "out.json")
    assert status == 0 and whole.finished
    assert whole.answers[:2] == kept.only_complete().answers
    # ratios are taken in one run: the prompt that was not finished is answered anew, by all
    unfinished = kept.answers[2]
    (anew,) = [a for a in whole.answers if (a.point, a.prompt) == (unfinished.point, unfinished.prompt)]
    assert anew.ids == unfinished.ids and anew.decode_s != unfinished.decode_s


def test_resume_refuses_a_sweep_of_something_else(sweep_command):
    sweep_command("--json", "out.json")
    assert sweep_command("--json", "out.json", "--resume", "--max-new-tokens", "7")[0] == 2
    status, printed = sweep_command("--json", "out.json", "--resume", "--limit", "1")
    assert status == 2 and "differs in prompts" in printed.err
    assert "--json" in sweep_command("--resume")[1].err


def test_resume_refuses_figures_of_weights_that_were_trained_since(sweep_command, monkeypatch):
    sweep_command("--json", "out.json")
    assert sweep_command("--json", "out.json", "--resume")[0] == 0
    monkeypatch.setattr(command, "load_from", lambda arguments: tiny_loaded(seed=1))
    status, printed = sweep_command("--json", "out.json", "--resume")
    assert status == 2 and "differs in weights" in printed.err


@pytest.mark.parametrize("prepare", [lambda model: None, pack_weights])
def test_weights_are_told_apart_by_any_layer_and_by_the_mask_s_row(prepare, monkeypatch):
    monkeypatch.setattr("mars_core.bench.sweep.identity._VALUES", 4)  # as few of it as of a large model

    def digest(part=None):
        loaded = tiny_loaded()
        weights = dict(loaded.model.named_parameters())
        if part is not None:
            with torch.no_grad():
                weights[part][... if "layers" in part else loaded.mask_token_id] += 0.1
        prepare(loaded.model)
        return weights_digest(loaded)

    changed = "model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"
    assert len({digest(), *map(digest, changed)}) == 3 and digest() == digest() and len(digest()) == 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--thresholds", "0.5,high"], "thresholds is '0.5,high'"),
        (["--thresholds", "2"], "from 0 to 1"),
        (["--metric", "luck"], "luck"),
        (["--block-sizes", "0"], "block_size is 0"),
        (["--prompts", "none.txt"], "none.txt cannot be read"),
        (["--limit", "0"], "limit is 0"),
        (["--json", "/dev/null/x.json"], "cannot be written"),
    ],
)
def test_what_cannot_work_is_said_before_a_model_is_loaded(sweep_command, monkeypatch, arguments, said):
    monkeypatch.setattr(command, "load_from", lambda arguments: pytest.fail("loaded"))
    status, printed = sweep_command(*arguments)
    assert status == 2 and said in printed.err


def test_the_help_is_complete(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    text = capsys.readouterr().out
    options = (
        "prompts", "limit", "thresholds", "block-sizes", "metric", "verify", "max-new-tokens", "json", "csv",
        "resume", "entropy-thresholds", "model", "seed",
    )  # fmt: skip
    assert all(f"--{option} " in text for option in options) and "examples:" in text
