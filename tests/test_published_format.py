"""Checkpoints as the authors publish them: a plain Qwen under another name, with a mask token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from mars_core.errors import MarsError
from mars_core.models import load_model
from tests.tiny import tiny_model, tiny_tokenizer

IDS = torch.tensor([[257, 72, 105, 259, 259]])


def publish(
    directory: Path, model: PreTrainedModel, *, with_mask: bool = True, shard_size: str = "1GB", **config: Any
) -> Path:
    """Write `model` in the published format: what its authors' training code saves."""
    model.save_pretrained(directory, max_shard_size=shard_size)
    tiny_tokenizer(with_mask=with_mask).save_pretrained(directory)
    written = json.loads((directory / "config.json").read_text())
    kind = written["model_type"]
    written |= {"model_type": f"a2d-{kind}", "architectures": [f"A2D{kind.capitalize()}LMHeadModel"]}
    (directory / "config.json").write_text(json.dumps(written | config))
    return directory


def load(directory: Path, **settings: Any) -> Any:
    return load_model(str(directory), device="cpu", dtype="fp32", **settings)


def assert_same_logits(loaded: PreTrainedModel, original: PreTrainedModel) -> None:
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, original(IDS).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_a_published_checkpoint_gives_the_plain_models_logits(tmp_path, kind, tied, shard_size):
    model = tiny_model(kind=kind, tied=tied)
    directory = publish(tmp_path / "MARS-tiny-blk8", model, shard_size=shard_size)
    assert (directory / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    loaded = load(directory)
    assert_same_logits(loaded.model, model)
    assert loaded.model.config.model_type == kind
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert loaded.mars_tuned and loaded.block_size == 8 and loaded.mask_token_id == 259
    assert loaded.notices == ()


def test_a_tied_head_may_stand_in_the_file(tmp_path):
    model = tiny_model(kind="qwen2", tied=True)
    directory = publish(tmp_path / "blk4", model)
    tensors = load_file(directory / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    loaded = load(directory)
    assert_same_logits(loaded.model, model)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


def test_an_untied_head_that_is_missing_is_not_filled_with_noise(tmp_path):
    directory = publish(tmp_path / "blk4", tiny_model(kind="qwen2", tied=False))
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MarsError, match="not whole: lm_head.weight missing"):
        load(directory)


def test_a_missing_shard_is_named(tmp_path):
    directory = publish(tmp_path / "blk4", tiny_model(kind="qwen2"), shard_size="20KB")
    shard = sorted(directory.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(MarsError, match=shard.name):
        load(directory)


def test_a_cut_weight_file_is_a_plain_message(tmp_path):
    directory = publish(tmp_path / "blk4", tiny_model(kind="qwen2"))
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(MarsError, match="cannot be loaded"):
        load(directory)


def test_code_beside_the_weights_is_never_run(tmp_path):
    ran = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(ran)!r}).write_text('ran')\n"
    auto_map = {
        "AutoConfig": "configuration_a2d.A2DConfig",
        "AutoModelForCausalLM": "modeling_a2d.A2DQwen2LMHeadModel",
    }
    directory = publish(tmp_path / "blk4", tiny_model(kind="qwen2"), auto_map=auto_map)
    for module in ("modeling_a2d", "configuration_a2d", "tokenization_a2d"):
        (directory / f"{module}.py").write_text(code)
    tokenizer_config = json.loads((directory / "tokenizer_config.json").read_text())
    tokenizer_config["auto_map"] = {"AutoTokenizer": ["tokenization_a2d.T", "tokenization_a2d.T"]}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    assert load(directory).mars_tuned
    unknown = json.loads((directory / "config.json").read_text()) | {"model_type": "a2d-other"}
    (directory / "config.json").write_text(json.dumps(unknown))
    with pytest.raises(MarsError, match="its own code, which MARS never runs"):
        load(directory)
    assert not ran.exists()


def test_end_of_turn_and_end_of_text_both_stop(tmp_path):
    loaded = load(publish(tmp_path / "blk4", tiny_model(kind="qwen2")))
    assert loaded.stop_token_ids == {256, 258}


def test_end_of_text_stops_as_padding_even_if_no_list_names_it(tmp_path):
    directory = publish(tmp_path / "blk4", tiny_model(kind="qwen2"))
    (directory / "generation_config.json").write_text('{"eos_token_id": 258}')
    assert load(directory).stop_token_ids == {256, 258}


def test_the_mask_token_and_the_spare_rows_are_suppressed(tmp_path):
    loaded = load(publish(tmp_path / "blk4", tiny_model(kind="qwen2")))
    assert loaded.suppressed_token_ids == tuple(range(259, 272))


