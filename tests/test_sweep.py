"""Sweeps: every point answers every prompt, what is stopped keeps what is done, and what follows is right."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import closing

import pytest
import torch

from mars_core import DecodeSettings, Engine, MarsError, Request
from mars_core.bench.prompts_file import Prompt
from mars_core.bench.sweep.answers import Recording
from mars_core.bench.sweep.figures import complete, figures_of, leading_share
from mars_core.bench.sweep.grid import AR, GridPoint, SweepPlan, Workload
from mars_core.bench.sweep.prompts import BUILT_IN, built_in, parse_prompts, ready
from mars_core.bench.sweep.run import Sweep
from mars_core.costs import ForwardCosts
from mars_core.planner import NOMINAL_COSTS
from tests.scripted import always, never
from tests.scripted_events import event, token
from tests.scripted_sweep import scorable
from tests.tiny import tiny_loaded

PROMPTS = [Prompt(text, None, "here") for text in ("hello", "Why?", "1 2 3")]


def sweep_of(loaded, num_prompts=2, answers=(), **plan):
    plan = SweepPlan(**({"block_sizes": (4,), "thresholds": (0.2, 1.0), "max_new_tokens": 12} | plan))
    engine = Engine(loaded, costs=lambda: NOMINAL_COSTS, prefix_bytes=0)
    return Sweep(engine, plan, ready(PROMPTS[:num_prompts], loaded, plan.max_new_tokens), answers)


def swept(loaded, **options):
    sweep = sweep_of(loaded, **options)
    progress = list(sweep.steps())
    return sweep, progress


@pytest.fixture(scope="module")
def tiny():
    return tiny_loaded()


# The grid


def test_ar_is_always_the_first_point_and_stands_for_what_decodes_as_it():
    plan = SweepPlan((4, 8), thresholds=(1.0, 0.5))
    assert plan.points()[0] == AR
    others = [(point.verify, point.block_size, point.threshold) for point in plan.points()[1:]]
    assert others == [
        (False, 4, 0.5), (False, 8, 0.5), (True, 4, 0.5), (True, 4, 1.0), (True, 8, 0.5), (True, 8, 1.0)
    ]  # fmt: skip


def test_each_metric_has_thresholds_of_its_own_scale():
    plan = SweepPlan((4,), (0.5,), ("margin", "entropy"), entropy_thresholds=(0.0, 1.5), verify="off")
    assert [(point.metric, point.threshold) for point in plan.points()[1:]] == [
        ("margin", 0.5),
        ("entropy", 1.5),
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"thresholds": (1.5,)}, "1.5"),
        ({"thresholds": ()}, "probability"),
        ({"thresholds": (float("nan"),)}, "nan"),
        ({"block_sizes": ()}, "block_sizes"),
        ({"block_sizes": (0,)}, "block_size is 0"),
        ({"metrics": ("luck",)}, "luck"),
        ({"verify": "maybe"}, "maybe"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"thresholds": tuple(k / 1000 for k in range(600))}, "allowed are 500"),
        ({"metrics": ("probability",) * 100_000}, "allowed are 500"),
    ],
)
def test_what_is_no_grid_is_refused_by_name(changes, named):
    with pytest.raises(MarsError, match=named):
        SweepPlan(**({"block_sizes": (4,)} | changes))


def test_a_grid_that_is_too_large_is_refused_without_a_look_at_its_points(monkeypatch):
    monkeypatch.setattr(SweepPlan, "points", lambda plan: pytest.fail("enumerated"))
    with pytest.raises(MarsError, match="has 375001 points; allowed are 500"):
        SweepPlan(tuple(range(1, 251)), (0.5,) * 250, ("probability", "margin", "entropy"), (0.1,) * 250)


def test_the_workload_is_told_before_it_is_run():
    plan = SweepPlan((4,), thresholds=(0.5,), verify="off", max_new_tokens=10)
    costs = ForwardCosts((1, 4, 10), (1,), ((1.0, 2.0, 3.0),))
    # two prompts: 10 forwards of one position, 10 of four, and two texts scored
    assert Workload.of(plan, 2, costs) == Workload(4, 40, 2 * (10 * (1 + 2) + 2 * 3))
    assert Workload.of(plan, 2, None).seconds is None


# The run


def test_every_point_answers_every_prompt_as_the_engine_would(tiny):
    sweep, progress = swept(tiny)
    assert {(a.prompt, a.point) for a in sweep.answers} == {(p, n) for p in range(2) for n in range(4)}
    for answer in sweep.answers:
        point, prompt = sweep.points[answer.point], sweep.prompts[answer.prompt]
        settings = dataclasses.replace(point.settings(12), num_alternatives=3)
        events = list(Engine(tiny, costs=lambda: NOMINAL_COSTS).stream(Request(prompt.ids, settings)))
        assert answer.ids == tuple(choice.id for e in events for choice in e.committed)
        assert answer.text == "".join(e.text for e in events)
    assert progress[-1].num_done == progress[-1].num_answers == 8 and progress[-1].share == 1
    shares = [step.share for step in progress]
    assert shares == sorted(shares) and progress[-1].eta_s == 0


def test_figures_of_a_model_that_is_always_sure():
    sweep, _ = swept(scorable(always()), thresholds=(0.5, 1.0), max_new_tokens=16)
    rows = {row.point.name: row for row in figures_of(sweep.points, sweep.answers)}
    assert rows["AR (one token a forward)"].tokens_per_forward == 1
    assert rows["τ 0.5, B 4"].tokens_per_forward == 4
    assert rows["τ 1, B 4, verify"].tokens_per_forward > 2
    for row in rows.values():
        assert row.agreement == row.ar_choices == 1 and row.same_text == row.num_prompts == 2
        assert row.speedup is not None and row.log_likelihood == pytest.approx(0, abs=1e-6)
    assert rows["AR (one token a forward)"].speedup.median == 1


def test_a_model_that_is_never_sure_commits_one_token_a_forward_without_verification():
    sweep, _ = swept(scorable(never()), thresholds=(0.5,), verify="off")
    assert {row.tokens_per_forward for row in figures_of(sweep.points, sweep.answers)} == {1.0}


def test_the_likelihood_is_the_model_s_own_and_ar_is_ar_s_choice_throughout(tiny):
    sweep, _ = swept(tiny, num_prompts=1, thresholds=(0.05,))
    for answer in sweep.answers:
        ids = torch.tensor([[*sweep.prompts[0].ids, *answer.ids]])
        logits = tiny.model(input_ids=ids).logits.detach()[0, len(sweep.prompts[0].ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None]).sum()
        assert answer.log_likelihood == pytest.approx(float(expected), rel=1e-4)
    of = {sweep.points[answer.point]: answer for answer in sweep.answers}
    assert all(of[AR].ar_choices)
    unsure = of[GridPoint("mars", "probability", 4, False, 0.05)]
    assert unsure.ids != of[AR].ids and not all(unsure.ar_choices)


def test_cancelled_between_two_forwards_it_keeps_what_is_finished(tiny):
    sweep = sweep_of(tiny)
    num_steps = []
    for progress in sweep.steps(lambda: len(num_steps) > 30):
        num_steps.append(progress)
    kept = len(sweep.answers)
    assert 0 < kept < 8 and num_steps[-1].num_done == kept
    assert sweep.engine.rows == [] and not sweep.engine.waiting
    assert {row.num_prompts for row in figures_of(sweep.points, sweep.answers)} == {1}


def test_a_row_that_waits_for_its_turn_ends_with_its_sweep(tiny):
    sweep, asked = sweep_of(tiny), itertools.count()
    sweep.engine.max_rows = 1
    with closing(sweep.engine.stream(Request([72], DecodeSettings(max_new_tokens=300)))) as other:
        next(other)  # it has the only place
        assert list(sweep.steps(lambda: next(asked) > 0)) == [] and sweep.answers == []
        (row,) = sweep.engine.rows
        assert not row.ended and not sweep.engine.waiting


def test_an_answer_that_was_cut_off_is_none(tiny, monkeypatch):
    sweep, stopped = sweep_of(tiny), []
    step = sweep.engine.step

    def stop_and_step():
        stopped.extend(sweep.answers)
        step()

    monkeypatch.setattr(sweep.engine, "step", stop_and_step)
    list(sweep.steps(lambda: bool(stopped)))
    assert len(sweep.answers) == 1 and sweep.engine.rows == []


def test_closing_the_iterator_leaves_no_row_in_the_engine(tiny):
    sweep = sweep_of(tiny)
    steps = sweep.steps()
    next(steps), next(steps)
    assert len(sweep.engine.rows) == 1
    steps.close()
    assert sweep.engine.rows == [] and sweep.answers == []


def test_a_failing_forward_reaches_the_caller_and_what_was_done_stays():
    loaded = scorable(always())
    sweep = sweep_of(loaded, thresholds=(0.5,), verify="off")
    steps = sweep.steps()
    while len(sweep.answers) < 2:
        next(steps)

    def fail(number):
        raise RuntimeError("broken")

    loaded.model.before = fail
    with pytest.raises(RuntimeError, match="broken"):
        list(steps)
    assert len(sweep.answers) == 2 and sweep.engine.rows == []


def test_what_was_answered_before_is_not_answered_again(tiny):
    first, _ = swept(tiny, num_prompts=1)
    second, progress = swept(tiny, num_prompts=2, answers=first.answers)
    assert second.answers[:4] == first.answers
    assert {step.prompt for step in progress} == {1} and progress[0].share >= 0.5
    assert swept(tiny, num_prompts=2, answers=second.answers)[1] == []


def test_a_prompt_that_does_not_fit_the_context_is_refused_before_any_forward(tiny):
    with pytest.raises(MarsError, match="here: the prompt has"):
        ready([Prompt("x" * 600, None, "here")], tiny, 12)


# Figures


def answer_of(point, prompt, ids, **changes):
    recording = Recording(ids=list(ids), finish_reason="length", decode_tokens=len(ids) - 1, decode_s=1.0)
    recording.counter.num_forwards = len(ids)
    made = recording.answer(point, prompt, [-1.0] * len(ids), [True] * len(ids))
    return dataclasses.replace(made, **changes)


POINTS = SweepPlan((4,), thresholds=(0.5,), verify="off").points()


def test_only_prompts_that_every_point_has_answered_count():
    answers = [answer_of(0, 0, [1, 2]), answer_of(1, 0, [1, 3]), answer_of(0, 1, [5, 5, 5])]
    assert complete(2, answers) == {0}
    assert [row.num_prompts for row in figures_of(POINTS, answers)] == [1, 1]
    assert [row.num_tokens for row in figures_of(POINTS, answers)] == [2, 2]


def test_before_there_is_such_a_prompt_each_row_is_of_what_there_is():
    (row,) = figures_of(POINTS, [answer_of(1, 0, [1, 3])])
    assert row.point == POINTS[1] and row.num_prompts == 1
    assert row.agreement is None and row.speedup is None and row.same_text is None
    assert figures_of(POINTS, []) == []


def test_agreement_ends_at_the_first_difference():
    assert leading_share([5, 7, 9], [5, 7, 8, 4]) == 0.5
    assert leading_share([5, 7], [5, 7, 8, 4]) == 0.5 and leading_share([5], [5]) == 1
    answers = [answer_of(0, 0, [1, 2, 3, 4]), answer_of(1, 0, [1, 9, 3, 4])]
    row = figures_of(POINTS, answers)[1]
    assert row.agreement == 0.25 and row.same_text == 0 and row.same_text_interval[0] == 0


def test_speed_is_held_against_ar_s_on_the_same_prompt():
    answers = [
        answer_of(0, 0, [1, 2, 3], decode_s=2.0), answer_of(1, 0, [1, 2, 3], decode_s=1.0),
        answer_of(0, 1, [1, 2, 3], decode_s=2.0), answer_of(1, 1, [1, 2, 3], decode_s=0.5),
    ]  # fmt: skip
    ar, row = figures_of(POINTS, answers)
    assert (row.speedup.first, row.speedup.median, row.speedup.third) == (2.5, 3.0, 3.5)
    assert ar.tokens_per_s.median == 1.0 and row.tokens_per_s.median == 3.0


def test_forwards_shared_with_others_say_nothing_of_speed():
    recording = Recording()
    recording.add(event(0, [token("a")], seconds=9.0))  # the prefill
    recording.add(event(1, [token("b"), token("c", "accepted")], seconds=0.5))
    recording.add(event(2, [token("d")], seconds=5.0, num_rows=3, finish_reason="length"))
    answer = recording.answer(1, 0, [-1.0] * 4, [True] * 4)
    assert answer.num_shared == 1 and answer.tokens_per_s == 4.0 and answer.num_forwards == 3
    alone = dataclasses.replace(answer, decode_tokens=0, decode_s=0.0)
    assert alone.tokens_per_s is None


# Prompts


def test_the_built_in_prompts_are_few_short_and_different():
    assert 4 <= len(BUILT_IN) == len(set(BUILT_IN)) and max(map(len, BUILT_IN)) < 200
    assert [prompt.text for prompt in built_in(2)] == list(BUILT_IN[:2])


def test_prompts_are_one_a_line_or_json_lines():
    assert [p.text for p in parse_prompts(" one \n\n two\r\n", "the box")] == ["one", "two"]
    lines = '{"prompt": "a\\nb"}\n{"turns": ["c", "d"]}'
    assert [p.text for p in parse_prompts(lines, "the box")] == ["a\nb", "c"]
    # text that merely begins like JSON is text
    assert parse_prompts('{"a": 1} Explain this.', "the box")[0].text == '{"a": 1} Explain this.'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" \n\u200b\n", "no prompt in the box"),
        ('{"prompt": "a"}\nplain', "the box, line 2"),
        ('{"prompt": 3}', "the box, line 1"),
        ('{"prompt": " "}', "the box, line 1: the prompt is empty"),
        ("a\n" + "b" * 51, "the box, line 2: the prompt has 51 characters; allowed are 50"),
        ("a\nb\nc\nd", "4 prompts in the box; allowed are 3"),
        ('{"prompt": "a"}\n' + "[" * 100_000, "the box, line 2"),
    ],
)
def test_what_is_no_prompt_is_refused_by_its_line(text, said):
    with pytest.raises(MarsError, match=said):
        parse_prompts(text, "the box", most=3, longest=50)


def test_settings_are_greedy():
    assert AR.settings(5) == DecodeSettings(
        mode="ar", threshold=1.0, block_size=1, max_new_tokens=5, num_alternatives=0
    )
