"""The objective: the lean implementation equals the plain one, and what is trained is what decoding does."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM

from mars_core.errors import MarsError
from mars_core.train.attention import attention_mask, block_mask, dense_mask
from mars_core.train.by_document import NAME as BY_DOCUMENT
from mars_core.train.by_document import use_attention_by_document
from mars_core.train.examples import Run, block_starts
from mars_core.train.inside import call_within, final_states, head_logits
from mars_core.train.objective import (
    Batch,
    Example,
    Losses,
    ObjectiveSettings,
    base_of_adapter,
    collate,
    frozen_base,
    lean_losses,
    plain_losses,
)
from mars_core.train.plain import two_stream_mask
from tests.tiny import KINDS, tiny_model

MASK = 259
EMBEDDING = "model.embed_tokens.weight"
Gradients = dict[str, torch.Tensor]


def settings(**changes: Any) -> ObjectiveSettings:
    return ObjectiveSettings(mask_token_id=MASK, **changes)


def chat(seed: int, length: int = 24) -> Example:
    """Random text of several turns: prompts of 1 to 5 tokens, answers of 1 to 9, a tail now and then."""
    draw = random.Random(seed)
    mask: list[bool] = []
    while len(mask) < length:
        mask += [False] * draw.randint(1, 5) + [True] * draw.randint(1, 9)
    mask += [False] * draw.randint(0, 2)
    return Example(tuple(draw.randrange(256) for _ in mask), tuple(mask), f"chat {seed}")


def answer(num_prompt: int, num_answer: int, seed: int = 0) -> Example:
    """One prompt, one answer."""
    draw = random.Random(seed)
    ids = tuple(draw.randrange(256) for _ in range(num_prompt + num_answer))
    return Example(ids, (False,) * num_prompt + (True,) * num_answer, f"answer {seed}")


def batch_of(chats: list[Example], chosen: ObjectiveSettings, seed: int = 0) -> Batch:
    return collate(chats, chosen, torch.Generator().manual_seed(seed))


def run(losses: Callable[..., Losses], model: nn.Module, *arguments: Any) -> tuple[Losses, Gradients]:
    """The losses, and every weight's gradient of the total."""
    model.zero_grad()
    result = losses(model, *arguments)
    result.total.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return result, grads


def in_small_chunks(*arguments: Any) -> Losses:
    """`lean_losses` a few labels at a time."""
    return lean_losses(*arguments, chunk_rows=7)


def assert_same(one: tuple[Losses, Gradients], other: tuple[Losses, Gradients], rtol: float = 1e-5) -> None:
    (losses, grads), (other_losses, other_grads) = one, other
    for name, value in vars(losses).items():
        torch.testing.assert_close(getattr(other_losses, name), value, rtol=rtol, atol=1e-12, msg=name)
    assert grads.keys() == other_grads.keys()
    for name, gradient in grads.items():
        # entries that cancel out to next to nothing are compared with the largest
        near = rtol * gradient.abs().max().item()
        torch.testing.assert_close(other_grads[name], gradient, rtol=rtol, atol=near, msg=name)


def assert_plain_equals_lean(model: nn.Module, batch: Batch, *arguments: Any, rtol: float = 1e-5) -> None:
    plain = run(plain_losses, model, batch, *arguments)
    assert_same(plain, run(in_small_chunks, model, batch, *arguments), rtol)


CHATS = [chat(seed, length) for seed, length in enumerate((40, 9, 17, 26, 5))]


@pytest.mark.parametrize("phase", ["random", "response", "absolute"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 5])
@pytest.mark.parametrize(("ar_weight", "soft_weight"), [(1.0, 0.0), (0.0, 0.8), (0.5, 1.0)])
def test_lean_equals_plain_in_losses_and_gradients(
    block_size: int, phase: Any, ar_weight: float, soft_weight: float
) -> None:
    chosen = settings(block_size=block_size, phase=phase, ar_weight=ar_weight, soft_weight=soft_weight)
    for seed in range(2):
        chats = [chat(10 * seed + number, 5 + 9 * number) for number in range(4)]
        assert_plain_equals_lean(tiny_model().double(), batch_of(chats, chosen, seed), chosen)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_document", [True, False])