def test_a_tokenizer_without_a_mask_token_gets_one_at_a_spare_row(tmp_path):
    model = tiny_model(kind="qwen2")
    loaded = load(publish(tmp_path / "blk4", model, with_mask=False))
    assert loaded.mask_token_id == 259 and loaded.tokenizer.mask_token == "<|mask|>"
    assert loaded.model.get_input_embeddings().weight.shape[0] == 272
    assert "spare row" in loaded.origins["mask_token_id"]


def test_a_table_without_a_spare_row_is_never_resized(tmp_path):
    directory = publish(tmp_path / "blk4", tiny_model(kind="qwen2", vocab=259), with_mask=False)
    with pytest.raises(MarsError, match="no mask token, no spare row"):
        load(directory)


def test_an_old_config_keeps_its_rope_base(tmp_path):
    model = tiny_model(kind="qwen2", rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    directory = publish(tmp_path / "blk4", model)
    old = json.loads((directory / "config.json").read_text())
    old["rope_theta"] = old.pop("rope_parameters")["rope_theta"]
    old["torch_dtype"] = old.pop("dtype")
    (directory / "config.json").write_text(json.dumps(old))
    assert_same_logits(load(directory).model, model)


def test_the_block_size_comes_from_the_name_then_from_mars_json_then_from_the_default(tmp_path):
    directory = publish(tmp_path / "tiny-blk16", tiny_model(kind="qwen2"))
    assert load(directory).block_size == 16
    assert load(directory, block_size=2).block_size == 2
    (directory / "mars.json").write_text('{"format": 1, "block_size": 6, "mask_token_id": 259}')
    assert load(directory).block_size == 6
    plain = shutil.copytree(directory, tmp_path / "tiny")
    (plain / "mars.json").unlink()
    loaded = load(plain)
    assert loaded.block_size == 4 and any("block size" in notice for notice in loaded.notices)


def test_mars_json_says_whether_the_last_mask_predicts(tmp_path):
    directory = publish(tmp_path / "tiny-blk4", tiny_model(kind="qwen2"))
    assert load(directory).last_mask is False
    for content, expected in [({}, False), ({"last_mask": True}, True), ({"last_mask": False}, False)]:
        facts = {"format": 1, "block_size": 4, "mask_token_id": 259} | content
        (directory / "mars.json").write_text(json.dumps(facts))
        assert load(directory).last_mask is expected


def test_a_hub_cache_directory_is_known_by_its_repository(tmp_path):
    snapshot = tmp_path / "models--Someone--MARS-tiny-blk8" / "snapshots" / "0123abcd"
    loaded = load(publish(snapshot, tiny_model(kind="qwen2")))
    assert loaded.name == "MARS-tiny-blk8" and loaded.block_size == 8


def test_the_ar_sft_control_is_not_called_mars_tuned(tmp_path):
    loaded = load(publish(tmp_path / "MARS-tiny-AR-SFT", tiny_model(kind="qwen2")))
    assert not loaded.mars_tuned and "not MARS-tuned" in loaded.notices[-1]


def test_block_diffusion_is_refused_by_name_and_by_config(tmp_path):
    model = tiny_model(kind="qwen2")
    with pytest.raises(MarsError, match="both directions"):
        load(publish(tmp_path / "MARS-tiny-BD3LM-blk4", model))
    with pytest.raises(MarsError, match="both directions"):
        load(publish(tmp_path / "blk4", model, architectures=["A2DQwen2BD3LM"]))


def test_a_mars_json_of_another_format_or_another_tokenizer_is_refused(tmp_path):
    directory = publish(tmp_path / "tiny", tiny_model(kind="qwen2"))
    for content, message in [
        ({"format": 2}, "knows format 1"),
        ({"format": 1, "block_size": "4"}, "whole number"),
        ({"format": 1, "block_size": 65, "mask_token_id": 259}, "from 1 to 64"),
        ({"format": 1, "mask_token_id": 258}, "ends a generation"),
        ({"format": 1, "mask_token_id": 259, "last_mask": 1}, "last_mask is 1; it must be true or false"),
        ({"format": 1, "mask_token_id": 259, "last_mask": "yes"}, "last_mask is 'yes'"),
        ({"format": 1, "mask_token_id": 259, "last_mask": None}, "last_mask is None"),
        ({"format": 1, "mask_token_id": 5, "mask_token": "<|mask|>"}, "do not belong together"),
    ]:
        (directory / "mars.json").write_text(json.dumps(content))
        with pytest.raises(MarsError, match=message):
            load(directory)
