"""Prompt lookup: what followed the last tokens before is proposed, and verified like any draft."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mars_core import DecodeSettings, Engine, Request
from mars_core.acceptance import Sampler
from mars_core.lookup import LONGEST, SHORTEST, NgramIndex
from mars_core.planner import PROBE_EVERY
from mars_core.proposals import MOST_LOOKED_UP
from tests.scripted import MASK, Script, scripted_loaded
from tests.test_planner import CPU, flat, steep
from tests.test_verify import chi_square, groups_of


def indexed(tokens: list[int]) -> NgramIndex:
    index = NgramIndex()
    index.extend(tokens)
    return index


def searched(tokens: list[int], most: int) -> list[int]:
    """The same by looking everywhere: behind the longest n-gram's last occurrence before the end."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        ending = tokens[len(tokens) - length :] if length <= len(tokens) else None
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == ending:
                return tokens[place : place + most]
    return []


FEW_TOKENS = st.lists(st.integers(0, 2), max_size=40)


@given(st.lists(FEW_TOKENS, max_size=6), st.integers(0, 12))
def test_it_finds_what_a_search_of_all_places_finds_however_the_text_arrives(parts, most):
    index, tokens = NgramIndex(), []
    for part in parts:
        index.extend(part)
        tokens += part
        assert index.propose(most) == searched(tokens, most)
        assert len(index) == len(tokens)


def test_the_longest_match_decides_and_of_those_the_last():
    assert indexed([1, 2, 3, 9, 1, 2, 3]).propose(10) == [9, 1, 2, 3]
    assert indexed([1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3]).propose(1) == [9]
    assert indexed([2, 3, 9, 2, 3, 8, 7, 2, 3]).propose(1) == [8]


@pytest.mark.parametrize("tokens", [[], [1], [1, 1], [1, 2, 3, 4], [1, 2, 1]])
def test_where_nothing_repeats_nothing_is_proposed(tokens):
    assert indexed(tokens).propose(10) == []


def test_no_more_is_proposed_than_asked_for():
    assert indexed([1, 2, 3, 1, 2]).propose(0) == []
    assert indexed([1, 2, 3, 1, 2]).propose(2) == [3, 1]


# ---- in the engine ----

PERIOD = 12


def circle(position: int) -> int:
    return 65 + position % PERIOD


def repeating(position: int, masked: bool) -> tuple[int, float]:
    """Every 12 tokens the same; behind masks nothing of it is known."""
    return (80 if masked else circle(position + 1)), 0.9


def run(script: Script, prompt: list[int], costs=None, **changes):
    options = {"threshold": 1.0, "verify": True, "proposer": "lookup", "layout": "linear", "block_size": 4}
    how = DecodeSettings(**(options | {"ignore_eos": True} | changes))
    engine = Engine(scripted_loaded(script), costs=costs)
    return list(engine.stream(Request(prompt, how)))


TWICE_AROUND = [circle(position) for position in range(2 * PERIOD)]


@pytest.mark.parametrize("max_drafts, most", [(None, MOST_LOOKED_UP), (3, 3), (1, 1)])
@pytest.mark.parametrize("proposer", ["lookup", "both"])
def test_drafts_that_are_always_right_make_one_token_more_than_drafts(proposer, max_drafts, most):
    events = run(repeating, TWICE_AROUND, proposer=proposer, max_drafts=max_drafts, max_new_tokens=45)
    groups = groups_of(events)
    assert sum(groups, []) == [circle(2 * PERIOD + offset) for offset in range(45)]
    full, rest = divmod(45, most + 1)
    assert list(map(len, groups)) == [most + 1] * full + [rest] * (rest > 0)
    assert [choice.decided for choice in events[0].committed] == ["verified"] * most + ["ar"]


def test_drafts_are_what_followed_before():
    how = DecodeSettings(threshold=1, verify=True, proposer="lookup", layout="linear", max_new_tokens=8)
    engine = Engine(scripted_loaded(repeating))
    list(engine.stream(Request([*TWICE_AROUND, 90, 91, *TWICE_AROUND[:3]], how)))
    (window,) = engine.loaded.model.fed[0]
    assert [token for _, token in window][-7:] == [circle(place) for place in range(3, 10)]


