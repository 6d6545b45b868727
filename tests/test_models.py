"""`load_model`: which models it takes, what it says of them, and what it refuses."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import socket
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, LlamaConfig, MambaConfig, PreTrainedModel, T5Config

from mars_core import default_model, devices, hugepages, published
from mars_core.errors import MarsError
from mars_core.models import load_model
from tests.test_published_format import publish
from tests.tiny import CHATML, tiny_loaded, tiny_model, tiny_tokenizer

IDS = torch.tensor([[257, 72, 105, 258, 10]])
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def save(directory: Path, model: PreTrainedModel | None = None, with_mask: bool = True) -> Path:
    (model or tiny_model()).save_pretrained(directory)
    tiny_tokenizer(with_mask=with_mask).save_pretrained(directory)
    return directory


def save_adapter(directory: Path, model: PreTrainedModel, mars: dict[str, Any] | None) -> torch.Tensor:
    """Save an adapter that changes `model` visibly; returns the adapted model's logits at IDS."""
    torch.manual_seed(1)
    lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    live: Any = get_peft_model(model, lora)
    for name, parameter in live.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    live.save_pretrained(str(directory))
    if mars is not None:
        (directory / "mars.json").write_text(json.dumps({"format": 1} | mars))
    return logits(live.eval())


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def load(name: str | Path, **settings: Any) -> Any:
    return load_model(str(name), **({"device": "cpu", "dtype": "fp32"} | settings))


def config_only(directory: Path, config: Any, **extra: Any) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config.to_dict() | extra))
    return directory


@pytest.mark.parametrize("tied", [True, False])
def test_live_and_merged_adapter_give_the_same_logits_and_ties_hold(tmp_path, tied):
    base = save(tmp_path / "base", tiny_model(tied=tied))
    plain = logits(tiny_model(tied=tied))
    live = save_adapter(tmp_path / "adapter", tiny_model(tied=tied), {"block_size": 4, "mask_token_id": 259})
    loaded = load(base, adapter=str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(loaded.model), live, atol=1e-5, rtol=0)
    assert not torch.allclose(live, plain, atol=1e-2)
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert loaded.mars_tuned and loaded.name == "base + adapter"
    assert not any("lora" in name for name, _ in loaded.model.named_parameters())


def test_an_adapter_alone_brings_its_base(tmp_path):
    base = save(tmp_path / "base")
    live = save_adapter(tmp_path / "adapter", load(base).model, {"block_size": 3, "mask_token_id": 259})
    loaded = load(tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded.model), live, atol=1e-5, rtol=0)
    assert loaded.block_size == 3 and loaded.origins["block_size"] == "3: from mars.json"
    with pytest.raises(MarsError, match="is an adapter itself"):
        load(tmp_path / "adapter", adapter=str(tmp_path / "adapter"))


def test_an_adapter_of_smollm2_uses_the_embedded_base(tmp_path, monkeypatch):
    base = save(tmp_path / "base")
    monkeypatch.setattr(default_model, "ensure_default_base", lambda: base)
    save_adapter(tmp_path / "adapter", tiny_model(), {"block_size": 4, "mask_token_id": 259})
    config = tmp_path / "adapter" / "adapter_config.json"
    stored = json.loads(config.read_text())
    for name in (default_model.HUB_ID, "/elsewhere/SmolLM2-135M-Instruct-q4_1-1"):
        config.write_text(json.dumps(stored | {"base_model_name_or_path": name}))
        loaded = load(tmp_path / "adapter")
        assert loaded.origins["weights"] == default_model.ORIGIN
        assert loaded.name == "SmolLM2-135M-Instruct + adapter"


def test_an_adapter_without_mars_json_is_not_called_mars_tuned(tmp_path):
    base = save(tmp_path / "base")
    save_adapter(tmp_path / "adapter", tiny_model(), None)
    loaded = load(base, adapter=str(tmp_path / "adapter"))
    assert not loaded.mars_tuned and "no mars.json" in loaded.notices[-1]


