"""Whatever is proposed, and however many drafts pay: at τ = 1 the text is AR's, and elsewhere it depends on
nothing but the request."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mars_core import DecodeSettings, Engine, LiveSettings, Request
from mars_core.costs import ForwardCosts
from mars_core.planner import NOMINAL_COSTS, PROBE_EVERY
from mars_core.reference import reference_generate, reference_verify
from tests.scripted import MASK, always, never, scripted_loaded
from tests.test_planner import CPU, FLAT, LINEAR
from tests.test_verify import KINDS, decided_of, groups_of
from tests.tiny import tiny_loaded


class Moody(ForwardCosts):
    """Costs that are others each time they are asked for."""

    chance = random.Random(0)

    def line(self, num_cached: int) -> Callable[[float], float]:
        base, slope = self.chance.random(), self.chance.random() ** 3
        return lambda length: base + slope * length


MOODY = Moody((1,), (1,), ((1.0,),))
ANY_COSTS = st.sampled_from([FLAT, LINEAR, CPU, NOMINAL_COSTS, MOODY]) | st.builds(
    lambda base, slope: ForwardCosts((1, 64), (32,), ((base, base + 63 * slope),)),
    st.floats(1e-3, 1),
    st.floats(0, 0.5),
)
LIVE = st.fixed_dictionaries(
    {
        "verify": st.just(True),
        "layout": st.sampled_from(["auto", "auto", "linear", "full"]),
        "proposer": st.sampled_from(["masks", "lookup", "both"]),
        "last_mask": st.sampled_from([None, True, False]),
        "block_size": st.integers(1, 8),
        "max_drafts": st.sampled_from([None, 0, 1, 2, 5]),
    }
)
# few different tokens, so that lookups find something
PROMPTS = st.lists(st.sampled_from([65, 66, 67]), min_size=1, max_size=12)


@functools.cache
def tiny(kind: str) -> Any:
    return tiny_loaded(kind=kind)


@functools.cache
def plain(kind: str, prompt: tuple[int, ...]) -> list[int]:
    how = DecodeSettings(mode="ar", max_new_tokens=24, ignore_eos=True)
    return sum(reference_generate(tiny(kind), list(prompt), how), [])


def expected(kind: str, prompt: list[int], how: DecodeSettings) -> list[int]:
    """What AR says, up to the budget and the first stop token."""
    ids = plain(kind, tuple(prompt))[: how.max_new_tokens]
    stops = set(how.stop_token_ids) | (set() if how.ignore_eos else {256, 258})
    end = next((place for place, token in enumerate(ids) if token in stops), len(ids))
    return ids[: end + 1]


@st.composite
def lossless_rows(draw: st.DrawFn, kind: str) -> tuple[list[int], DecodeSettings]:
    prompt = draw(PROMPTS)
    stop = draw(st.none() | st.integers(0, 23))
    how = DecodeSettings(
        threshold=1,
        max_new_tokens=draw(st.integers(1, 24)),
        stop_token_ids=() if stop is None else (plain(kind, tuple(prompt))[stop],),
        ignore_eos=draw(st.booleans()),
        num_alternatives=0,
        **draw(LIVE),
    )
    return prompt, how


def together(engine: Engine, requests: list[Request], chance: random.Random) -> list[list[list[int]]]:
    """What each request's forwards commit, all on one engine, asked for in any order."""
    streams = {number: engine.stream(request) for number, request in enumerate(requests)}
    events: list[list] = [[] for _ in requests]
    while streams:
        number = chance.choice(sorted(streams))
        event = next(streams[number], None)
        if event is None:
            del streams[number]
        else:
            events[number].append(event)
    return [groups_of(of_one) for of_one in events]


@settings(max_examples=40)
@given(st.data(), ANY_COSTS, st.sampled_from(KINDS))
def test_at_tau_one_the_text_is_ars_whatever_is_proposed_and_whatever_forwards_cost(data, costs, kind):
    prompt, how = data.draw(lossless_rows(kind))
    engine = Engine(tiny(kind), prefill_chunk=5, costs=lambda: costs)
    assert sum(groups_of(engine.stream(Request(prompt, how))), []) == expected(kind, prompt, how)


@settings(max_examples=18)
@given(st.data(), ANY_COSTS, st.randoms(use_true_random=False))
def test_so_it_is_for_each_row_of_a_batch(data, costs, chance):
    rows = data.draw(st.lists(lossless_rows("llama"), min_size=2, max_size=4))
    engine = Engine(tiny("llama"), prefill_chunk=5, costs=lambda: costs)
    got = together(engine, [Request(*row) for row in rows], chance)
    assert [sum(groups, []) for groups in got] == [expected("llama", *row) for row in rows]