def test_lean_equals_plain_on_every_kind_of_model(kind: str, tied: bool, by_document: bool) -> None:
    sliding = {} if kind in ("llama", "qwen3") else {"sliding_window": 6}
    if kind == "qwen2":
        sliding |= {"use_sliding_window": True, "max_window_layers": 1}
    if kind in ("gemma2", "gemma3"):
        sliding |= {"final_logit_softcapping": 2.0}
    chosen = settings(soft_weight=0.3, base_kl_weight=0.4)
    base = frozen_base(tiny_model(kind=kind, seed=9, **sliding).double())
    for stop in (False, True):
        chosen = settings(soft_weight=0.3, base_kl_weight=0.4, stop_clean_gradient=stop, offset_decay=0.6)
        model = tiny_model(kind=kind, tied=tied, **sliding).double()
        if by_document:
            use_attention_by_document(model)
        assert_plain_equals_lean(model, batch_of(CHATS, chosen), chosen, base)


ADAPTERS: dict[str, dict[str, Any]] = {
    "every linear layer": {"target_modules": "all-linear"},
    "mask row trained": {"target_modules": ["q_proj"], "trainable_token_indices": [MASK]},
    "head adapted": {"target_modules": ["q_proj", "lm_head"]},
    "head trained": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_lean_equals_plain_with_an_adapter_whose_base_is_the_teacher_of_the_clean_stream(
    adapter: str,
) -> None:
    config = LoraConfig(r=4, init_lora_weights=False, **ADAPTERS[adapter])
    model = get_peft_model(tiny_model(), config).double().eval()
    chosen = settings(base_kl_weight=0.5, soft_weight=0.5)
    assert_plain_equals_lean(model, batch_of(CHATS, chosen), chosen, base_of_adapter(model))


def test_the_base_of_an_adapter_leaves_frozen_weights_frozen() -> None:
    model = get_peft_model(tiny_model(), LoraConfig(r=4, target_modules=["q_proj"]))
    frozen = next(name for name, p in model.named_parameters() if p.requires_grad)
    model.get_parameter(frozen).requires_grad_(False)
    with base_of_adapter(model)():
        pass
    assert not model.get_parameter(frozen).requires_grad


def test_a_base_equal_to_the_model_leaves_no_clean_loss() -> None:
    model, chosen = tiny_model().double(), settings(base_kl_weight=1.0)
    losses, _ = run(lean_losses, model, batch_of(CHATS, chosen), chosen, frozen_base(model))
    assert losses.clean.item() == pytest.approx(0, abs=1e-6) and losses.noisy > 1


def test_the_mask_predicts_in_training_what_it_predicts_in_decoding() -> None:
    """Each block's masks against a plain forward of the text before the block and as many masks."""
    model, chosen = tiny_model(kind="qwen3").double(), settings(block_size=5)
    batch = batch_of(CHATS, chosen)
    columns, num_clean = batch.columns, batch.num_clean_columns
    at = (batch.noisy_at[0], batch.noisy_at[1] + num_clean)
    mask = attention_mask(model, columns, batch.input_ids.shape[1])
    states = final_states(model, batch.input_ids, columns.position, mask)
    trained = head_logits(model, states[at])
    numbers, positions = columns.document[at], columns.position[at]
    assert len(trained) == sum(int((d.response[1:] & d.response[:-1]).sum()) for d in batch.documents)
    for number, position, logits in zip(numbers.tolist(), positions.tolist(), trained, strict=True):
        document = batch.documents[number]
        start = int(document.blocks[position])
        fed = document.input_ids[:start].tolist() + [MASK] * (position + 1 - start)
        torch.testing.assert_close(logits, model(torch.tensor([fed])).logits[0, -1], rtol=1e-5, atol=1e-5)


def test_labels_are_the_tokens_behind_what_predicts_them() -> None:
    chosen = settings(block_size=4, phase="response")
    batch = batch_of([answer(3, 6)], chosen)
    ids = answer(3, 6).input_ids
    assert batch.input_ids.tolist() == [[*ids, *[MASK] * 5]]
    assert batch.columns.position[0, 9:].tolist() == [3, 4, 5, 6, 7]
    assert batch.columns.block[0, 9:].tolist() == [3, 3, 3, 3, 7]
    assert batch.labels.tolist() == [*ids[4:], ids[3]]  # the first token of the answer has no mask before it
    assert batch.clean_at.tolist() == [[0] * 6, [3, 4, 5, 6, 7, 2]]
    assert batch.offsets.tolist() == [2, 3, 4, 5, 2]


def test_fine_tuning_without_masks_equals_the_loss_of_transformers() -> None:
    model, chosen = tiny_model().double(), settings(objective="ar")
    for losses_of in (plain_losses, lean_losses):
        losses, grads = run(losses_of, model, batch_of([answer(7, 12)], chosen), chosen)
        labels = torch.tensor([[-100] * 7 + list(answer(7, 12).input_ids[7:])])
        model.zero_grad()
        expected = model(torch.tensor([answer(7, 12).input_ids]), labels=labels).loss
        expected.backward()
        assert losses.total.item() == pytest.approx(expected.item(), rel=1e-6)  # theirs is in 32 bits
        gradient = model.get_input_embeddings().weight.grad
        torch.testing.assert_close(grads[EMBEDDING], gradient, rtol=1e-4, atol=1e-6)
        assert losses.num_noisy == 0 and losses.num_clean == 12 and losses.noisy == 0


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_documents_of_a_batch_do_not_see_each_other(kind: str) -> None:
    model, chosen = tiny_model(kind=kind, sliding_window=8).double(), settings(phase="response")
    together = batch_of(CHATS, chosen)
    assert len(together.input_ids) < len(CHATS)  # some do share a row
    alone = [batch_of([one], chosen) for one in CHATS]
    sums = [lean_losses(model, batch, chosen).total * batch.num_labels for batch in alone]
    total = lean_losses(model, together, chosen).total * together.num_labels
    torch.testing.assert_close(total, sum(sums), rtol=1e-6, atol=0)


def test_rows_are_as_short_as_the_longest_document_where_attention_is_dear(short_rows: None) -> None:
    chats = [answer(20, 9), answer(4, 3), answer(9, 4)]
    assert batch_of(chats, settings()).input_ids.shape == (2, 29 + 8)


def test_documents_that_fill_a_row_together_leave_no_padding() -> None:
    batch = batch_of([answer(20, 9), answer(4, 3), answer(9, 4)], settings())
    assert batch.input_ids.shape == (1, (29 + 7 + 13) + (8 + 2 + 3))
    assert batch.num_tokens == 29 + 7 + 13 and batch.num_labels == 9 + 3 + 4


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention so dear that rows are short, with padding behind both streams."""
    monkeypatch.setattr("mars_core.train.batch.EVEN_LENGTH", 0.001)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("by_document", [True, False])
def test_padding_changes_nothing(short_rows: None, kind: str, stop: bool, by_document: bool) -> None:
    chosen = settings(soft_weight=0.5, stop_clean_gradient=stop)
    batch = batch_of(CHATS, chosen)
    assert len(batch.input_ids) > 1 and (batch.columns.document == -1).any()
    model = tiny_model(kind=kind).double()
    if by_document:
        use_attention_by_document(model)
    assert_plain_equals_lean(model, batch, chosen)


def test_attention_by_document_is_what_runs_and_products_of_different_documents_are_never_made() -> None:
    model, batch = tiny_model(), batch_of(CHATS, settings())
    use_attention_by_document(model)
    assert model.config._attn_implementation == BY_DOCUMENT
    mask = attention_mask(model, batch.columns, batch.input_ids.shape[1])
    products = sum(part.num_queries * part.num_keys for part in mask.parts.parts)
    dense = dense_mask(batch.columns, batch.input_ids.shape[1])
    assert int(dense.sum()) < products < dense.numel() / 2


def test_offset_decay_weighs_far_drafts_less_down_to_the_first_alone() -> None:
    model, batch = tiny_model().double(), batch_of([answer(3, 9)], settings(phase="response"))
    alike = lean_losses(model, batch, settings(phase="response"))
    first = lean_losses(model, batch, settings(phase="response", offset_decay=0.0))
    half = lean_losses(model, batch, settings(phase="response", offset_decay=0.5))
    assert first.noisy < half.noisy < alike.noisy
    weights = settings(offset_decay=0.5).weights_of(torch.tensor([1, 2, 3, 4]))
    assert weights.tolist() == [1, 1, 0.5, 0.25]


def test_what_stands_behind_the_last_answer_is_not_fed() -> None:
    short = answer(4, 5)
    longer = Example((*short.input_ids, 7, 8), (*short.loss_mask, False, False), "with a tail")
    chosen = settings(phase="response")
    assert batch_of([longer], chosen).input_ids.tolist() == batch_of([short], chosen).input_ids.tolist()


def test_losses_do_not_depend_on_the_size_of_chunks() -> None:
    model, chosen = tiny_model().double(), settings(soft_weight=0.5)
    batch = batch_of(CHATS, chosen)
    whole = run(lean_losses, model, batch, chosen)
    for rows in (1, 10_000):
        assert_same(whole, run(lambda *a, n=rows: lean_losses(*a, chunk_rows=n), model, batch, chosen))


def test_without_gradients_the_figures_are_the_same() -> None:
    model, chosen = tiny_model().double(), settings(soft_weight=0.5)
    batch = batch_of(CHATS, chosen)
    trained, _ = run(lean_losses, model, batch, chosen)
    with torch.no_grad():
        evaluated = lean_losses(model, batch, chosen)
    assert not evaluated.total.requires_grad
    assert_same((trained, {}), (evaluated, {}))


def test_batches_of_a_step_add_up_when_divided_by_the_labels_of_the_step() -> None:
    model, chosen = tiny_model().double(), settings(phase="response")
    whole = run(lean_losses, model, batch_of(CHATS, chosen), chosen)
    parts = [batch_of(CHATS[:2], chosen), batch_of(CHATS[2:], chosen)]
    count = sum(part.num_labels for part in parts)
    model.zero_grad()
    totals = []
    for part in parts:
        total = lean_losses(model, part, chosen, num_labels=count).total
        total.backward()
        totals.append(total.detach())
    torch.testing.assert_close(sum(totals), whole[0].total.detach(), rtol=1e-6, atol=0)
    gradient = model.get_input_embeddings().weight.grad
    torch.testing.assert_close(gradient, whole[1][EMBEDDING], rtol=1e-5, atol=1e-6)


def test_total_is_noisy_and_weighted_clean_loss() -> None:
    chosen = settings(ar_weight=0.25)
    losses, _ = run(lean_losses, tiny_model().double(), batch_of(CHATS, chosen), chosen)
    torch.testing.assert_close(losses.total.detach(), losses.noisy + 0.25 * losses.clean)
    assert losses.num_noisy == losses.num_clean == batch_of(CHATS, chosen).num_labels


def test_stopping_the_clean_gradient_changes_gradients_and_no_loss() -> None:
    model = tiny_model().double()
    flowing, stopped = settings(), settings(stop_clean_gradient=True)
    one = run(lean_losses, model, batch_of(CHATS, flowing), flowing)
    other = run(lean_losses, model, batch_of(CHATS, stopped), stopped)
    torch.testing.assert_close(one[0].total, other[0].total, rtol=1e-6, atol=0)
    name = "model.layers.0.self_attn.v_proj.weight"
    assert not torch.allclose(one[1][name], other[1][name], rtol=1e-2)
    with pytest.raises(MarsError, match="gradient checkpointing"):
        model.activation_checkpointing_enable()
        lean_losses(model.train(), batch_of(CHATS, stopped), stopped)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_step_that_only_reads_the_clean_stream(kind: str, tied: bool) -> None:
    chosen = settings(soft_weight=0.3, base_kl_weight=0.4, offset_decay=0.6, clean_share=0.25)
    batch = dataclasses.replace(batch_of([*CHATS, answer(3, 1)], chosen), trains_clean=False)
    model = tiny_model(kind=kind, tied=tied).double()
    assert_plain_equals_lean(model, batch, chosen)  # without the base: it is not asked
    losses, grads = run(lean_losses, model, batch, chosen)
    assert (losses.num_clean, losses.num_noisy) == (0, batch.num_labels)
    # what the clean stream says of the noisy one's labels is known still
    assert losses.trials.sum() == batch.noisy_at.shape[1] - (batch.offsets == 5).sum()
    embedding = grads["model.embed_tokens.weight"]
    if not tied:
        fed = sorted(embedding.abs().sum(-1).nonzero()[:, 0].tolist())
        assert fed == [MASK], "gradients reach the masks alone"


def test_a_step_that_trains_the_clean_stream_weighs_it_as_much_more() -> None:
    model = tiny_model().double()
    rare, heavy = settings(clean_share=0.25, ar_weight=0.5), settings(ar_weight=2.0)
    batch = batch_of(CHATS, rare)
    assert batch.trains_clean
    assert_same(run(lean_losses, model, batch, heavy), run(lean_losses, model, batch, rare))
    assert_plain_equals_lean(model, batch, rare)


def test_gradient_checkpointing_changes_nothing() -> None:
    model, chosen = tiny_model().double().train(), settings(soft_weight=0.5)
    batch = batch_of(CHATS, chosen)
    one = run(lean_losses, model, batch, chosen)
    model.activation_checkpointing_enable()
    assert_same(one, run(lean_losses, model, batch, chosen))


@pytest.mark.parametrize("mixed", [True, False], ids=["autocast", "weights in bf16"])
def test_bf16_stays_near_fp32(mixed: bool) -> None:
    chosen = settings(soft_weight=0.5)
    batch = batch_of(CHATS, chosen)
    exact, _ = run(lean_losses, tiny_model(), batch, chosen)
    model = tiny_model() if mixed else tiny_model().bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        losses, grads = run(lean_losses, model, batch, chosen)
    assert losses.total.dtype == torch.float32
    torch.testing.assert_close(losses.total, exact.total, rtol=0.02, atol=0)
    assert all(gradient.isfinite().all() for gradient in grads.values())


def test_hits_are_counted_by_offset() -> None:
    """Before and after the model learns the one answer there is by heart."""
    chosen = settings(block_size=4, phase="response")
    batch = batch_of([answer(3, 9)], chosen)
    losses, _ = run(lean_losses, tiny_model(), batch, chosen)
    assert losses.trials.tolist() == [2, 2, 2]  # masks at 3 … 10, two of which predict offset 5
    learnt = tiny_model()
    optimizer = torch.optim.Adam(learnt.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        losses = lean_losses(learnt, batch, chosen)
        losses.total.backward()
        optimizer.step()
    assert losses.label_hits.tolist() == losses.clean_hits.tolist() == [2, 2, 2]


def test_one_token_blocks_have_no_offset_to_count() -> None:
    chosen = settings(block_size=1)
    losses, _ = run(lean_losses, tiny_model(), batch_of(CHATS, chosen), chosen)
    assert losses.trials.shape == (0,) and losses.total.isfinite()


def test_answers_of_one_token_have_no_mask_that_predicts() -> None:
    chosen = settings(soft_weight=0.5)
    batch = batch_of([answer(3, 1), answer(5, 1)], chosen)
    assert batch.noisy_at.shape == (2, 0)
    assert_plain_equals_lean(tiny_model().double(), batch, chosen)
    stopped = settings(stop_clean_gradient=True)
    assert_plain_equals_lean(tiny_model().double(), batch, stopped)


@pytest.mark.parametrize(
    ("first", "expected"),
    [(4, [5, 5, 5, 5, 9, 9, 9]), (2, [5, 5, 7, 7, 7, 7, 11]), (1, [5, 6, 6, 6, 6, 10, 10])],
)
def test_blocks_of_an_answer(first: int, expected: list[int]) -> None:
    assert block_starts(Run(5, 12, response=True), 4, first) == expected
    assert block_starts(Run(5, 9, response=False), 4, first) == [5, 5, 5, 5]


def test_phases() -> None:
    def starts(phase: Any, seed: int = 0) -> list[int]:
        return batch_of([answer(5, 7)], settings(phase=phase), seed).documents[0].blocks[5:].tolist()

    assert starts("response") == [5, 5, 5, 5, 9, 9, 9]
    assert starts("absolute") == [5, 5, 5, 8, 8, 8, 8]
    assert {tuple(starts("random", seed)) for seed in range(40)} == {
        tuple(block_starts(Run(5, 12, response=True), 4, first)) for first in (1, 2, 3, 4)
    }
    assert starts("random", 3) == starts("random", 3)


def test_both_masks_follow_the_same_rules() -> None:
    """Lean's, on the noisy columns that it has, against plain's; and FlexAttention's tiles against lean's."""
    from torch.nn.attention.flex_attention import create_mask

    chosen = settings(block_size=3)
    batch = batch_of([chat(1, 40)], chosen)
    (document,) = batch.documents
    length = len(document.input_ids)
    kept = [*range(length, 2 * length), *batch.columns.position[0, length:].tolist()]
    dense = dense_mask(batch.columns, len(kept))
    assert torch.equal(dense[0, 0], two_stream_mask(document.blocks)[kept][:, kept])
    packed = batch_of(CHATS, chosen).columns
    for num_queries in (packed.noisy.shape[1], 11):
        for window in (None, 5):
            dense = dense_mask(packed, num_queries, window)
            blocks = block_mask(packed, num_queries, window)
            rows, _, queries, keys = dense.shape
            assert torch.equal(create_mask(blocks.mask_mod, rows, 1, queries, keys, device="cpu"), dense)
            assert blocks.shape == dense.shape


@pytest.mark.parametrize(
    "config",
    [
        (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 3.0}),
        (CohereConfig, CohereForCausalLM, {"logit_scale": 0.2}),
    ],
)
def test_scaled_logits_are_the_models_own(config: tuple[Any, Any, dict[str, float]]) -> None:
    config_class, model_class, scale = config
    sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    model = model_class(config_class(**sizes, num_attention_heads=2, num_key_value_heads=2, **scale)).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    states = model.get_decoder()(ids).last_hidden_state
    torch.testing.assert_close(head_logits(model, states[0]), model(ids).logits[0])
    torch.testing.assert_close(head_logits(model, states[0]), model(ids).logits[0])  # nothing was left behind


def test_work_inside_the_forward_passes_the_models_hooks_once_and_leaves_it_as_it_was() -> None:
    model, seen = tiny_model(), []
    model.register_forward_hook(lambda *a: seen.append(1))
    forward = model.forward
    assert call_within(model, lambda: (torch.ones(1),))[0] == 1 and seen == [1]
    with pytest.raises(ZeroDivisionError):
        call_within(model, lambda: 1 / 0)
    assert model.forward == forward


def test_what_cannot_work_is_refused_in_words() -> None:
    chosen = settings()
    no_answer = Example((1, 2, 3), (False,) * 3, "train.jsonl:17")
    with pytest.raises(MarsError, match="train.jsonl:17"):
        collate([no_answer], chosen)
    with pytest.raises(MarsError, match="very first"):
        collate([Example((1, 2), (True, False), "x")], chosen)
    with pytest.raises(MarsError, match="at least one"):
        collate([], chosen)
    with pytest.raises(MarsError, match="39 tokens, and at most 30"):
        collate([answer(20, 9), answer(5, 5)], chosen, max_tokens=30)
    with pytest.raises(MarsError, match="3 token ids but 2"):
        Example((1, 2, 3), (True, True), "x")
    needs_base = settings(base_kl_weight=0.5)
    for losses_of in (plain_losses, lean_losses):
        with pytest.raises(MarsError, match="base_kl_weight"):
            losses_of(tiny_model(), batch_of(CHATS, needs_base), needs_base)
    with pytest.raises(MarsError, match="no adapter"):
        base_of_adapter(tiny_model())
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(MarsError, match="flash_attention_2"):
        lean_losses(model, batch_of(CHATS, chosen), chosen)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "sft"}, {"phase": "any"}, {"block_size": 0}, {"block_size": 65}, {"block_size": True},
        {"ar_weight": -1}, {"ar_weight": float("nan")}, {"soft_weight": 1.1}, {"base_kl_weight": "1"},
        {"stop_clean_gradient": 1}, {"mask_token_id": -1}, {"clean_share": 0}, {"clean_share": 1.5},
        {"clean_share": 0.5, "objective": "ar"},
    ],
)  # fmt: skip
def test_settings_that_are_not_allowed(changes: dict[str, Any]) -> None:
    with pytest.raises(MarsError, match=next(iter(changes))):
        ObjectiveSettings(**({"mask_token_id": MASK} | changes))
