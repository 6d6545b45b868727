"""Draft and verify: exact at τ = 1, and nothing predicted is thrown away or trusted blindly."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars_core import DecodeSettings, Engine, LiveSettings, MarsError, Request
from mars_core.acceptance import Sampler
from mars_core.reference import reference_generate, reference_verify
from tests.scripted import MASK, Script, scripted_loaded
from tests.tiny import tiny_loaded

KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3")
PROMPT = [70, 71, 72]


def groups_of(events) -> list[list[int]]:
    return [[choice.id for choice in event.committed] for event in events if event.committed]


def decided_of(events) -> list[list[str]]:
    return [[choice.decided for choice in event.committed] for event in events if event.committed]


def some_prompt(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(chance.randrange(1, 20))]


@pytest.mark.parametrize("layout", ["linear", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_at_tau_one_it_says_what_ar_says_token_for_token(kind, layout):
    loaded = tiny_loaded(kind=kind)
    engine = Engine(loaded, prefill_chunk=5)
    for seed, block_size, max_drafts in [
        (0, 2, None),
        (1, 4, None),
        (2, 8, 3),
        (3, 4, 1),
        (4, 4, 0),
        (5, 1, None),
    ]:
        prompt, budget = some_prompt(seed), 9 + seed
        plain = reference_generate(loaded, prompt, DecodeSettings(mode="ar", max_new_tokens=budget))
        verify = DecodeSettings(
            threshold=1,
            verify=True,
            layout=layout,
            block_size=block_size,
            max_drafts=max_drafts,
            max_new_tokens=budget,
        )
        assert sum(groups_of(engine.stream(Request(prompt, verify))), []) == sum(plain, [])


@pytest.mark.parametrize("layout", ["linear", "full"])
@pytest.mark.parametrize(
    "threshold, metric", [(1, "probability"), (0.15, "probability"), (0.05, "margin"), (3, "entropy")]
)
def test_every_forward_commits_what_the_oracle_commits(layout, threshold, metric):
    for kind in KINDS:
        loaded = tiny_loaded(kind=kind)
        for seed in range(3):
            how = DecodeSettings(
                threshold=threshold,
                metric=metric,
                verify=True,
                layout=layout,
                block_size=4,
                max_new_tokens=14,
            )
            got = groups_of(Engine(loaded).stream(Request(some_prompt(seed), how)))
            assert got == reference_verify(loaded, some_prompt(seed), how)


def right(position: int) -> int:
    """What the scripted model truly says at a position."""
    return 65 + position % 26


def drafting(is_right: Callable[[int], bool]) -> Script:
    """Right where no mask lies; behind masks right at the positions that `is_right` names, unsure always."""

    def script(position: int, masked: bool) -> tuple[int, float]:
        wrong = masked and not is_right(position + 1)
        return right(position + 1) + 30 * wrong, 0.3 if masked else 1.0

    return script


def run(script: Script, **changes):
    options = {"threshold": 1.0, "verify": True, "block_size": 4, "max_new_tokens": 24, "ignore_eos": True}
    how = DecodeSettings(**(options | changes))
    loaded = scripted_loaded(script, context_length=4096)
    events = list(Engine(loaded).stream(Request(PROMPT, how)))
    ids = sum(groups_of(events), [])
    assert ids == [right(len(PROMPT) + k) for k in range(len(ids))]
    return events


@pytest.mark.parametrize("layout", ["linear", "full"])
def test_drafts_that_are_always_right_make_b_tokens_a_forward(layout):
    events = run(drafting(lambda position: True), layout=layout)
    assert [len(group) for group in groups_of(events)] == [1, 4, 4, 4, 4, 4, 3]
    assert decided_of(events)[1] == ["verified", "verified", "verified", "ar"]


def test_drafts_that_are_never_right_cost_nothing_but_the_window():
    full = run(drafting(lambda position: False), layout="full")
    assert {len(group) for group in groups_of(full)} == {1}
    assert {choice for group in decided_of(full) for choice in group} == {"ar"}


def test_a_wrong_draft_costs_the_linear_layout_the_next_drafts_and_the_full_layout_nothing():
    sometimes = drafting(lambda position: position % 3 != 0)
    linear, full = run(sometimes, layout="linear"), run(sometimes, layout="full")
    assert len(full) < len(linear)
    after_a_wrong_one = next(
        k for k, event in enumerate(linear) if event.num_drafts > len(event.committed) - 1
    )
    assert linear[after_a_wrong_one + 1].num_drafts == 0
    assert all(event.num_drafts for event in full[1:-1])


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("layout", ["linear", "full"])
def test_a_mismatch_at_any_place_ends_what_is_verified_there(place, layout):
    first = len(PROMPT) + 1  # position of the first draft
    events = run(drafting(lambda position: position != first + place - 1), layout=layout)
    assert decided_of(events)[1] == ["verified"] * (place - 1) + ["ar"]


def test_below_tau_one_what_is_sure_is_committed_and_the_rest_is_verified():
    def script(position: int, masked: bool) -> tuple[int, float]:
        return right(position + 1), 0.95 if not masked or position % 2 else 0.4

    decided = {choice for group in decided_of(run(script, threshold=0.9)) for choice in group}
    assert decided == {"ar", "accepted", "verified"}


@pytest.mark.parametrize("exact", [{"threshold": 1.0}, {"threshold": 0.0, "metric": "entropy"}])
def test_at_taus_exact_end_even_a_probability_of_one_is_verified(exact):
    def sure_and_wrong(position: int, masked: bool) -> tuple[int, float]:
        return right(position + 1) + 30 * masked, 1.0

    events = run(sure_and_wrong, **exact)
    assert {choice for group in decided_of(events) for choice in group} == {"ar"}


@pytest.mark.parametrize("layout", ["linear", "full"])
@pytest.mark.parametrize("after", range(1, 9))
def test_an_end_of_sequence_that_was_a_draft_ends_the_answer_when_it_is_verified(after, layout):
    end = len(PROMPT) + after

    def script(position: int, masked: bool) -> tuple[int, float]:
        return (258 if position + 1 >= end else right(position + 1)), 0.3 if masked else 1.0

    loaded = scripted_loaded(script)
    how = DecodeSettings(threshold=1, verify=True, layout=layout, max_new_tokens=40)
    events = list(Engine(loaded).stream(Request(PROMPT, how)))
    ids = sum(groups_of(events), [])
    assert ids == [right(len(PROMPT) + k) for k in range(after)] + [258]
    assert events[-1].finish_reason == "eos"


def test_an_end_of_sequence_that_was_a_wrong_draft_ends_nothing():
    def script(position: int, masked: bool) -> tuple[int, float]:
        return (258 if masked else right(position + 1)), 0.3 if masked else 1.0

    events = list(
        Engine(scripted_loaded(script)).stream(
            Request(PROMPT, DecodeSettings(threshold=1, verify=True, max_new_tokens=12))
        )
    )
    assert sum(groups_of(events), []) == [right(len(PROMPT) + k) for k in range(12)]
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize("layout", ["linear", "full"])
@pytest.mark.parametrize("budget", range(1, 11))
def test_the_budget_is_met_exactly(budget, layout):
    events = run(drafting(lambda position: True), layout=layout, max_new_tokens=budget)
    assert len(sum(groups_of(events), [])) == budget
    assert events[-1].finish_reason == "length"


def test_verification_may_be_turned_on_and_off_while_it_writes():
    loaded = tiny_loaded()
    plain = reference_generate(loaded, PROMPT, DecodeSettings(mode="ar", max_new_tokens=30, ignore_eos=True))
    how = DecodeSettings(threshold=1, verify=True, max_new_tokens=30, ignore_eos=True)
    live = LiveSettings(how.live_values())
    events = []
    for event in Engine(loaded).stream(Request(PROMPT, how, live)):
        events.append(event)
        live.update(verify=event.index % 6 < 3, layout="full" if event.index % 4 else "linear")
    assert sum(groups_of(events), []) == sum(plain, [])
    assert {event.verify for event in events} == {True, False}


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from([0.1, 0.2, 1.0]),
            st.booleans(),
            st.sampled_from(["linear", "full"]),
            st.integers(1, 6),
        ),
        min_size=2,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_rows_of_a_batch_equal_their_solo_runs_in_any_order_of_arrival(rows, chance):
    loaded = tiny_loaded()
    requests = [
        Request(
            some_prompt(seed),
            DecodeSettings(
                threshold=tau, verify=verify, layout=layout, block_size=block_size, max_new_tokens=10
            ),
        )
        for seed, tau, verify, layout, block_size in rows
    ]
    solo = [groups_of(Engine(loaded).stream(request)) for request in requests]
    engine = Engine(loaded, prefill_chunk=6)
    streams = {index: engine.stream(request) for index, request in enumerate(requests)}
    got: dict[int, list] = {index: [] for index in streams}
    while streams:
        index = chance.choice(sorted(streams))
        event = next(streams[index], None)
        if event is None:
            del streams[index]
        else:
            got[index].append(event)
    assert [groups_of(got[index]) for index in range(len(requests))] == solo


def test_no_draft_or_mask_stays_in_the_cache():
    loaded = tiny_loaded()
    engine = Engine(loaded)
    how = DecodeSettings(threshold=1, verify=True, layout="full", max_new_tokens=30, ignore_eos=True)
    stream = engine.stream(Request(PROMPT, how))
    for _ in range(8):
        next(stream)
    row = engine.rows[0]
    with torch.inference_mode():
        plain = loaded.model(input_ids=torch.tensor([row.tokens[: row.num_cached]])).past_key_values
    for ours, theirs in zip(engine.cache.layers, plain.layers, strict=True):
        torch.testing.assert_close(ours.keys[:1, :, : row.num_cached], theirs.keys, rtol=0, atol=1e-4)
    stream.close()


# ---- sampling ----


def chi_square(counts: Counter, probabilities: torch.Tensor) -> float:
    """p-value of the counts under the probabilities."""
    total = sum(counts.values())
    expected = probabilities * total
    observed = torch.tensor([float(counts[k]) for k in range(len(probabilities))])
    keep = expected > 0
    assert not observed[~keep].any(), "a token that has no probability was drawn"
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    freedom = torch.tensor(float(keep.sum() - 1))
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}])
def test_verified_sampling_draws_from_the_models_own_distribution(options):
    p_logits, q_logits = torch.tensor([2.0, 1.5, 1.0, 0.5]), torch.tensor([0.2, 1.0, 2.0, 0.1])
    sampler = Sampler(DecodeSettings(**({"temperature": 1.0, "seed": 3} | options)), torch.device("cpu"))
    counts: Counter = Counter()
    for _ in range(6000):
        draft = int(sampler.draw(q_logits[None])[0])
        sampler.keep(slice(0, 1))
        counts[int(sampler.draw(torch.stack([p_logits, p_logits]), [draft])[0])] += 1
    wanted = sampler.warpers(input_ids=None, scores=p_logits[None]).softmax(-1)[0]
    assert chi_square(counts, wanted) > 1e-3


def test_the_engine_with_verification_draws_from_the_models_own_distribution():
    """The second token of an answer, which is a draft at first: its distribution is plain sampling's."""
    table = {False: [0.5, 0.3, 0.2], True: [0.1, 0.2, 0.7]}
    loaded = scripted_loaded(lambda position, masked: (0, 1.0), context_length=4096)

    def logits(position: int, token_id: int) -> torch.Tensor:
        row = torch.full((272,), -1e9)
        row[65:68] = torch.tensor(table[token_id == MASK]).log()
        return row

    loaded.model._logits = logits
    engine = Engine(loaded)
    counts: Counter = Counter()
    for seed in range(1500):
        how = DecodeSettings(
            threshold=1, verify=True, temperature=1, seed=seed, max_new_tokens=3, num_alternatives=0
        )
        ids = sum(groups_of(engine.stream(Request(PROMPT, how))), [])
        counts[ids[1] - 65] += 1
    assert chi_square(counts, torch.tensor(table[False])) > 1e-3


def test_the_same_seed_gives_the_same_text():
    def answer(seed: int) -> list[int]:
        how = DecodeSettings(threshold=1, verify=True, temperature=1, seed=seed, max_new_tokens=20)
        return sum(groups_of(Engine(tiny_loaded()).stream(Request(PROMPT, how))), [])

    assert answer(4) == answer(4) != answer(5)


@pytest.mark.parametrize("wrong", [{"verify": 1}, {"layout": "round"}, {"max_drafts": -1}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(MarsError):
        DecodeSettings(**wrong)
