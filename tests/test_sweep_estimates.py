"""The what-if curve against what is measured, and the calibration of what was accepted."""

from __future__ import annotations

import pytest

from mars_core import DecodeSettings, Engine, Request, statistics
from mars_core.bench.sweep.answers import Guess, Recording, Window, windows_of
from mars_core.bench.sweep.calibration import accepted_tokens, calibration
from mars_core.bench.sweep.what_if import num_passing, what_if
from mars_core.evaluate.intervals import wilson
from mars_core.planner import NOMINAL_COSTS
from tests.scripted import scripted_loaded
from tests.scripted_events import event, token
from tests.tiny import tiny_loaded


def run(loaded, threshold, **settings):
    engine = Engine(loaded, costs=lambda: NOMINAL_COSTS)
    chosen = DecodeSettings(threshold=threshold, num_alternatives=0, **({"max_new_tokens": 60} | settings))
    return list(engine.stream(Request([72, 105, 33], chosen)))


def measured(events):
    return statistics(events).tokens_per_forward


def graded(position, masked):
    """The same text whatever τ, each token 0.4, 0.6, 0.8 or 0.95 sure, by a fixed shuffle of positions."""
    return 65 + (position + 1) % 26, (0.4, 0.6, 0.8, 0.95)[(position * 7 + position // 5) % 4]


def guesses(*confidences):
    return tuple(Guess(value, False) for value in confidences)


def window(*confidences, verify=False, num_verified=0, num_own=1, first=0.5):
    return Window(verify, num_verified, num_own, Guess(first, False), guesses(*confidences))


# What passes


def test_predictions_pass_from_the_left_up_to_the_first_that_does_not():
    assert num_passing(guesses(0.95, 0.7, 0.99), 0.9, "probability") == 1
    assert num_passing(guesses(0.95, 0.7, 0.99), 0.7, "probability") == 3
    assert num_passing(guesses(0.1, 0.5, 0.2), 0.3, "entropy") == 1


def test_at_the_exact_end_nothing_passes_however_sure():
    assert num_passing(guesses(1.0, 1.0), 1.0, "probability") == 0
    assert num_passing(guesses(0.0), 0.0, "entropy") == 0


def test_nothing_passes_behind_a_token_that_ends_the_answer():
    ends = (Guess(0.9, False), Guess(0.9, True), Guess(0.9, False))
    assert num_passing(ends, 0.5, "probability") == 2


# The curve


@pytest.mark.parametrize(
    ("threshold", "verify"),
    [(0.05, False), (0.1, False), (0.2, False), (0.05, True), (0.1, True), (0.2, True), (1.0, True)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_at_the_run_s_own_threshold_the_estimate_is_what_was_measured(threshold, verify, seed):
    events = run(tiny_loaded(seed=seed), threshold, verify=verify)
    (estimate,) = what_if([windows_of(events)], [threshold], "probability")
    assert estimate == pytest.approx(measured(events), rel=1e-12)


@pytest.mark.parametrize("recorded_at", [0.99, 0.3])
def test_where_the_text_stays_the_same_the_estimate_is_what_is_measured_at_every_threshold(recorded_at):
    recorded = windows_of(run(scripted_loaded(graded), recorded_at, max_new_tokens=200))
    for threshold in (0.99, 0.9, 0.7, 0.5, 0.3):
        (estimate,) = what_if([recorded], [threshold], "probability")
        found = measured(run(scripted_loaded(graded), threshold, max_new_tokens=200))
        assert estimate == pytest.approx(found, rel=0.02), threshold


def test_on_a_model_whose_text_changes_the_estimate_is_of_the_right_size():
    loaded = tiny_loaded()
    recorded = windows_of(run(loaded, 0.3))
    estimates = what_if([recorded], [0.0, 0.1, 0.2, 0.3, 1.0], "probability")
    assert estimates == sorted(estimates, reverse=True) and estimates[-1] == 1
    for threshold, estimate in zip((0.1, 0.2), estimates[1:], strict=False):
        assert estimate == pytest.approx(measured(run(loaded, threshold)), rel=0.35), threshold


def test_a_stride_is_cut_where_fewer_pass_and_goes_on_from_there():
    # four tokens at once, then one: at 0.9 the first stride is two long, then 0.6 does not pass, …
    runs = [[window(0.95, 0.6, 0.6, num_own=4), window(0.3, 0.3, 0.3, first=0.4)]]
    assert what_if(runs, [0.5, 0.9, 0.2], "probability") == [5 / 2, 5 / 4, 5 / 2]


def test_a_token_that_no_window_foretold_is_as_sure_as_it_was_written():
    # the second window's first token was beyond the first window's reach
    runs = [[window(0.95, 0.6, num_own=3), window(0.1, 0.1, first=0.9)]]
    # at 0.8: a stride of two, then from the third token on to the fourth, which was written at 0.9
    assert what_if(runs, [0.8], "probability") == [4 / 2]


def test_what_a_verified_run_proved_right_counts_at_any_higher_threshold():
    # accepted one, and the next forward confirmed one draft of the rest
    runs = [[window(0.95, 0.6, 0.2, verify=True, num_own=2), window(0.1, 0.1, verify=True, num_verified=1)]]
    assert what_if(runs, [1.0, 0.9, 0.5], "probability") == [2.0, 2.0, 2.0]
    # at 0.2 all three are committed at once, one more than was confirmed
    assert what_if(runs, [0.2], "probability") == [4.0]


def test_another_metric_is_estimated_from_the_same_events():
    events = run(tiny_loaded(), 0.1)
    margins = windows_of(events, "margin")
    assert [w.guesses[0].confidence for w in margins if w.guesses] == [
        (*e.committed, *e.candidates)[1].margin for e in events if len(e.committed) + len(e.candidates) > 1
    ]
    assert what_if([margins], [0.0], "margin")[0] > 3


def test_a_run_without_masks_has_no_curve():
    assert windows_of(run(tiny_loaded(), 1.0)) == ()
    assert what_if([(), ()], [0.5], "probability") is None and what_if([], [0.5], "probability") is None


def test_what_stands_behind_the_end_of_the_answer_was_not_looked_at():
    ended = event(
        3, [token("a"), token("", "accepted", special=True)], [token("x", "candidate")], finish_reason="eos"
    )
    assert len(windows_of([ended])[0].guesses) == 1


# Calibration


def answer(events, ar_choices):
    recording = Recording()
    for item in events:
        recording.add(item)
    return recording.answer(1, 0, [-1.0] * len(ar_choices), ar_choices)


def test_each_accepted_token_is_judged_by_ar_s_choice_at_its_own_place():
    events = [
        event(0, [token("a"), token("b", "accepted", 0.97)], [token("x", "candidate", 0.3)], verify=True),
        event(1, [token("c", "verified"), token("d"), token("e", "accepted", 0.62)], verify=True),
        event(2, [token("f")], finish_reason="length", verify=True),
    ]
    found = answer(events, [True, True, True, True, False, True])
    assert list(accepted_tokens(found)) == [(0.97, True), (0.62, False)]


def test_bins_count_tokens_and_those_that_agree():
    events = [
        event(k, [token("a"), token("b", "accepted", p)]) for k, p in enumerate((0.91, 0.93, 0.55, 1.0))
    ]
    events[-1] = event(3, [token("a"), token("b", "accepted", 1.0)], finish_reason="length")
    found = answer(events, [True, True, True, False, True, False, True, True])
    bins = calibration([found], "probability")
    assert [(b.low, b.high, b.num_tokens, b.num_agreeing) for b in bins] == [
        (0.5, 0.6, 1, 0), (0.9, 0.95, 2, 1), (0.99, 1.0, 1, 1)
    ]  # fmt: skip
    assert bins[1].interval == wilson(1, 2) and bins[1].mean_confidence == pytest.approx(0.92)
    assert bins[1].share == 0.5


def test_without_accepted_tokens_there_are_no_bins():
    assert calibration([], "entropy") == []
