"""Packed weights: the same results from faster matrix kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mars_core import DecodeSettings, Engine, Request, load_model
from mars_core.packed import Packed, PackedLinear, PackedPart, can_pack, pack_weights
from tests.test_models import save
from tests.tiny import KINDS, tiny_loaded, tiny_model

pytestmark = pytest.mark.skipif(not can_pack(torch.float32), reason="no oneDNN kernels in this PyTorch")
PROMPT = [5, 60, 61, 62, 9, 33]


def logits(model: nn.Module, ids: list[int] = PROMPT) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits


def tokens(loaded, **settings) -> list[int]:
    how = DecodeSettings(max_new_tokens=24, ignore_eos=True, **settings)
    return [choice.id for event in Engine(loaded).stream(Request(PROMPT, how)) for choice in event.committed]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_model_gives_the_same_logits_and_tokens(kind, tied):
    loaded, packed = tiny_loaded(kind=kind, tied=tied), tiny_loaded(kind=kind, tied=tied)
    assert pack_weights(packed.model) == 2 * 7 + 1, "every layer, and the head"
    torch.testing.assert_close(logits(packed.model), logits(loaded.model), rtol=1e-4, atol=1e-4)
    assert tokens(packed, mode="ar") == tokens(loaded, mode="ar")
    verified = dict(verify=True, threshold=1.0, layout="full")
    assert tokens(packed, **verified) == tokens(loaded, mode="ar")


def test_biases_are_kept():
    plain = tiny_model(kind="qwen2", seed=3)
    layers = [
        module for module in plain.modules() if isinstance(module, nn.Linear) and module.bias is not None
    ]
    assert layers, "this family has biases"
    for layer in layers:
        layer.bias.data.normal_()
    before = logits(plain)
    pack_weights(plain)
    torch.testing.assert_close(logits(plain), before, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="no bfloat16 kernels")
def test_bfloat16_products_are_the_same_bits():
    layers = [nn.Linear(576, width, bias=False, dtype=torch.bfloat16) for width in (576, 192, 192)]
    packed = Packed(layers)
    for rows in (1, 4, 9):
        inputs = torch.randn(rows, 576).bfloat16()
        for number, layer in enumerate(layers):
            assert torch.equal(packed.part(inputs, number), layer(inputs))


def test_parts_are_right_in_any_order_of_calls():
    layers = [nn.Linear(8, width) for width in (4, 2, 6)]
    parts = [PackedPart(Packed(layers), 0)]
    parts += [PackedPart(parts[0].packed, number) for number in (1, 2)]
    first, second = torch.randn(3, 8), torch.randn(3, 8)
    for inputs, number in [
        (first, 1),
        (second, 0),
        (first, 2),
        (second, 1),
        (first, 0),
        (first, 0),
        (second, 2),
    ]:
        with torch.no_grad():
            torch.testing.assert_close(parts[number](inputs), layers[number](inputs))


def test_nothing_is_held_after_the_last_part():
    packed = Packed([nn.Linear(8, 4), nn.Linear(8, 4)])
    inputs = torch.randn(1, 8)
    packed.part(inputs, 0), packed.part(inputs, 1)
    assert packed._held is None


def test_layers_that_do_more_than_multiply_are_left_alone():
    class Scaled(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(inputs)

    model = nn.Module()
    model.q_proj, model.k_proj, model.v_proj = Scaled(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    model.hooked = nn.Linear(4, 4)
    model.hooked.register_forward_hook(lambda module, inputs, output: output + 1)
    assert pack_weights(model) == 2
    assert isinstance(model.q_proj, Scaled) and isinstance(model.hooked, nn.Linear)
    assert isinstance(model.k_proj, PackedLinear) and isinstance(model.v_proj, PackedLinear)


def test_weights_that_are_packed_are_not_kept_twice():
    model = tiny_model(tied=True)
    embedding = model.get_input_embeddings().weight
    pack_weights(model)
    kept = list(model.parameters())
    assert any(parameter is embedding for parameter in kept), "what the head was tied to stays"
    assert all(parameter.dim() == 1 for parameter in kept if parameter is not embedding), "and norms"


def test_load_model_packs_where_asked_and_says_so(tmp_path):
    save(tmp_path / "tiny")
    plain = load_model(str(tmp_path / "tiny"), device="cpu", dtype="float32")
    packed = load_model(str(tmp_path / "tiny"), device="cpu", dtype="float32", packed=True)
    assert plain.origins["weights_layout"].startswith("row-major")
    assert packed.origins["weights_layout"].startswith("packed")
    assert any(isinstance(module, PackedPart) for module in packed.model.modules())
    assert tokens(packed, mode="ar") == tokens(plain, mode="ar")


def test_a_dtype_without_kernels_is_left_as_it_is():
    assert not can_pack(torch.float16)


def test_a_single_position_that_rounds_otherwise_alone_is_fed_twice():
    layer = nn.Linear(8, 4)
    packed = Packed([layer])
    fed = []
    packed._multiply = lambda inputs: fed.append(inputs.shape) or layer(inputs)
    for twice in (True, False):
        packed._twice = twice
        for shape in [(1, 1, 8), (1, 8), (1, 3, 8)]:
            inputs = torch.randn(shape)
            torch.testing.assert_close(packed.product(inputs), layer(inputs))
    assert fed == [(2, 1, 1, 8), (2, 1, 8), (1, 3, 8), (1, 1, 8), (1, 8), (1, 3, 8)]


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="no bfloat16 kernels")
def test_a_position_alone_and_among_others_has_the_same_product():
    packed = Packed([nn.Linear(1536, 576, bias=False, dtype=torch.bfloat16)])
    inputs = torch.randn(64, 1536).bfloat16()
    alone = torch.cat([packed.product(row[None]) for row in inputs])
    assert torch.equal(packed.product(inputs), alone)