def test_an_adapter_for_another_architecture_is_a_plain_message(tmp_path):
    base = save(tmp_path / "base", tiny_model(hidden=64))
    save_adapter(tmp_path / "adapter", tiny_model(hidden=32), None)
    with pytest.raises(MarsError, match="does not fit"):
        load(base, adapter=str(tmp_path / "adapter"))
    with pytest.raises(MarsError, match="not a PEFT adapter"):
        load(base, adapter=str(base))


def test_an_ordinary_model_loads_with_a_notice_that_is_logged_too(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        loaded = load(save(tmp_path / "plain"))
    assert not loaded.mars_tuned and loaded.block_size == 4
    assert "not MARS-tuned" in loaded.notices[-1] and "threshold 1" in loaded.notices[-1]
    assert loaded.notices[-1] in caplog.text
    torch.testing.assert_close(logits(loaded.model), logits(tiny_model()), atol=1e-5, rtol=0)


def test_every_origin_is_filled_and_the_context_is_the_models(tmp_path):
    loaded = load(save(tmp_path / "plain"))
    assert set(loaded.origins) == set(tiny_loaded().origins) and all(loaded.origins.values())
    assert loaded.context_length == 512 and loaded.origins["attention"] == "sdpa: the default"
    assert loaded.model.config._attn_implementation == "sdpa" and not loaded.model.training


def test_a_model_with_no_room_for_a_mask_uses_a_special_token_that_no_chat_has(tmp_path):
    directory = save(tmp_path / "plain", tiny_model(vocab=260), with_mask=False)
    tokenizer = tiny_tokenizer(with_mask=False)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<unused>"]})
    tokenizer.save_pretrained(directory)
    loaded = load(directory)
    assert loaded.mask_token_id == 259 and any("<unused>" in notice for notice in loaded.notices)


def test_special_tokens_outside_the_chat_template_are_suppressed_and_the_others_not(tmp_path):
    directory = save(tmp_path / "plain")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool>", "<in_template>"]})
    tokenizer.chat_template = CHATML + "{# <in_template> #}"
    tokenizer.save_pretrained(directory)
    assert load(directory).suppressed_token_ids == (259, 260, *range(262, 272))


def test_without_a_chat_template_only_mask_and_spare_rows_are_suppressed(tmp_path):
    directory = save(tmp_path / "plain")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    tokenizer.chat_template = None
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    assert load(directory).suppressed_token_ids == (259, *range(261, 272))


def test_suppressed_and_stopping_tokens_are_disjoint(tmp_path):
    loaded = load(save(tmp_path / "plain"), mask_token_id=3)
    assert loaded.mask_token_id == 3 and 3 in loaded.suppressed_token_ids
    assert not loaded.stop_token_ids & set(loaded.suppressed_token_ids)


@pytest.mark.parametrize("mask", [-1, 272, 256, 258])
def test_a_mask_token_that_cannot_be_one_is_refused(tmp_path, mask):
    with pytest.raises(MarsError, match=f"mask_token_id is {mask}"):
        load(save(tmp_path / "plain"), mask_token_id=mask)


@pytest.mark.parametrize("size", [0, 65, -1, 2.0, True])
def test_a_block_size_out_of_range_is_refused_before_anything_is_loaded(size):
    with pytest.raises(MarsError, match="from 1 to 64"):
        load("/no/such/place", block_size=size)


def test_what_is_not_a_model_is_refused_in_plain_words(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in [("no", "no directory"), ("file", "is a file"), ("empty", "not a model directory")]:
        with pytest.raises(MarsError, match=message):
            load(tmp_path / name)
    with pytest.raises(MarsError, match="name is empty"):
        load("")


def test_models_that_cannot_be_decoded_this_way_say_why(tmp_path):
    for name, config, heads, message in [
        ("t5", T5Config(), "T5ForConditionalGeneration", "encoder-decoder"),
        ("mamba", MambaConfig(num_hidden_layers=2), "MambaForCausalLM", "running state"),
        ("bert", BertConfig(), "BertForMaskedLM", "both directions"),
    ]:
        directory = config_only(tmp_path / name, config, architectures=[heads])
        with pytest.raises(MarsError, match=message):
            published.read_config(published.find(str(directory)))


def test_an_unknown_architecture_is_a_plain_message(tmp_path):
    directory = config_only(tmp_path / "new", LlamaConfig(), model_type="brand-new")
    with pytest.raises(MarsError, match="model type 'brand-new'"):
        published.read_config(published.find(str(directory)))


def test_a_broken_config_or_tokenizer_is_a_plain_message(tmp_path):
    directory = save(tmp_path / "plain")
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(MarsError, match="no usable tokenizer"):
        load(directory)
    (directory / "config.json").write_text("[")
    with pytest.raises(MarsError, match="cannot be read"):
        load(directory)


def test_a_model_without_sdpa_runs_eager_with_a_notice(tmp_path, monkeypatch):
    directory = save(tmp_path / "plain")
    monkeypatch.setattr(type(tiny_model()), "_supports_sdpa", False)
    loaded = load(directory)
    assert loaded.origins["attention"].startswith("eager")
    assert any("eager" in notice for notice in loaded.notices)
    assert loaded.model.config._attn_implementation == "eager"


# --- the Hub ---------------------------------------------------------------------------------------


def hub_error(kind: type[Exception]) -> Exception:
    if issubclass(kind, errors.HfHubHTTPError):
        return kind("no", response=httpx.Response(404, request=httpx.Request("GET", "https://example.org")))
    return kind("no")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "is gated.*hf auth login"),
        (errors.RepositoryNotFoundError, "neither a local directory nor a model on the Hub"),
        (errors.LocalEntryNotFoundError, "the Hub cannot be reached.*Connect"),
        (errors.HfHubHTTPError, "The Hub refused"),
        (httpx.ConnectError, "could not be downloaded"),
        (OSError, "could not be downloaded"),
    ],
)
def test_what_the_hub_answers_becomes_advice(monkeypatch, kind, message):
    offline = errors.LocalEntryNotFoundError("not cached")
    monkeypatch.setattr(published, "snapshot_download", Mock(side_effect=[offline, hub_error(kind)]))
    with pytest.raises(MarsError, match=message):
        load("someone/something")


