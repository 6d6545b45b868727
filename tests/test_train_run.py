"""Training runs on tiny models: they learn, go on as if never ended, and leave what others can load."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Trainer

from mars_core.__main__ import main
from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.models import load_model
from mars_core.prompts import chat_prompt_ids
from mars_core.row import Request
from mars_core.settings import DecodeSettings
from mars_core.train import run
from mars_core.train.arguments import TrainSettings
from mars_core.train.batches import epoch_batches, evenly_chosen, make_plan
from mars_core.train.callbacks import LogFile
from mars_core.train.data import load_data
from mars_core.train.record import last_checkpoint
from mars_core.train.run import train
from tests.tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).parent.parent
ALPHABET = "abcdefgh"
IDS = torch.tensor([[257, 72, 105, 259, 258, 10]])
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def answer(start: str) -> str:
    """The alphabet, round and round: what follows a letter never changes."""
    first = ALPHABET.index(start)
    return "".join(ALPHABET[(first + i) % len(ALPHABET)] for i in range(12))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A directory with a model and data in a language of one sentence."""
    directory = tmp_path_factory.mktemp("training")
    for name, tied in (("model", True), ("untied", False)):
        tiny_model(tied=tied).save_pretrained(directory / name)
        tiny_tokenizer().save_pretrained(directory / name)
    lines = [{"prompt": f"{c}{i}", "response": answer(c)} for c in ALPHABET for i in range(6)]
    (directory / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


@pytest.fixture
def settings(files, tmp_path):
    """Make settings of a small run; keywords change them."""

    def make(**changes: Any) -> TrainSettings:
        small: dict[str, Any] = dict(
            data=(str(files / "data.jsonl"),),
            model=str(files / "model"),
            out=str(tmp_path / "out"),
            device="cpu",
            held_out=8,
            max_steps=6,
            batch_tokens=200,
            lora_rank=4,
            learning_rate=1e-2,
            eval_every=0,
            save_every=3,
            log_every=1,
        )
        return TrainSettings(**(small | changes))

    return make


def log_of(out: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(out) / "log.jsonl").read_text().splitlines()]


def losses_of(out: str | Path) -> list[tuple[int, float, float, float]]:
    return [(e["step"], e["loss"], e["noisy"], e["grad_norm"]) for e in log_of(out) if "loss" in e]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def load(name: str | Path, **options: Any) -> Any:
    return load_model(str(name), device="cpu", dtype="fp32", **options)


class Killed(Exception):
    """The machine went off."""