@settings(max_examples=35)
@given(st.data(), ANY_COSTS)
def test_so_it_is_while_everything_is_changed_under_way(data, costs):
    prompt, how = data.draw(lossless_rows("llama"))
    live = LiveSettings(how.live_values())
    ids: list[int] = []
    for event in Engine(tiny("llama"), costs=lambda: costs).stream(Request(prompt, how, live)):
        ids += [choice.id for choice in event.committed]
        changes = data.draw(LIVE)
        if changes["proposer"] != "lookup":
            changes["verify"] = data.draw(st.booleans())
        live.update(**changes)
    assert ids == expected("llama", prompt, how)


def test_probes_and_all_in_a_long_answer():
    """Long enough that the planner gives drafts up and tries them again."""
    plain_ids = reference_generate(
        tiny("llama"), [65, 66], DecodeSettings(mode="ar", max_new_tokens=90, ignore_eos=True)
    )
    for proposer in ("masks", "both"):
        how = DecodeSettings(threshold=1, verify=True, proposer=proposer, max_new_tokens=90, ignore_eos=True)
        events = list(Engine(tiny("llama"), costs=lambda: CPU).stream(Request([65, 66], how)))
        assert sum(groups_of(events), []) == sum(plain_ids, [])


# ---- rows whose text a plan may change ----

ANY_TEXT = st.fixed_dictionaries(
    {
        "threshold": st.sampled_from([0.1, 0.2, 0.6, 1.0]),
        "temperature": st.sampled_from([0.0, 0.0, 0.8]),
        "block_size": st.integers(1, 6),
        "max_drafts": st.sampled_from([None, 0, 2]),
        "proposer": st.sampled_from(["masks", "both"]),
        "last_mask": st.booleans(),
        "verify": st.just(True),
        "seed": st.integers(0, 3),
        "max_new_tokens": st.integers(1, 14),
    }
)


@settings(max_examples=20)
@given(st.lists(st.tuples(PROMPTS, ANY_TEXT), min_size=2, max_size=4), st.data())
def test_the_same_request_gives_the_same_text_on_any_machine_alone_or_not(rows, data):
    requests = [Request(prompt, DecodeSettings(**how)) for prompt, how in rows]
    alone = [
        sum(groups_of(Engine(tiny("llama"), costs=lambda: FLAT).stream(request)), []) for request in requests
    ]
    costs = data.draw(ANY_COSTS)
    engine = Engine(tiny("llama"), prefill_chunk=4, costs=lambda: costs)
    got = together(engine, requests, data.draw(st.randoms(use_true_random=False)))
    assert [sum(groups, []) for groups in got] == alone


@pytest.mark.parametrize("changes", [{"threshold": 0.5}, {"temperature": 1.0}])
def test_measured_costs_are_not_even_asked_for_there(changes):
    def measure() -> ForwardCosts:
        raise AssertionError("asked")

    options = {"threshold": 1.0, "verify": True, "proposer": "both", "max_new_tokens": 20} | changes
    engine = Engine(tiny("llama"), costs=measure)
    assert list(engine.stream(Request([65, 66, 65, 66], DecodeSettings(**options))))[-1].finish_reason


def test_what_could_not_be_accepted_does_not_count_as_not_sure_enough():
    """A long time at τ = 1 says nothing on how often the model is surer than a lower τ."""
    loaded = scripted_loaded(never())  # right behind masks, at 0.3
    how = DecodeSettings(threshold=1, verify=True, max_new_tokens=400, ignore_eos=True)
    live, forwards = LiveSettings(how.live_values()), []
    engine = Engine(loaded, costs=lambda: CPU)
    for event in engine.stream(Request([70, 71], how, live)):
        if event.index == 50:
            live.update(threshold=0.2, max_drafts=0)
        forwards.append(len(event.committed))
    assert set(forwards[51:-1]) == {4}


def test_a_row_that_verifies_nothing_accepts_again_when_its_model_is_sure_again():
    def script(position: int, masked: bool) -> tuple[int, float]:
        return 65 + position % 26, 0.1 if masked and position < 150 else 1.0

    how = DecodeSettings(verify=True, max_drafts=0, max_new_tokens=600, ignore_eos=True)
    sizes = list(map(len, groups_of(Engine(scripted_loaded(script)).stream(Request([70, 71], how)))))
    assert sizes[100] == 1 and set(sizes[150 + 4 * PROBE_EVERY : -1]) == {4}


# ---- the last mask ----