def follows_never(position: int, masked: bool) -> tuple[int, float]:
    """a b, then something new each time: whatever followed a b before is wrong."""
    place = position + 1
    return ([65, 66, 100 + place // 3][place % 3]), 1.0


def test_drafts_that_are_never_right_make_as_many_forwards_as_there_are_tokens():
    prompt = [follows_never(place - 1, False)[0] for place in range(6)]
    events = run(follows_never, prompt, max_new_tokens=20)
    assert [len(group) for group in groups_of(events)] == [1] * 20
    assert [event.index for event in events if event.num_drafts] == [2, 5, 8, 11, 14, 17]  # behind each a b


@pytest.mark.parametrize("wrong_after", [1, 2, 5])
def test_drafts_that_are_right_for_a_while_count_as_far_as_they_are(wrong_after):
    end = 2 * PERIOD + wrong_after

    def script(position: int, masked: bool) -> tuple[int, float]:
        return (200 if position + 1 == end else circle(position + 1)), 1.0

    events = run(script, TWICE_AROUND, max_new_tokens=20)
    assert [choice.decided for choice in events[0].committed] == ["verified"] * wrong_after + ["ar"]
    # two tokens until an n-gram is known again; what followed it is right up to the token that was new
    assert [len(group) for group in groups_of(events)][1:4] == [1, 1, 10]


def test_without_a_repetition_lookup_is_one_token_a_forward_and_feeds_nothing_more():
    events = run(lambda position, masked: (position + 1, 1.0), [1, 2, 3], max_new_tokens=30)
    assert [event.window_length for event in events] == [3] + [1] * 29


def test_both_takes_the_masks_drafts_where_nothing_is_found():
    def script(position: int, masked: bool) -> tuple[int, float]:
        return position + 1, 0.3 if masked else 1.0

    events = run(script, [1, 2, 3], proposer="both", max_new_tokens=25)
    assert [len(group) for group in groups_of(events)] == [1, 4, 4, 4, 4, 4, 4]


def test_wrong_lookups_are_given_up_and_tried_again_once_in_a_while():
    prompt = [follows_never(place - 1, False)[0] for place in range(6)]
    events = run(follows_never, prompt, layout="auto", costs=lambda: CPU, max_new_tokens=400)
    tried = [event.index for event in events if event.num_drafts and event.index > 100]
    # something is found at every third token
    assert {b - a for a, b in zip(tried, tried[1:], strict=False)} == {3 * PROBE_EVERY}


def test_where_no_draft_could_pay_no_lookup_is_tried():
    events = run(repeating, TWICE_AROUND, layout="auto", costs=steep, max_new_tokens=100)
    assert not any(event.num_drafts for event in events)


def test_lookups_that_are_right_are_taken_whole_where_forwards_cost_the_same():
    events = run(repeating, TWICE_AROUND, layout="auto", costs=flat, max_new_tokens=44)
    assert [len(group) for group in groups_of(events)] == [11] * 4


# ---- sampling ----

OPTIONS = [{}, {"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.75}]


def chance(position: int, token_id: int) -> torch.Tensor:
    """Three tokens at random; behind a mask the model thinks otherwise."""
    row = torch.full((272,), -1e9)
    row[65:68] = torch.tensor([0.1, 0.2, 0.7] if token_id == MASK else [0.5, 0.3, 0.2]).log()
    return row


@pytest.mark.parametrize("layout", ["linear", "auto"])
@pytest.mark.parametrize("proposer", ["lookup", "both"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sampling_with_looked_up_drafts_draws_from_the_models_own_distribution(options, proposer, layout):
    loaded = scripted_loaded(lambda position, masked: (0, 1.0))
    loaded.model._logits = chance
    how = DecodeSettings(
        **({"temperature": 1.0} | options),
        threshold=1,
        verify=True,
        proposer=proposer,
        layout=layout,
        seed=11,
        max_new_tokens=1600,
        max_drafts=3,
        num_alternatives=0,
        ignore_eos=True,
    )
    events = list(Engine(loaded).stream(Request([65, 66, 67, 65, 66], how)))
    ids = [token - 65 for group in groups_of(events) for token in group]
    verified = sum(choice.decided == "verified" for event in events for choice in event.committed)
    assert verified > 100
    warped = Sampler(how, torch.device("cpu")).warpers(input_ids=None, scores=chance(0, 65)[None])
    p = warped.softmax(-1)[0, 65:68]
    assert chi_square(Counter(ids), p) > 1e-3
    # no token depends on the one before it, which a lookup's draft does
    pairs = Counter(3 * a + b for a, b in zip(ids[::2], ids[1::2], strict=True))
    assert chi_square(pairs, (p[:, None] * p[None]).flatten()) > 1e-3


@pytest.mark.parametrize("proposer", ["lookup", "both"])
def test_the_same_seed_gives_the_same_text(proposer):
    def answer(seed: int) -> list[list[int]]:
        loaded = scripted_loaded(lambda position, masked: (0, 1.0))
        loaded.model._logits = chance
        how = DecodeSettings(
            threshold=1, verify=True, proposer=proposer, temperature=1, seed=seed, max_new_tokens=60
        )
        return groups_of(Engine(loaded).stream(Request([65, 66, 67, 65, 66], how)))

    assert answer(4) == answer(4) != answer(5)
