"""Attention by groups: the same numbers as transformers' sdpa, without a copy of the cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mars_core import DecodeSettings, Engine, Request
from mars_core.grouped import (
    NAME,
    SLOT_STEP,
    grouped_attention,
    rows_apart,
    use_grouped_attention,
)
from tests.tiny import tiny_loaded, tiny_model

KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma3")


@pytest.mark.parametrize(("rows", "width", "slots"), [(1, 1, 9), (1, 4, 9), (3, 1, 7), (3, 5, 12)])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_it_returns_what_transformers_returns(rows, width, slots, groups):
    torch.manual_seed(rows + width + groups)
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    query = torch.randn(rows, 2 * groups, width, 8)
    key, value = torch.randn(rows, 2, slots, 8), torch.randn(rows, 2, slots, 8)
    mask = torch.rand(rows, 1, width, slots) > 0.3
    mask[..., 0] = True
    for given in (mask, None) if width == 1 else (mask,):
        ours, _ = grouped_attention(module, query, key, value, given, scaling=0.3)
        theirs, _ = sdpa_attention_forward(module, query, key, value, given, scaling=0.3)
        torch.testing.assert_close(ours, theirs)


def test_a_new_mask_is_not_mistaken_for_the_last_one():
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    query, key, value = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    for seed in range(4):
        torch.manual_seed(seed)
        mask = torch.rand(1, 1, 3, 5) > 0.5
        mask[..., 0] = True
        ours, _ = grouped_attention(module, query, key, value, mask)
        theirs, _ = sdpa_attention_forward(module, query, key, value, mask)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_answers_are_the_same_in_every_window(kind):
    def answers(loaded) -> list[list[int]]:
        engine, out = Engine(loaded), []
        for how in ({"mode": "ar"}, {"threshold": 0.2}, {"threshold": 1.0, "verify": True, "layout": "full"}):
            settings = DecodeSettings(max_new_tokens=20, ignore_eos=True, **how)
            events = engine.stream(Request([5, 60, 61, 62, 9, 33], settings))
            out.append([choice.id for event in events for choice in event.committed])
        return out

    plain, grouped = tiny_loaded(kind=kind), tiny_loaded(kind=kind)
    assert use_grouped_attention(grouped.model)
    assert grouped.model.config._attn_implementation == NAME
    assert answers(grouped) == answers(plain)


def test_generate_works_on_such_a_model_with_padding_too():
    plain, grouped = tiny_model(), tiny_model()
    use_grouped_attention(grouped)
    ids = torch.tensor([[0, 0, 5, 60, 61], [7, 8, 9, 10, 11]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = dict(attention_mask=mask, do_sample=False, max_new_tokens=8, pad_token_id=0)
    assert torch.equal(grouped.generate(ids, **options), plain.generate(ids, **options))


def test_a_model_with_other_attention_is_left_alone():
    model = tiny_model(attn_implementation="eager")
    assert not use_grouped_attention(model)
    assert model.config._attn_implementation == "eager"


def test_rows_of_very_different_lengths_say_what_they_say_alone():
    plain, grouped = tiny_loaded(), tiny_loaded()
    use_grouped_attention(grouped.model)
    prompts = [[5, 60, 61], list(range(10, 250)) + [7] * 160, [9, 33, 5, 5]]
    settings = DecodeSettings(threshold=1.0, verify=True, layout="full", max_new_tokens=16, ignore_eos=True)

    def tokens(events) -> list[int]:
        return [choice.id for event in events for choice in event.committed]

    alone = [tokens(Engine(plain).stream(Request(prompt, settings))) for prompt in prompts]
    engine = Engine(grouped)
    streams = [engine.stream(Request(prompt, settings)) for prompt in prompts]
    first = [next(stream) for stream in streams]
    calls = []
    original = grouped.model.forward

    def watched(*args, **kwargs):
        calls.append(kwargs["row_ends"])
        return original(*args, **kwargs)

    grouped.model.forward = watched
    together = [tokens([event, *stream]) for event, stream in zip(first, streams, strict=True)]
    assert together == alone
    shared = [ends for ends in calls if len(ends) == 3]
    assert shared and all(rows_apart(ends) for ends in shared), "each row by itself"
    assert all(end % SLOT_STEP == 0 for ends in shared for end in ends)
