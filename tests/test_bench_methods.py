"""Every method of the speed benchmark answers right, and what it tells about its run is what it did."""

from __future__ import annotations

import dataclasses

import pytest

from mars_core.bench.baselines import run_generate, up_to_stop
from mars_core.bench.continuous import CannotRun
from mars_core.bench.methods import OUR_AR, TRANSFORMERS_AR, Bench, methods
from mars_core.bench.model_clock import ModelClock
from mars_core.bench.ours import run_block, run_engine
from mars_core.bench.plan import SpeedPlan
from mars_core.costs import ForwardCosts
from mars_core.engine import Engine
from mars_core.reference import reference_generate, reference_verify
from mars_core.settings import DecodeSettings
from tests.scripted import always, never, saying, scripted_loaded
from tests.tiny import tiny_loaded

PROMPTS = [[65, 66, 67, 68, 69], [70, 71], [80]]
LENGTH = 14
COSTS = ForwardCosts(lengths=(1, 64), contexts=(32,), seconds=((1.0, 1.01),))  # drafts cost next to nothing


@pytest.fixture(scope="module")
def loaded():
    # transformers suppresses nothing, so for its methods and ours to agree nothing may be suppressed
    return dataclasses.replace(tiny_loaded(), suppressed_token_ids=())


def ar_text(loaded, prompt, length=LENGTH):
    settings = DecodeSettings(mode="ar", max_new_tokens=length)
    return tuple(token for group in reference_generate(loaded, prompt, settings) for token in group)


def outcomes(loaded, plan, batch_size):
    """Each method's answer to the first prompts."""
    bench = Bench(plan, loaded, loaded, [PROMPTS[:batch_size]], COSTS)
    with bench.on_exit:
        return {
            method.name: method.make(bench)(bench.groups[0], plan.max_new_tokens)
            for method in methods(plan, batch_size)
        }


PLAN = SpeedPlan(
    batch_sizes=(1, 3),
    max_new_tokens=LENGTH,
    thresholds=(0.1,),
    verify_thresholds=(1.0, 0.1),
    layouts=("auto", "linear", "full", "full1"),
    cache_blocks=(4, 16),
    block_thresholds=(1.0,),
)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_exact_method_gives_the_text_of_one_token_decoding(loaded, batch_size):
    expected = tuple(ar_text(loaded, prompt) for prompt in PROMPTS[:batch_size])
    found = outcomes(loaded, PLAN, batch_size)
    exact = [method for method in methods(PLAN, batch_size) if method.exact]
    assert len(exact) == (9 if batch_size == 1 else 7)
    for name in [method.name for method in exact] + [name for name in found if "block-level" in name]:
        assert found[name].tokens == expected, name


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_other_methods_give_the_text_of_the_reference(loaded, batch_size):
    found = outcomes(loaded, PLAN, batch_size)
    settings = DecodeSettings(threshold=0.1, max_new_tokens=LENGTH)
    for row, prompt in enumerate(PROMPTS[:batch_size]):
        plain = reference_generate(loaded, prompt, settings)
        tokens = tuple(token for group in plain for token in group)
        assert found["ours, MARS τ = 0.1"].tokens[row] == tokens
        verified = reference_verify(loaded, prompt, dataclasses.replace(settings, verify=True, layout="full"))
        name = "ours, MARS + verify τ = 0.1 (full)"
        assert found[name].tokens[row] == tuple(token for group in verified for token in group)


def test_the_table_names_what_the_plan_asks_for():
    plan = SpeedPlan(thresholds=(0.9,), verify_thresholds=(1,), cache_blocks=(4, 8), lookup_tokens=(3, 10))
    assert [method.name for method in methods(plan, 1)] == [
        TRANSFORMERS_AR,
        "transformers prompt lookup (3)",
        "transformers prompt lookup (10)",
        OUR_AR,
        "ours, MARS τ = 0.9",
        "ours, MARS + verify τ = 1",
        "ours, prompt lookup",
        "ours, MARS + verify τ = 1 + prompt lookup",
    ]
    assert [method.name for method in methods(plan, 4)] == [
        TRANSFORMERS_AR,
        "transformers continuous batching",
        OUR_AR,
        "ours, MARS τ = 0.9",
        "ours, MARS + verify τ = 1",
        "ours, block-level cache B_cache = 4, τ = 0.9",
        "ours, block-level cache B_cache = 8, τ = 0.9",
    ]