def test_what_is_cached_loads_with_no_network(tmp_path, monkeypatch):
    repository = tmp_path / "models--someone--tiny-blk8"
    revision = "0123456789" * 4
    publish(repository / "snapshots" / revision, tiny_model(kind="qwen2"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    here = functools.partial(huggingface_hub.snapshot_download, cache_dir=tmp_path)
    monkeypatch.setattr(published, "snapshot_download", here)
    monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=AssertionError("went to the network")))
    loaded = load("someone/tiny-blk8")
    assert loaded.block_size == 8 and loaded.origins["weights"] == "someone/tiny-blk8 from the Hub"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_copy_of_the_default_says_what_to_delete(tmp_path, monkeypatch, file):
    base = save(tmp_path / "base")
    (base / file).write_bytes(b"\x00" * (base / file).stat().st_size)
    monkeypatch.setattr(default_model, "ensure_default_base", lambda: base)
    with pytest.raises(MarsError, match=f"delete the directory {base} and start again"):
        load("default")
    with pytest.raises(MarsError) as caught:
        load(base)
    assert "delete" not in str(caught.value)


def test_a_prompt_that_is_too_long_is_not_called_an_indexing_error(tmp_path, caplog):
    tokenizer = load(save(tmp_path / "base")).tokenizer
    tokenizer.model_max_length = 4
    transformers_logger = logging.getLogger("transformers")
    transformers_logger.addHandler(caplog.handler)
    try:
        tokenizer("a long text")
    finally:
        transformers_logger.removeHandler(caplog.handler)
    assert "Token indices" not in caplog.text


