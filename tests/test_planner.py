"""The planner takes what pays: simulated, against every fixed plan and against none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mars_core.costs import ForwardCosts
from mars_core.planner import (
    NOMINAL_COSTS,
    ONE_TOKEN,
    PROBE_EVERY,
    LookupPlanner,
    Plan,
    Planner,
    Rates,
    Situation,
    _plans,
    _speed,
)

# Seconds by window length: a laptop-like CPU, a device bound by its arithmetic, a graphics card.
CPU = ForwardCosts((1, 4, 8, 16, 32, 64), (32,), ((24.7, 26.1, 28, 38.9, 60, 110),))
LINEAR = ForwardCosts((1, 64), (32,), ((1.0, 64.0),))
DEAR = ForwardCosts((1, 5), (32,), ((1.0, 2.0),))  # a position costs a quarter of a forward
GPU = ForwardCosts((1, 64), (32,), ((1.0, 1.05),))
FLAT = ForwardCosts((1, 64), (32,), ((1.0, 1.0),))


def flat() -> ForwardCosts:
    return FLAT


def steep() -> ForwardCosts:
    return LINEAR


def situation(costs: ForwardCosts, num_rows: int = 1) -> Situation:
    return Situation(lambda: costs, 32, num_rows)


@dataclass
class Run:
    """What a simulated generation took."""

    num_tokens: int
    seconds: float
    plans: list[Plan]

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds


def generate(
    plan: Callable[[], Plan],
    learn: Callable[[int, int, int, int], object],
    costs: ForwardCosts,
    num_tokens: int,
    chance: random.Random,
    right: Sequence[float],
    accepted: Sequence[float] = (),
) -> Run:
    """Forwards as the engine makes them; the guess at place k is right, those before it being right, with
    probability right[k] (and accepted likewise)."""
    plans, drafts, fed_again, seconds, left = [], 0, 0, 0.0, num_tokens

    def lucky(probabilities: Sequence[float], most: int) -> int:
        tries = (chance.random() < p for p in probabilities[:most])
        return next((k for k, hit in enumerate(tries) if not hit), min(most, len(probabilities)))

    while left > 0:
        plans.append(plan())
        tried = min(plans[-1].num_drafts, drafts, left - 1)
        masks = [min(plans[-1].num_masks, left - 1 - after) for after in range(tried + 1)]
        groups = masks if plans[-1].full else [0] * tried + masks[-1:]
        seconds += costs.of(1 + fed_again + tried + sum(groups))
        verified = lucky(right, tried)
        gained = lucky(accepted, groups[verified])
        learn(verified, tried, gained, groups[verified])
        left -= 1 + verified + gained
        drafts, fed_again = groups[verified] - gained, gained
    return Run(num_tokens - left, seconds, plans)


def planned(planner: Planner, costs: ForwardCosts, num_tokens: int, seed: int, masks: int, *chances) -> Run:
    """A generation with a real planner."""
    accepts = len(chances) > 1

    def learn(verified: int, tried: int, gained: int, fed: int) -> None:
        planner.verified.learn(verified, tried)
        if accepts:
            planner.accepted.learn(gained, fed)

    where = situation(costs)
    return generate(
        lambda: planner.plan(where, masks, masks, accepts),
        learn,
        costs,
        num_tokens,
        random.Random(seed),
        *chances,
    )


def fixed(plan: Plan, costs: ForwardCosts, num_tokens: int, seed: int, *chances) -> Run:
    """A generation with one plan."""
    return generate(lambda: plan, lambda *_: None, costs, num_tokens, random.Random(seed), *chances)


# ---- what a plan promises ----


@pytest.mark.parametrize("costs", [CPU, LINEAR, GPU, NOMINAL_COSTS])
@pytest.mark.parametrize(
    "right, accepted",
    [
        ([0.3] * 6, ()),
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], ()),
        ([0.0] * 6, [0.5] * 6),
        ([0.5] * 6, [0.3] * 6),
        ([0.8] * 6, [0.9, 0.7, 0.5, 0.3, 0.2, 0.1]),
    ],
)
def test_a_plans_promise_is_what_it_keeps_in_the_long_run(costs, right, accepted):
    def run_of(rates: Sequence[float], length: int) -> list[float]:
        runs, p = [], 1.0
        for rate in rates[:length]:
            runs.append(p := p * rate)
        return runs

    for plan in _plans(6, 4, bool(accepted)):
        got = fixed(plan, costs, 6000, 1, right, *([accepted] if accepted else []))
        promised = _speed(
            plan, situation(costs).seconds(), run_of(right, 4), run_of(accepted, 6) if accepted else [0.0] * 6
        )
        assert promised == pytest.approx(got.speed, rel=0.05), plan


def test_rows_share_a_forwards_cost():
    assert situation(CPU, 4).seconds()(4) == pytest.approx(38.9 / 4)


def test_masks_that_nothing_looks_at_are_no_choice():
    assert {plan.num_masks for plan in _plans(7, 2, False)} == {1, 2}
    assert {plan.num_masks for plan in _plans(7, 2, True)} == {1, 2, 3, 4, 6, 7}
    assert _plans(0, 0, True) == _plans(5, 0, False) == ()


def test_large_blocks_are_weighed_at_few_sizes():
    assert len(_plans(63, 63, True)) <= 24
    assert Plan(63, 63, True) in _plans(63, 63, True)


def test_costs_are_not_asked_for_where_there_is_nothing_to_weigh():
    def never() -> ForwardCosts:
        raise AssertionError("measured for nothing")

    assert Planner().plan(Situation(never, 0, 1), 0, 0, True) == ONE_TOKEN
    assert Planner().plan(Situation(never, 0, 1), 3, 0, False) == ONE_TOKEN


# ---- what it has seen ----


def test_a_place_is_tried_only_where_those_before_it_were_right():
    rates = Rates()
    for _ in range(200):
        rates.learn(1, 3)
    assert rates[0] > 0.99 and rates[1] < 0.01
    assert rates[2] == rates[1]  # never tried: as the last that was
    assert rates.run(3) == pytest.approx([1, 0, 0], abs=0.01)


def test_a_new_row_is_hopeful_and_learns_nothing_from_nothing():
    rates = Rates()
    rates.learn(0, 0)
    assert rates[0] == rates[5] == 0.6


def test_what_is_recent_counts_more():
    rates = Rates()
    for right in [0] * 100 + [1] * 30:
        rates.learn(right, 1)
    assert rates[0] > 0.8


def test_a_place_that_is_no_longer_tried_is_in_time_thought_as_good_as_the_one_before_it():
    rates = Rates()
    for _ in range(50):
        rates.learn(1, 2)
    assert rates[1] < 0.05
    for _ in range(150):
        rates.learn(1, 1)
    assert rates[1] > 0.9


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60), st.integers(0, 60))
def test_rates_are_shares_and_runs_fall_whatever_was_seen(seen, fades):
    rates = Rates()
    for number, (right, tried) in enumerate(seen):
        rates.learn(min(right, tried), tried)
        if number == fades:
            rates.fade()
    run = rates.run(8)
    assert all(0 <= p <= 1 + 1e-9 for p in run)
    assert all(a >= b - 1e-12 for a, b in zip(run, run[1:], strict=False))


# ---- what it chooses ----


def test_where_longer_windows_cost_nothing_and_drafts_are_right_it_takes_all_there_is():
    run = planned(Planner(), FLAT, 400, 0, 5, [1.0] * 5)
    assert run.plans[-1] == Plan(5, 5, True)
    assert len(run.plans) <= 1 + 400 / 6 + 4


def test_where_drafts_are_wrong_it_is_down_to_one_token_within_a_few_forwards():
    for costs in (CPU, DEAR, NOMINAL_COSTS):
        run = planned(Planner(), costs, 80, 0, 3, [0.0] * 3)
        assert set(run.plans[27:31]) == {ONE_TOKEN}
    run = planned(Planner(), LINEAR, 80, 0, 3, [0.0] * 3)
    assert set(run.plans) == {ONE_TOKEN}  # nothing could pay, so nothing is tried


def test_it_tries_again_once_in_a_while_in_two_forwards():
    run = planned(Planner(), CPU, 400, 0, 3, [0.0] * 3)
    probes = [number for number, plan in enumerate(run.plans) if plan != ONE_TOKEN]
    late = [number for number in probes if number > 60]
    assert len(late) > 15
    starts = late[::2] if late[1] == late[0] + 1 else late[1::2]
    assert {after - before for before, after in zip(starts, starts[1:], strict=False)} == {PROBE_EVERY + 1}
    for start in starts[:-1]:
        masks, drafts = run.plans[start : start + 2]
        assert masks.num_masks > 0 == masks.num_drafts and drafts.num_drafts > 0 == drafts.num_masks


def test_where_trying_is_dear_it_is_done_less_often():
    run = planned(Planner(), DEAR, 1000, 0, 3, [0.0] * 3)
    extra = run.seconds / 1000 - 1
    assert 0 < extra < 0.015


def test_without_drafts_it_still_tries_what_may_be_accepted():
    planner = Planner()
    where = situation(NOMINAL_COSTS)
    for _ in range(60):  # nothing is sure enough
        plan = planner.plan(where, 3, 0, True)
        planner.accepted.learn(0, plan.num_masks)
    masks = []
    for _ in range(6 * PROBE_EVERY):  # then everything is
        plan = planner.plan(where, 3, 0, True)
        planner.accepted.learn(plan.num_masks, plan.num_masks)
        masks.append(plan.num_masks)
    assert masks[-1] == 3


@pytest.mark.parametrize("costs", [CPU, DEAR, GPU, NOMINAL_COSTS])
def test_it_comes_back_when_drafts_become_right(costs):
    planner = Planner()
    planned(planner, costs, 300, 0, 3, [0.0] * 3)
    run = planned(planner, costs, 600, 0, 3, [1.0] * 3)
    away = next(number for number, plan in enumerate(run.plans) if plan.num_drafts and plan.num_masks)
    assert away <= 6 * PROBE_EVERY
    assert run.plans[-1].num_drafts == 3


def test_fewer_drafts_are_made_at_once_when_fewer_are_allowed():
    planner = Planner()
    where = situation(FLAT)
    assert planner.plan(where, 6, 6, False).num_drafts == 6
    assert planner.plan(where, 6, 2, False).num_drafts == 2
    assert planner.plan(where, 0, 0, False) == ONE_TOKEN


def test_a_trial_under_way_keeps_to_what_is_allowed_meanwhile():
    planner = Planner()
    where = situation(DEAR)
    for _ in range(30):
        planner.accepted.learn(0, 3)
    assert planner.plan(where, 3, 3, False).num_masks > 0  # its predictions are to be verified next
    assert planner.plan(where, 3, 0, True).num_drafts == 0


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), min_size=70, max_size=90))
def test_no_plan_ever_exceeds_what_is_allowed(asked):
    planner = Planner()
    where = situation(DEAR)
    for masks, drafts, accepts in asked:
        plan = planner.plan(where, masks, drafts, accepts)
        assert plan.num_masks <= masks and plan.num_drafts <= drafts
        planner.verified.learn(0, plan.num_drafts)


RATES = [0.0, 0.05, 0.2, 0.5, 0.8, 0.95]


@pytest.mark.parametrize("costs", [CPU, LINEAR, DEAR, GPU])
def test_it_is_never_slower_than_none_by_more_than_noise_and_near_the_best_fixed_plan(costs):
    for rate in RATES:
        right = [rate] * 3
        runs = [planned(Planner(), costs, 256, seed, 3, right) for seed in range(25)]
        ours = 256 * len(runs) / sum(run.seconds for run in runs)
        none = 1 / costs.of(1)
        best = max(fixed(plan, costs, 6000, 0, right).speed for plan in _plans(3, 3, False))
        assert ours > 0.98 * none
        assert ours > 0.9 * max(best, none)


@pytest.mark.parametrize("accepted", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("rate", [0.0, 0.4, 0.9])
def test_the_same_where_sure_predictions_are_committed(rate, accepted):
    chances = [rate] * 3, [accepted] * 3
    runs = [planned(Planner(), NOMINAL_COSTS, 256, seed, 3, *chances) for seed in range(25)]
    ours = 256 * len(runs) / sum(run.seconds for run in runs)
    best = max(fixed(plan, NOMINAL_COSTS, 6000, 0, *chances).speed for plan in _plans(3, 3, True))
    assert ours > 0.975 / NOMINAL_COSTS.of(1)
    assert ours > 0.92 * best


# ---- lookups ----


def looked_up(planner: LookupPlanner, costs: ForwardCosts, num_right: int, times: int = 1, found: int = 10):
    """The numbers of drafts taken of those found, of each of which the first so many were right."""
    taken = []
    for _ in range(times):
        where = situation(costs)
        taken.append(planner.num_drafts(where, found, 0, 1 / where.seconds()(1)))
        planner.verified.learn(min(num_right, taken[-1]), taken[-1])
    return taken


def test_lookups_that_are_right_are_all_taken():
    assert looked_up(LookupPlanner(), FLAT, 10, 20)[-1] == 10
    assert looked_up(LookupPlanner(), CPU, 10, 20)[-1] >= 7


def test_lookups_that_are_wrong_are_given_up_and_tried_again():
    taken = looked_up(LookupPlanner(), CPU, 0, 300)
    assert not any(taken[25:32])
    probes = [number for number, num in enumerate(taken) if num and number > 32]
    assert {b - a for a, b in zip(probes, probes[1:], strict=False)} == {PROBE_EVERY}
    assert sum(CPU.of(1 + num) for num in taken) < 1.02 * 300 * CPU.of(1)


def test_lookups_are_as_many_as_tend_to_be_right():
    assert looked_up(LookupPlanner(), CPU, 3, 200)[-1] in (3, 4)


def test_where_no_lookup_could_pay_none_is_tried():
    assert not any(looked_up(LookupPlanner(), LINEAR, 10, 300))


def test_lookups_come_back_when_they_become_right():
    planner = LookupPlanner()
    looked_up(planner, CPU, 0, 200)
    assert looked_up(planner, CPU, 10, 4 * PROBE_EVERY)[-1] >= 7


def test_a_lookup_gives_way_to_what_promises_more():
    planner = LookupPlanner()
    looked_up(planner, FLAT, 1, 100)
    assert planner.num_drafts(situation(FLAT), 10, 0, 1.5) > 0
    assert planner.num_drafts(situation(FLAT), 10, 0, 3.5) == 0