def test_only_and_skip_choose_by_name():
    plan = SpeedPlan(only="^OURS", skip="lookup|0.9")
    names = [method.name for method in methods(plan, 1)]
    assert names == [OUR_AR, "ours, MARS τ = 0.8", "ours, MARS + verify τ = 1"]


def test_only_transformers_methods_use_the_plain_model():
    for method in methods(PLAN, 1) + methods(PLAN, 3):
        assert method.of_transformers == method.name.startswith("transformers")


def test_a_prompt_that_comes_again_has_its_prefill_again(loaded):
    calls = []
    handle = loaded.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    prompt = list(range(65, 105))
    bench = Bench(PLAN, loaded, loaded, [[prompt]])
    for _ in range(2):
        run_engine(bench.engine, [prompt], bench.settings(mode="ar"), 3)
    handle.remove()
    assert calls == [40, 1, 1] * 2


def test_continuous_batching_shares_no_prefix_either(loaded):
    (method,) = methods(SpeedPlan(only="continuous"), 2)
    prompt = [65 + number % 40 for number in range(300)]  # longer than a page of its cache
    bench = Bench(PLAN, loaded, loaded, [[prompt, [70]]])
    calls = []
    handle = loaded.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    with bench.on_exit:
        run = method.make(bench)
        calls.clear()  # it may warm up
        run(bench.groups[0], 3)
        run(bench.groups[0], 3)
    handle.remove()
    once = calls[: len(calls) // 2]
    assert calls == once * 2 and max(once) >= 300


@pytest.mark.parametrize(
    "layout, length",
    # c and its drafts; behind the last of them, or behind each, as many masks as drafts will be verified
    [("linear", 4 + 3), ("full", 4 + 4 * 3), ("full1", 2 + 2 * 1)],
)
def test_layouts_are_what_they_are_called(layout, length):
    scripted = scripted_loaded(never())
    plan = SpeedPlan(layouts=(layout,), only="verify τ = 1($| .full| .linear)", max_new_tokens=30)
    (method,) = methods(plan, 1)
    method.make(Bench(plan, scripted, scripted, [[[65]]]))([[65]], 30)
    assert len(scripted.model.fed[1][0]) == length and method.drafted


# What a run tells of itself, on scripted models and with figures worked out by hand


def test_mars_on_a_model_that_is_always_sure():
    engine = Engine(scripted_loaded(always()))
    outcome = run_engine(engine, [[65, 66]], DecodeSettings(threshold=0.9), 12)
    # 4 with the prompt, then 4 and 4
    assert outcome.num_tokens == 12 and outcome.num_row_forwards == 3
    assert outcome.num_prefill_tokens == 4 and outcome.num_decode_forwards == 2
    assert outcome.places.predicted == outcome.places.accepted == {2: 3, 3: 3, 4: 3}
    assert outcome.decode_tokens_per_s == 8 / (outcome.wall_s - outcome.prefill_s)
    assert outcome.whole_tokens_per_s == 12 / outcome.wall_s


def test_a_prompt_fed_in_chunks_is_one_prefill():
    engine = Engine(scripted_loaded(always()), prefill_chunk=4)
    outcome = run_engine(engine, [list(range(65, 75))], DecodeSettings(mode="ar"), 5)
    assert outcome.num_prefill_tokens == 1 and outcome.num_decode_forwards == 4
    assert outcome.num_row_forwards == 5


def test_verification_of_drafts_that_are_always_right():
    engine = Engine(scripted_loaded(never()))
    settings = DecodeSettings(threshold=1.0, verify=True, layout="full")
    outcome = run_engine(engine, [[65, 66]], settings, 12)
    # 1 with the prompt, then 3 drafts + 1 twice, then 2 drafts + 1: the budget has room for no more
    assert outcome.num_tokens == 12 and outcome.num_row_forwards == 4
    assert outcome.num_prefill_tokens == 1 and outcome.num_decode_forwards == 3
    assert outcome.places.drafts_fed == outcome.places.drafts_verified == {1: 3, 2: 3, 3: 2}
    assert not outcome.places.predicted  # at τ = 1 nothing can be accepted


def test_a_batch_counts_no_row_behind_its_end():
    # the token at position 10 ends every row: 8 tokens for a prompt of 3, 6 for one of 5
    script = saying([66] * 7 + [258], start=3)
    engine = Engine(scripted_loaded(script))
    outcome = run_engine(engine, [[65] * 3, [65] * 5], DecodeSettings(mode="ar"), 40)
    assert [len(row) for row in outcome.tokens] == [8, 6]
    assert outcome.num_row_forwards == 14
    ready = outcome.num_prefill_tokens - 1  # of the first row, when the second had its first token
    assert ready in (1, 2)
    assert outcome.num_decode_forwards == max(8 - ready, 6 - 1)
    assert 0 < outcome.prefill_s < outcome.wall_s


def test_the_block_level_cache_counts_forwards_of_the_batch_and_of_rows():
    loaded = scripted_loaded(always())
    outcome = run_block(loaded, [[65] * 3, [65] * 5], DecodeSettings(threshold=0.9), 9, cache_block=4)
    assert [len(row) for row in outcome.tokens] == [9, 9]
    # the prompts give a token each; blocks of 4: a forward fills what is left of one, another extends
    assert outcome.num_prefill_tokens == 2
    assert outcome.num_row_forwards == 2 * (outcome.num_decode_forwards + 1)


def test_generate_goes_on_to_the_longest_row_and_only_answers_count(loaded):
    text = ar_text(loaded, PROMPTS[1], 12)
    stop = text[4]
    stopping = dataclasses.replace(loaded, stop_token_ids=frozenset({stop}))
    expected = tuple(ar_text(stopping, prompt, 12) for prompt in PROMPTS)
    lengths = [len(row) for row in expected]
    assert min(lengths) < max(lengths)
    outcome = run_generate(stopping, PROMPTS, 12, ignore_eos=False)
    assert outcome.tokens == expected
    assert outcome.num_decode_forwards == max(lengths) - 1
    assert outcome.num_row_forwards == outcome.num_tokens == sum(lengths)
    assert outcome.num_prefill_tokens == 3


@pytest.mark.parametrize("batch_size", [1, 3])
def test_all_answers_have_the_same_length_where_the_end_is_ignored(loaded, batch_size, caplog):
    stop = ar_text(loaded, PROMPTS[0])[2]
    stopping = dataclasses.replace(loaded, stop_token_ids=frozenset({stop}))
    plan = dataclasses.replace(PLAN, ignore_eos=True)
    for name, outcome in outcomes(stopping, plan, batch_size).items():
        assert {len(row) for row in outcome.tokens} == {LENGTH}, name
    assert "should consist of positive integers" not in caplog.text
    assert len(outcomes(stopping, PLAN, 1)[OUR_AR].tokens[0]) == 3


def test_an_answer_ends_with_the_token_that_ends_it():
    assert up_to_stop([5, 7, 9, 7], frozenset({7})) == (5, 7)
    assert up_to_stop([5, 7], frozenset()) == (5, 7)


def test_the_model_s_share_of_the_time_is_told_on_a_cpu(loaded):
    for name, outcome in outcomes(loaded, PLAN, 3).items():
        assert outcome.outside_model is not None and 0 < outcome.outside_model < 1, name


def test_no_share_is_told_where_the_model_ran_past_the_clock(loaded):
    with ModelClock(loaded.model) as clock:
        run_generate(loaded, PROMPTS, 3, ignore_eos=False)
    assert clock.seconds(0.0, 3) is not None
    assert clock.seconds(0.0, 4) is None
    assert not loaded.model._forward_hooks and not loaded.model._forward_pre_hooks


def test_rows_leave_the_engine_when_a_forward_fails():
    loaded = scripted_loaded(always())

    def fail(number):
        if number == 3:
            raise RuntimeError("no luck")

    loaded.model.before = fail
    engine = Engine(loaded)
    with pytest.raises(RuntimeError, match="no luck"):
        run_engine(engine, [[65], [66], [67]], DecodeSettings(mode="ar"), 20)
    loaded.model.before = lambda number: None
    assert run_engine(engine, [[65]], DecodeSettings(mode="ar"), 4).num_tokens == 4


def test_continuous_batching_that_does_not_start_says_why(loaded, monkeypatch):
    def refuse(**_):
        raise ValueError("not on this device")

    monkeypatch.setattr(loaded.model, "init_continuous_batching", refuse, raising=False)
    (method,) = methods(SpeedPlan(only="continuous"), 2)
    with pytest.raises(CannotRun, match="ValueError: not on this device"):
        method.make(Bench(PLAN, loaded, loaded, [PROMPTS[:2]]))
