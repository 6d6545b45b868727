"""The block-level cache against an oracle without any cache, and against forwards counted by hand."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars_core.block_cache import BlockResult, block_generate
from mars_core.errors import MarsError
from mars_core.loaded import LoadedModel
from mars_core.reference import reference_generate
from mars_core.settings import DecodeSettings
from tests.scripted import MASK, Script, always, never, saying, scripted_loaded
from tests.tiny import tiny_loaded

PROMPTS = [[257, 72, 105, 99, 258, 10, 11], [65], [257, 40, 41] * 7, [80, 81, 82, 83]]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"kind": "llama"},
    "llama eager": {"kind": "llama", "attn_implementation": "eager"},
    "qwen2": {"kind": "qwen2", "tied": False},
    "qwen3": {"kind": "qwen3"},
    "mistral sliding": {"kind": "mistral", "sliding_window": 5},
    "gemma3 hybrid": {
        "kind": "gemma3", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5
    },
}  # fmt: skip


@functools.lru_cache
def model(name: str = "llama", seed: int = 0) -> LoadedModel:
    return tiny_loaded(seed=seed, **MODELS[name])


@torch.inference_mode()
def oracle(
    loaded: LoadedModel, prompt: list[int], options: DecodeSettings, cache_block: int
) -> list[list[list[int]]]:
    """One row, no cache: for each block what each of its forwards commits.

    As the paper has it, masks stand for all the rest of the block, even those that nothing can come of.
    """
    blocks: list[list[list[int]]] = []
    tokens: list[int] = []
    while len(tokens) < options.max_new_tokens:
        in_block = len(tokens) % cache_block
        num_masks = cache_block - in_block if in_block else 0
        ids = torch.tensor([prompt + tokens + [MASK] * num_masks])
        logits = loaded.model(input_ids=ids, use_cache=False).logits[0, -1 - num_masks :]
        logits[:, list(loaded.suppressed_token_ids)] = -math.inf
        most = min(options.block_size, options.max_new_tokens - len(tokens), num_masks or 1)
        if in_block == 0:
            blocks.append([])
        blocks[-1].append([])
        for offset, p in enumerate(logits[:most].softmax(-1)):
            if offset and not sure(p, options):
                break
            tokens.append(int(p.argmax()))
            blocks[-1][-1].append(tokens[-1])
            if tokens[-1] in (*options.stop_token_ids, *loaded.stop_token_ids):
                return blocks
    return blocks


def sure(p: torch.Tensor, options: DecodeSettings) -> bool:
    """By the definition of each metric; τ = 1 is surer than anything."""
    first, second = p.sort(descending=True).values[:2].tolist()
    entropy = -float((p[p > 0] * p[p > 0].log()).sum())
    if options.metric == "entropy":
        return entropy <= options.threshold
    confidence = first if options.metric == "probability" else first - second
    return options.threshold < 1 and confidence >= options.threshold


def flat(blocks: list[list[list[int]]]) -> tuple[int, ...]:
    return tuple(token for block in blocks for forward in block for token in forward)


def counted(rows: list[list[list[list[int]]]]) -> tuple[int, int]:
    """Forwards of a batch of such rows, and the extending ones: in each block it waits for the slowest."""
    num_blocks = max(len(blocks) for blocks in rows)
    slowest = [max(len(blocks[i]) for blocks in rows if i < len(blocks)) for i in range(num_blocks)]
    return sum(slowest), num_blocks - 1


def generate(
    loaded: LoadedModel, prompts: list[list[int]] = PROMPTS, cache_block: int = 6, **options: Any
) -> BlockResult:
    options = {"max_new_tokens": 20, "threshold": 0.2, **options}
    return block_generate(loaded, prompts, DecodeSettings(**options), cache_block=cache_block)


def check_against_oracle(
    loaded: LoadedModel, prompts: list[list[int]], options: DecodeSettings, cache_block: int
) -> None:
    result = block_generate(loaded, prompts, options, cache_block=cache_block)
    rows = [oracle(loaded, prompt, options, cache_block) for prompt in prompts]
    assert result.tokens == tuple(flat(blocks) for blocks in rows)
    assert (result.num_forwards, result.num_extending_forwards) == counted(rows)


@pytest.mark.parametrize("name", MODELS)
def test_a_ragged_batch_equals_the_oracle_on_every_kind_of_model(name):
    options = DecodeSettings(threshold=0.2, max_new_tokens=20)
    check_against_oracle(model(name), PROMPTS, options, cache_block=6)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 4),
    prompts=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), min_size=1, max_size=4),
    block_size=st.integers(1, 6),
    cache_block=st.integers(1, 12),
    gauge=st.sampled_from(
        [("probability", 0.0), ("probability", 0.15), ("probability", 0.4), ("probability", 1.0)]
        + [("margin", 0.05), ("margin", 1.0), ("entropy", 0.0), ("entropy", 3.5)]
    ),
    max_new_tokens=st.integers(1, 17),
)
def test_any_batch_equals_the_oracle_in_tokens_and_forwards(
    seed, prompts, block_size, cache_block, gauge, max_new_tokens
):
    metric, threshold = gauge
    options = DecodeSettings(
        metric=metric, threshold=threshold, block_size=block_size, max_new_tokens=max_new_tokens
    )
    check_against_oracle(model(seed=seed), prompts, options, cache_block)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cache_block", [4, 7, 100])
def test_a_batch_gives_each_row_what_it_gets_alone(cache_block, temperature):
    options: dict[str, Any] = dict(cache_block=cache_block, temperature=temperature, seed=3, top_k=20)
    together = generate(model(), **options)
    alone = [generate(model(), [prompt], **options).tokens[0] for prompt in PROMPTS]
    assert together.tokens == tuple(alone)
    assert generate(model(), PROMPTS[::-1], **options).tokens == together.tokens[::-1]


@pytest.mark.parametrize("one_token", [{"threshold": 1.0}, {"mode": "ar"}, {"block_size": 1}])
@pytest.mark.parametrize("cache_block", [1, 5, 64])
def test_one_token_mode_equals_ar_token_for_token_in_as_many_forwards(cache_block, one_token):
    result = generate(model(), cache_block=cache_block, **one_token)
    ar = DecodeSettings(mode="ar", max_new_tokens=20)
    expected = [flat([reference_generate(model(), prompt, ar)]) for prompt in PROMPTS]
    assert result.tokens == tuple(expected)
    assert result.num_forwards == max(len(row) for row in expected)


def sure_before(limit: int) -> Script:
    """Short prompts make fast rows, long ones slow rows."""
    return lambda position, masked: (always() if position < limit else never())(position, masked)


def test_a_fast_row_waits_for_a_slow_one_at_each_block_boundary():
    loaded = scripted_loaded(sure_before(50))
    fast, slow = [65] * 10, [65] * 100
    result = generate(loaded, [fast, slow], cache_block=5, block_size=3, max_new_tokens=8, threshold=0.9)
    assert [len(row) for row in result.tokens] == [8, 8]
    # one block of 5, one of 3 as the budget ends it; (tokens, masks) fed to each row of each forward
    assert [[shape(row) for row in forward] for forward in loaded.model.fed] == [
        [(10, 0), (100, 0)],  # the prompts: one token each
        [(1, 2), (1, 2)],  # fast 3, slow 1
        [(4, 0), (2, 2)],  # fast fills the block with 1
        [(3, 1)],  # and waits
        [(4, 0)],
        [(5, 0), (5, 0)],  # the block once more, which commits the next one's first token
        [(1, 1), (1, 1)],  # fast 2, its last
        [(2, 0)],
    ]
    assert (result.num_forwards, result.num_extending_forwards) == (8, 1)


def shape(row: list[tuple[int, int]]) -> tuple[int, int]:
    """Real tokens and masks of what a row was fed."""
    num_masks = sum(token_id == MASK for _, token_id in row)
    return len(row) - num_masks, num_masks


def test_a_block_is_fed_from_its_first_token_on_at_its_own_positions():
    loaded = scripted_loaded(never())
    generate(loaded, [[65] * 3], cache_block=3, block_size=2, max_new_tokens=6, threshold=0.9)
    positions = [[position for position, _ in forward[0]] for forward in loaded.model.fed]
    assert positions == [[0, 1, 2], [3, 4], [3, 4], [3, 4, 5], [6, 7], [6, 7]]


def test_masks_that_are_always_sure_still_commit_no_more_than_b_tokens_a_forward():
    loaded = scripted_loaded(always())
    result = generate(loaded, [[65]], cache_block=16, block_size=4, max_new_tokens=16, threshold=0.9)
    assert result.num_forwards == 1 + 4  # 1, then 4 + 4 + 4 + 3


def test_a_row_ends_inside_a_block_and_keeps_nothing_after_its_last_token():
    loaded = scripted_loaded(saying([70, 71, 258, 72, 73], start=4))
    result = generate(loaded, [[65] * 4], cache_block=8, block_size=8, max_new_tokens=30)
    assert result.tokens == ((70, 71, 258),) and result.num_forwards == 2


def test_a_row_that_ends_leaves_the_others_to_go_on():
    loaded = scripted_loaded(saying([70, 71, 258], start=4))
    result = generate(loaded, [[65] * 40, [65] * 4, [65] * 30], cache_block=4, max_new_tokens=11)
    assert result.tokens == ((90,) * 11, (70, 71, 258), (90,) * 11)
    rows_fed = [len(forward) for forward in loaded.model.fed]
    assert rows_fed == [3, 3, 2, 2, 2, 2]  # blocks of 4, 4 and 3: each of a first token and one forward


def test_a_row_that_ends_with_a_blocks_last_token_extends_nothing():
    loaded = scripted_loaded(saying([70, 71, 258], start=4))
    result = generate(loaded, [[65] * 4], cache_block=3)
    assert result.tokens == ((70, 71, 258),) and result.num_extending_forwards == 0


def test_a_rows_first_token_may_be_its_last():
    loaded = scripted_loaded(saying([258], start=4))
    result = generate(loaded, [[65] * 4, [65] * 4])
    assert result.tokens == ((258,), (258,)) and result.num_forwards == 1
    assert result.tokens_per_s == 0.0


@pytest.mark.parametrize("place", range(8))
def test_a_stop_token_at_any_place_of_a_block_ends_the_row_there(place):
    free = generate(model(), ignore_eos=True).tokens
    ends = free[0][place]
    stopped = generate(model(), stop_token_ids=(ends,), ignore_eos=True).tokens
    for row, whole in zip(stopped, free, strict=True):
        assert row == whole[: whole.index(ends) + 1 if ends in whole else None]


def test_ignore_eos_goes_on_behind_the_models_own_stop_tokens():
    loaded = scripted_loaded(saying([258, 70], start=1))
    assert generate(loaded, [[65]], ignore_eos=True, max_new_tokens=4).tokens == ((258, 70, 90, 90),)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5, 6, 7, 13])
def test_budgets_are_met_exactly(max_new_tokens):
    result = generate(model(), threshold=0.0, max_new_tokens=max_new_tokens, ignore_eos=True)
    assert [len(row) for row in result.tokens] == [max_new_tokens] * len(PROMPTS)
    assert result.num_tokens == max_new_tokens * len(PROMPTS)


def test_suppressed_tokens_are_never_committed():
    common = replace(model(), suppressed_token_ids=(*model().suppressed_token_ids, *range(200)))
    result = generate(common, threshold=0.0, temperature=10.0, max_new_tokens=60)
    assert all(200 <= token < MASK for row in result.tokens for token in row)


def test_the_device_is_read_once_a_forward(monkeypatch):
    reads, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(1) or tolist(tensor))
    assert generate(model()).num_forwards == len(reads)


def test_tokens_a_second_are_those_after_the_prefill():
    result = BlockResult(((1, 2, 3), (4,)), 3, 0, prefill_s=9.0, decode_s=0.5)
    assert result.num_tokens == 4 and result.tokens_per_s == 4.0


def test_values_that_are_no_numbers_are_refused():
    with pytest.raises(ArithmeticError, match="NaN"):
        generate(scripted_loaded(lambda position, masked: (70, math.nan if position == 8 else 1.0)))


@pytest.mark.parametrize("cache_block", [0, -1, True, 2.0, None, "8"])
def test_a_cache_block_that_is_no_positive_whole_number_is_refused(cache_block):
    with pytest.raises(MarsError, match=r"cache_block is .*1 or more"):
        generate(model(), cache_block=cache_block)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verify": True}, "verify"),
        ({"stop_strings": ("end",)}, "stop_strings"),
        ({"prompts": []}, "prompts"),
        ({"prompts": [65, 66]}, "list of prompts"),
        ({"prompts": [[65], []]}, "empty"),
        ({"prompts": [[65], [9999]]}, "outside"),
        ({"max_new_tokens": 5000}, "context"),
    ],
)
def test_what_cannot_work_is_refused_before_any_forward(options, message):
    loaded = scripted_loaded(always())
    with pytest.raises(MarsError, match=message):
        generate(loaded, **options)
    assert not loaded.model.fed