@pytest.fixture
def kill_at(monkeypatch):
    """End the process's run at a step, in no orderly way."""

    log = LogFile.on_log

    def arm(step: int) -> None:
        def on_log(self: Any, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
            log(self, args, state, *rest, **kwargs)
            if state.global_step == step:
                raise Killed

        monkeypatch.setattr(LogFile, "on_log", on_log)

    return arm


# --- the plan --------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(0, 9))
def test_an_epoch_has_every_example_once_in_batches_within_the_budget(costs, seed):
    batches = epoch_batches(costs, 25, seed, epoch=3)
    assert sorted(number for batch in batches for number in batch) == list(range(len(costs)))
    assert all(sum(costs[i] for i in batch) <= 25 or len(batch) == 1 for batch in batches)
    assert batches == epoch_batches(costs, 25, seed, epoch=3)


@given(st.integers(1, 20), st.floats(0.1, 3), st.integers(1, 4))
def test_a_plan_has_whole_steps_and_at_least_the_epochs_that_were_asked(count, epochs, per_step):
    costs = [5] * count
    plan = make_plan(costs, budget=10, seed=1, epochs=epochs, max_steps=None, batches_per_step=per_step)
    batches_an_epoch = -(-count // 2)
    assert len(plan.batches) % per_step == 0
    assert abs(len(plan.batches) - max(1, epochs * batches_an_epoch)) <= per_step
    assert plan.epochs == pytest.approx(len(plan.batches) / batches_an_epoch)


def test_epochs_differ_in_order_and_max_steps_decides_alone():
    costs = [1] * 50
    plan = make_plan(costs, budget=1, seed=1, epochs=0, max_steps=60, batches_per_step=2)
    assert plan.num_steps == 60 and plan.epochs == pytest.approx(2.4)
    assert plan.batches[:50] != plan.batches[50:100] and set(plan.batches[:50]) == set(plan.batches[50:100])


@given(st.floats(0.01, 1), st.integers(1, 300))
def test_chosen_steps_begin_at_once_and_are_spread_evenly(share, count):
    chosen = [evenly_chosen(number, share) for number in range(count)]
    assert chosen[0] and abs(sum(chosen) - count * share) < 1 + 1e-6
    gaps = [later - one for one, later in pairwise(n for n, is_chosen in enumerate(chosen) if is_chosen)]
    assert all(abs(gap - 1 / share) < 1 + 1e-6 for gap in gaps)


# --- it learns -------------------------------------------------------------------------------------


def test_training_lowers_the_noisy_loss_and_drafts_are_accepted(settings):
    result = train(settings(max_steps=60, batch_tokens=400, learning_rate=2e-2, lora_rank=8, eval_every=30))
    evaluations = [entry for entry in log_of(settings().out) if "eval_noisy" in entry]
    assert evaluations[0]["eval_noisy"] > 5 and result["eval_noisy"] < 2.5 and result["eval_clean"] < 1
    assert [entry["step"] for entry in evaluations] == [0, 30, 60]
    assert evaluations[2]["eval_noisy"] < evaluations[1]["eval_noisy"]
    assert min(result[f"eval_accept_{offset}"] for offset in (2, 3, 4)) > 0.5


def test_the_whole_model_learns_too_and_is_an_ordinary_checkpoint(settings):
    chosen = settings(tune="full", max_steps=30, batch_tokens=400)
    result = train(chosen)
    assert result["eval_noisy"] < 3
    plain: Any = AutoModelForCausalLM.from_pretrained(chosen.out)
    loaded = load(chosen.out)
    torch.testing.assert_close(logits(plain), logits(loaded.model))
    assert loaded.mars_tuned and loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert not torch.allclose(logits(plain), logits(load(chosen.model).model), atol=1e-2)


def test_ordinary_fine_tuning_has_no_noisy_stream_and_makes_no_mars_model(settings):
    result = train(settings(objective="ar", eval_every=3))
    assert "eval_clean" in result and "eval_noisy" not in result
    assert all("noisy" not in entry for entry in log_of(settings().out))
    assert not load(settings().out).mars_tuned


def test_tokens_per_forward_are_measured_on_held_out_prompts(settings):
    result = train(settings(max_steps=1, eval_decode=2, eval_threshold=0.0, eval_new_tokens=8))
    assert result["eval_tok_fwd"] > 2.5 and 1 <= result["eval_tok_fwd_verify"] <= 4


def test_soft_targets_and_the_kl_to_the_base_keep_the_base_in_place(settings):
    train(settings(soft_weight=1.0, base_kl_weight=1.0, learning_rate=1e-6, max_steps=1))
    assert log_of(settings().out)[0]["clean"] == pytest.approx(0, abs=1e-4)  # still the base


def test_the_clean_stream_is_trained_in_its_share_of_the_steps(settings):
    train(settings(clean_share=0.3, accumulate=2, max_steps=7, log_every=1))
    steps = [entry for entry in log_of(settings().out) if "noisy" in entry]
    assert ["clean" in entry for entry in steps] == [True, False, False, True, False, False, True]


# --- the same figures, however it is run -----------------------------------------------------------


@pytest.mark.parametrize("mask_row", [False, True])
def test_a_killed_run_goes_on_as_if_it_had_never_ended(settings, tmp_path, kill_at, monkeypatch, mask_row):
    same: dict[str, Any] = dict(
        lora_dropout=0.3,
        max_steps=5,
        accumulate=2,
        eval_every=2,
        eval_decode=1,
        eval_new_tokens=8,
        train_mask_row=mask_row,
    )
    whole, ended = str(tmp_path / "whole"), str(tmp_path / "ended")
    train(settings(out=whole, **same))
    with pytest.raises(Killed):
        kill_at(4)
        train(settings(out=ended, **same))
    monkeypatch.undo()
    torn = Path(ended) / "checkpoint-4"  # killed while it wrote
    torn.mkdir()
    (torn / "trainer_state.json").write_text('{"global_st')
    assert last_checkpoint(Path(ended)) == Path(ended) / "checkpoint-3"
    result = train(settings(out=ended, resume=True, **same))
    assert result["steps"] == 5
    assert losses_of(ended) == losses_of(whole) and len(losses_of(whole)) == 5
    torch.testing.assert_close(logits(load(whole).model), logits(load(ended).model), rtol=0, atol=0)


def test_control_c_leaves_a_checkpoint_and_the_command_goes_on(settings, tmp_path, monkeypatch, capsys):
    train(settings(out=str(tmp_path / "whole")))
    log = LogFile.on_log

    def interrupting(self: Any, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
        log(self, args, state, *rest, **kwargs)
        if state.global_step == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "on_log", interrupting)
        result = train(settings(save_every=100))
    assert result["ended_early"] and result["steps"] == 3
    assert last_checkpoint(Path(settings().out)) == Path(settings().out) / "checkpoint-3"
    train(settings(resume=True, save_every=100))
    assert losses_of(settings().out) == losses_of(tmp_path / "whole")


def test_accumulated_batches_weigh_each_token_alike(settings, tmp_path):
    lines = [{"prompt": "x", "response": "y"}, {"prompt": "z", "response": "a" * 60}]
    data = tmp_path / "two.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    same: dict[str, Any] = dict(data=(str(data),), held_out=0, max_steps=1, phase="response")
    train(settings(out=str(tmp_path / "one"), batch_tokens=1000, **same))
    train(settings(out=str(tmp_path / "two"), batch_tokens=1, accumulate=2, **same))
    (one,), (two,) = losses_of(tmp_path / "one"), losses_of(tmp_path / "two")
    assert one == pytest.approx(two, rel=1e-4)


def test_gradient_checkpointing_changes_no_figure(settings, tmp_path):
    train(settings(out=str(tmp_path / "plain"), max_steps=3))
    train(settings(out=str(tmp_path / "checkpointed"), max_steps=3, gradient_checkpointing=True))
    plain, checkpointed = losses_of(tmp_path / "plain"), losses_of(tmp_path / "checkpointed")
    torch.testing.assert_close(torch.tensor(plain), torch.tensor(checkpointed))


def test_bfloat16_computes_nearly_the_same_and_trains_in_float32(settings, tmp_path):
    train(settings(out=str(tmp_path / "fp32"), max_steps=2))
    train(settings(out=str(tmp_path / "bf16"), max_steps=2, precision="bf16"))
    exact, rough = (losses_of(tmp_path / name)[0] for name in ("fp32", "bf16"))
    assert exact != rough and exact == pytest.approx(rough, rel=0.1)


def test_two_processes_compute_what_one_does_with_twice_the_batches(settings, tmp_path, files):
    train(settings(out=str(tmp_path / "one"), accumulate=4, max_steps=3, held_out=9))
    chosen = settings(
        out=str(tmp_path / "two"), accumulate=2, max_steps=3, held_out=9
    )  # an odd number of batches
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += [
        "--config_file",
        str(ROOT / "mars_core" / "train" / "configs" / "ddp.yaml"),
        "--main_process_port",
        "0",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "-m", "mars_core", "train", *as_options(chosen)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = losses_of(tmp_path / "one"), losses_of(tmp_path / "two")
    torch.testing.assert_close(torch.tensor(one), torch.tensor(two), rtol=1e-4, atol=1e-5)
    figures = [[e for e in log_of(tmp_path / name) if "eval_noisy" in e][0] for name in ("one", "two")]
    assert figures[0]["eval_noisy"] == pytest.approx(figures[1]["eval_noisy"], rel=1e-4)
    assert figures[0]["eval_accept_2"] == pytest.approx(figures[1]["eval_accept_2"], abs=0.1)
    result = json.loads(done.stdout.splitlines()[-1])  # once, not once a process
    assert result["steps"] == 3 and done.stdout.count('"steps"') == 1


def as_options(settings: TrainSettings) -> list[str]:
    """The command line of these settings, each that differs from its default."""
    options = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        name = f"--{field.name.replace('_', '-')}"
        options += (
            [name, *value] if isinstance(value, tuple) else [name] if value is True else [name, str(value)]
        )
    return options


# --- what cannot work ------------------------------------------------------------------------------


def test_a_run_is_not_trained_over_and_goes_on_only_with_the_same_settings(
    settings, tmp_path, files, monkeypatch
):
    train(settings())
    with pytest.raises(MarsError, match="holds a run already. Pass --resume"):
        train(settings())
    with pytest.raises(MarsError, match=r"cannot go on with another block_size, seed \(it was 4, 0\)"):
        train(settings(resume=True, block_size=8, seed=1))
    other = tmp_path / "other.jsonl"
    other.write_text((files / "data.jsonl").read_text().replace("abc", "abd"))
    with pytest.raises(MarsError, match="cannot go on with another data "):
        train(settings(resume=True, data=(str(other),)))
    monkeypatch.setattr(run, "load_data", lambda *rest: dataclasses.replace(load_data(*rest), held_out=[]))
    with pytest.raises(MarsError, match="its data files have changed"):
        train(settings(resume=True))
    monkeypatch.undo()
    assert train(settings(resume=True, log_every=2))["steps"] == 6  # nothing left to do


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_examples(settings, tmp_path):
    model = tiny_model()
    model.get_input_embeddings().weight.data[ord("Z") - 33] = float("nan")  # the byte's id
    assert tiny_tokenizer()("Z")["input_ids"] == [ord("Z") - 33]
    model.save_pretrained(tmp_path / "model", safe_serialization=True)
    model.config.tie_word_embeddings = False
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "response": "b"}\n{"prompt": "Z", "response": "b"}\n')
    with pytest.raises(MarsError, match=r"The loss is nan in step \d.*data.jsonl:\d"):
        train(settings(model=str(tmp_path / "model"), data=(str(data),), held_out=0, batch_tokens=1))


def test_a_gradient_that_is_no_number_ends_the_run_before_it_is_applied(settings, monkeypatch):
    monkeypatch.setattr(Trainer, "_clip_grad_norm", lambda self, model: torch.tensor(float("inf")))
    with pytest.raises(
        MarsError, match=r"gradient's norm is inf in step 1.*data.jsonl:\d+, .*lower learning"
    ):
        train(settings())


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 0},
        {"soft_weight": 2.0},
        {"batch_tokens": 0},
        {"epochs": float("nan")},
        {"epochs": 0, "max_steps": None},
        {"max_steps": 0},
        {"warmup": 1.0},
        {"lora_rank": 0},
        {"tune": "full", "merge": True},
        {"tune": "full", "base_kl_weight": 0.5},
        {"stop_clean_gradient": True, "gradient_checkpointing": True},
        {"clean_share": 0.5, "gradient_checkpointing": True},
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_loaded(settings, changes):
    with pytest.raises(MarsError):
        settings(**changes)


def test_what_only_the_model_tells_is_refused_in_plain_words(settings, files, tmp_path):
    for changes, message in [
        ({"lora_targets": ("no_such_layer",)}, "No adapter can be made"),
        ({"max_length": 10_000}, "context holds 512"),
        ({"init_adapter": str(files / "model")}, "is not a PEFT adapter"),
        ({"mask_token_id": 999}, "mask_token_id is 999"),
        ({"model": str(tmp_path / "nothing")}, "no directory"),
    ]:
        with pytest.raises(MarsError, match=message):
            train(settings(out=str(tmp_path / "never"), **changes))
    assert not (tmp_path / "never").exists()


# --- what it leaves --------------------------------------------------------------------------------


@pytest.mark.parametrize("mask_row", [False, True])
@pytest.mark.parametrize("base", ["model", "untied"])
def test_live_saved_loaded_and_merged_give_the_same_logits_and_ties_hold(
    settings, files, monkeypatch, base, mask_row
):
    live: dict[str, Any] = {}
    save = run.MarsTrainer.save_model

    def remember(self: Any, directory: str, **options: Any) -> None:
        live["logits"], inner = logits(self.model), self.model.get_base_model()
        live["tied"] = torch.equal(inner.lm_head.weight, inner.model.embed_tokens.weight)
        save(self, directory, **options)

    monkeypatch.setattr(run.MarsTrainer, "save_model", remember)
    chosen = settings(model=str(files / base), train_mask_row=mask_row, merge=True)
    train(chosen)
    adapted, merged = load(chosen.out), load(Path(chosen.out) / "merged")
    plain: Any = AutoModelForCausalLM.from_pretrained(Path(chosen.out) / "merged")
    for model in (adapted.model, merged.model, plain):
        torch.testing.assert_close(logits(model), live["logits"], atol=1e-5, rtol=1e-5)
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == (base == "model")
    assert live["tied"] == (base == "model")
    base_model = load(files / base).model
    assert not torch.allclose(live["logits"], logits(base_model), atol=1e-2)
    table, before = (m.model.embed_tokens.weight for m in (adapted.model, base_model))
    changed = (table != before).any(1).nonzero()[:, 0].tolist()
    assert changed == ([259] if mask_row else [])
    for loaded in (adapted, merged):
        assert (loaded.mars_tuned, loaded.block_size, loaded.mask_token_id) == (True, 4, 259)


def test_the_adapter_names_its_base_and_can_be_saved_in_half(settings, files):
    chosen = settings(save_dtype="bf16", block_size=6)
    train(chosen)
    config = json.loads((Path(chosen.out) / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(files / "model")
    facts = json.loads((Path(chosen.out) / "mars.json").read_text())
    assert facts == {"format": 1, "block_size": 6, "mask_token_id": 259, "mask_token": "<|mask|>"}
    size = (Path(chosen.out) / "adapter_model.safetensors").stat().st_size
    whole = (Path(chosen.out) / "checkpoint-6" / "adapter_model.safetensors").stat().st_size
    assert size < 0.8 * whole and load(chosen.out).block_size == 6


def test_the_default_base_is_named_by_its_hub_id():
    from mars_core.train.model import base_name

    for name in ("default", "HuggingFaceTB/SmolLM2-135M-Instruct", "/x/SmolLM2-135M-Instruct-q4_1-1"):
        assert base_name(name) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert base_name("owner/model") == "owner/model"


def test_an_adapter_can_be_trained_on_but_not_put_on_top_of_another(settings, tmp_path, files):
    train(settings(out=str(tmp_path / "first")))
    with pytest.raises(MarsError, match="has an adapter merged in"):
        train(settings(model=str(tmp_path / "first")))
    train(settings(init_adapter=str(tmp_path / "first"), max_steps=1, learning_rate=1e-9))
    torch.testing.assert_close(logits(load(tmp_path / "first").model), logits(load(settings().out).model))
    with pytest.raises(MarsError, match="has no trained mask row"):
        train(settings(init_adapter=str(tmp_path / "first"), train_mask_row=True, out=str(tmp_path / "x")))


# --- the command -----------------------------------------------------------------------------------


def test_help_explains_every_field(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(TrainSettings):
        assert f"--{field.name.replace('_', '-')}" in shown and field.metadata["help"]


def test_the_command_trains_merges_and_what_it_leaves_answers(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mars_core.__main__.set_up_logging", lambda verbose: None)
    chosen = settings(
        merge=True,
        max_steps=30,
        batch_tokens=400,
        learning_rate=2e-2,
        lora_targets=("q_proj", "v_proj", "up_proj", "down_proj"),
    )
    assert main(["train", *as_options(chosen)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["steps"] == 30 and not result["ended_early"]
    loaded = load(Path(chosen.out) / "merged")
    prompt = chat_prompt_ids(loaded.tokenizer, [{"role": "user", "content": "c1"}])
    events = list(Engine(loaded).stream(Request(prompt, DecodeSettings(threshold=0.0, max_new_tokens=8))))
    assert len(events) < 8 and sum(len(event.committed) for event in events) <= 8
    assert main(["train", *as_options(chosen)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")


def test_an_unknown_or_impossible_option_is_refused(capsys):
    for options in (["--data", "x"], ["--data", "x", "--out", "y", "--objective", "other"]):
        with pytest.raises(SystemExit, match="2"):
            main(["train", *options])