def test_merging_an_adapter_warns_of_nothing(tmp_path):
    base = save(tmp_path / "base")
    save_adapter(tmp_path / "adapter", tiny_model(), {"block_size": 4, "mask_token_id": 259})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(base, adapter=str(tmp_path / "adapter"))
    assert [warning for warning in caught if warning.category is FutureWarning] == []


# --- devices and memory ----------------------------------------------------------------------------


def test_a_device_that_is_not_here_is_refused_with_what_is():
    for name in ("cuda:63", "xpu", "nonsense"):
        with pytest.raises(MarsError, match="auto, cpu"):
            devices.pick_device(name)
    assert devices.pick_device("cpu")[0] == torch.device("cpu")


def test_a_dtype_is_taken_by_any_of_its_names():
    config = LlamaConfig()
    for name in ("bf16", "bfloat16"):
        assert devices.pick_dtype(name, torch.device("cpu"), config)[0] is torch.bfloat16
    with pytest.raises(MarsError, match="must be one of auto"):
        devices.pick_dtype("int8", torch.device("cpu"), config)


def test_the_cpu_dtype_is_measured_and_says_so(monkeypatch):
    seconds = {torch.float32: 1.0, torch.bfloat16: 0.5}
    monkeypatch.setattr(devices, "_SECONDS_TO_MEASURE", 0.0)
    monkeypatch.setattr(devices, "_pass_seconds", lambda weights, dtype: seconds[dtype])
    config = tiny_model().config
    dtype, why, notices = devices.pick_dtype("auto", torch.device("cpu"), config)
    assert (dtype, why, notices) == (torch.bfloat16, "bfloat16: 2.0× as fast as float32 here, measured", ())
    seconds[torch.bfloat16] = 2.0
    assert devices.pick_dtype("auto", torch.device("cpu"), config)[0] is torch.float32


def test_a_busy_machine_chooses_the_dtype_that_an_idle_one_does(monkeypatch):
    noise = itertools.cycle([3.0, 1.0, 5.0, 2.0, 1.0])
    seconds = {torch.float32: 0.9, torch.bfloat16: 1.0}  # float32 is faster, but not clearly
    monkeypatch.setattr(devices, "_pass_seconds", lambda weights, dtype: seconds[dtype] * next(noise))
    config = tiny_model().config
    assert devices.faster_cpu_dtype(config)[0] is torch.bfloat16
    seconds[torch.float32] = 0.8
    assert devices.faster_cpu_dtype(config) == (
        torch.float32,
        "float32: 1.2× as fast as bfloat16 here, measured",
    )


def test_a_gpu_without_bfloat16_falls_back_with_a_notice(monkeypatch):
    monkeypatch.setattr(devices, "_has_bfloat16", lambda device: False)
    dtype, why, notices = devices.pick_dtype("auto", torch.device("cuda"), LlamaConfig())
    assert dtype is torch.float16 and "no bfloat16" in why and len(notices) == 1


def test_huge_pages_keep_values_ties_and_separate_storages():
    model = tiny_model(hidden=256, layers=2)
    before = logits(model)
    moved = hugepages.to_huge_pages(model)
    torch.testing.assert_close(logits(model), before)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    if hugepages.available():
        assert moved > 0
        starts = {p.untyped_storage().data_ptr() for p in model.parameters()}
        assert len(starts) == len(list(model.parameters()))


@pytest.mark.parametrize("shape", [(3, 5), (1024, 1025), (0,)])
def test_an_empty_tensor_on_huge_pages_is_an_ordinary_tensor(shape):
    tensor = hugepages.empty(shape, torch.bfloat16)
    tensor.fill_(2)
    assert tensor.shape == torch.Size(shape) and tensor.dtype is torch.bfloat16
    assert tensor.is_contiguous() and bool((tensor == 2).all())


def test_without_huge_pages_the_model_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(hugepages, "available", lambda: False)
    assert hugepages.to_huge_pages(tiny_model(hidden=256)) == 0
    assert hugepages.empty((1024, 1024), torch.float32).shape == (1024, 1024)