@pytest.mark.parametrize("budget", [1, 2, 5, 6, 7, 23, 25])
@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("verify", [False, True])
def test_with_the_last_mask_a_forward_commits_one_token_more(block_size, budget, verify):
    how = DecodeSettings(
        threshold=0.9,
        last_mask=True,
        block_size=block_size,
        verify=verify,
        max_new_tokens=budget,
        layout="full",
    )
    events = list(Engine(scripted_loaded(always())).stream(Request([70, 71, 72], how)))
    full, rest = divmod(budget, block_size + 1)
    assert list(map(len, groups_of(events))) == [block_size + 1] * full + [rest] * (rest > 0)
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize("budget", [1, 2, 6, 7, 23])
@pytest.mark.parametrize("layout, costs", [("linear", None), ("full", None), ("auto", FLAT)])
def test_verified_it_is_one_token_more_too(layout, costs, budget):
    how = DecodeSettings(threshold=1, verify=True, last_mask=True, layout=layout, max_new_tokens=budget)
    events = list(Engine(scripted_loaded(never()), costs=lambda: costs).stream(Request([70, 71, 72], how)))
    full, rest = divmod(budget - 1, 5)
    assert list(map(len, groups_of(events))) == [1] + [5] * full + [rest] * (rest > 0)
    assert all(decided[:-1] == ["verified"] * (len(decided) - 1) for decided in decided_of(events))


@pytest.mark.parametrize(
    "of_checkpoint, asked, most",
    [(False, None, 4), (True, None, 5), (False, True, 5), (True, False, 4)],
)
def test_unless_asked_it_is_as_the_checkpoint_says(of_checkpoint, asked, most):
    loaded = scripted_loaded(always(), last_mask=of_checkpoint)
    how = DecodeSettings(threshold=0.9, last_mask=asked, max_new_tokens=40)
    events = list(Engine(loaded).stream(Request([70, 71, 72], how)))
    assert {len(group) for group in groups_of(events)} == {most}
    masks = [sum(token == MASK for _, token in row) for forward in loaded.model.fed for row in forward]
    assert max(masks) == most - 1


@pytest.mark.parametrize("of_checkpoint, asked", [(True, None), (False, True), (True, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_with_the_last_mask_every_forward_commits_what_the_oracle_commits(kind, of_checkpoint, asked):
    loaded = dataclasses.replace(tiny(kind), last_mask=of_checkpoint)
    for threshold, budget in [(0.15, 13), (1.0, 9), (0.0, 14)]:
        how = DecodeSettings(threshold=threshold, last_mask=asked, max_new_tokens=budget)
        got = groups_of(Engine(loaded).stream(Request([65, 70, 80], how)))
        assert got == reference_generate(loaded, [65, 70, 80], how)
        for layout in ("linear", "full"):
            verified = dataclasses.replace(how, verify=True, layout=layout)
            got = groups_of(Engine(loaded).stream(Request([65, 70, 80], verified)))
            assert got == reference_verify(loaded, [65, 70, 80], verified)


@pytest.mark.parametrize("layout", ["auto", "linear", "full"])
@pytest.mark.parametrize("proposer", ["masks", "lookup", "both"])
@pytest.mark.parametrize("last_mask", [False, True])
def test_nothing_is_fed_that_could_only_say_what_is_beyond_the_budget(layout, proposer, last_mask):
    prompt = [65 + position % 5 for position in range(10)]
    for budget in range(1, 20):
        loaded = scripted_loaded(never(lambda position: 65 + position % 5))
        how = DecodeSettings(
            threshold=1,
            verify=True,
            proposer=proposer,
            layout=layout,
            last_mask=last_mask,
            max_new_tokens=budget,
            num_alternatives=0,
        )
        assert list(Engine(loaded, costs=lambda: FLAT).stream(Request(prompt, how)))
        fed = [position for forward in loaded.model.fed for row in forward for position, _ in row]
        assert max(fed) <= len(prompt) + budget - 2


def test_with_the_last_mask_every_slot_that_a_row_needs_is_counted():
    """Rows are let in by the most they may need; none may need more."""
    loaded = scripted_loaded(never())
    for layout in ("linear", "full"):
        for block_size in (1, 3, 8):
            how = DecodeSettings(
                threshold=1,
                verify=True,
                last_mask=True,
                layout=layout,
                block_size=block_size,
                max_new_tokens=40,
            )
            engine = Engine(loaded)
            stream = engine.stream(Request([70, 71, 72], how))
            next(stream)
            most = engine.rows[0].most_slots
            assert all(event.num_cached + event.window_length <= most for event in stream)
