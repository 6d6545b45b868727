"""The numbers of the end-of-run charts, and what they say where there is nothing to draw."""

from __future__ import annotations

import json

import pytest

from app.chart_data import MOST_POINTS, Progress, bin_edges, drafts_by_place, predictions_by_fate, window_of
from app.charts import (
    acceptance_by_offset,
    confidence_histogram,
    race,
    throughput,
    tokens_per_forward_histogram,
)
from mars_core.events import StepEvent
from mars_core.settings import LiveValues
from tests.scripted_events import answer, event, token

FIGURES = [
    lambda events: throughput({"one": events}),
    lambda events: race({"one": events}),
    tokens_per_forward_histogram,
    acceptance_by_offset,
    confidence_histogram,
]
NAMES = ["throughput", "race", "histogram", "acceptance", "confidence"]


def run(*counts: int, seconds: float = 0.1) -> list[StepEvent]:
    """A prompt of one second, then forwards that commit so many tokens each."""
    first = event(0, [token("a")], seconds=1.0)
    later = [
        event(k, [token("b", "ar" if not i else "accepted") for i in range(count)], seconds=seconds)
        for k, count in enumerate(counts, start=1)
    ]
    return [first, *later]


def said(figure) -> str:
    return " ".join(note.text for note in figure.layout.annotations)


def bars(figure) -> dict[str, list[float]]:
    return {trace.name: [float(value) for value in trace.y] for trace in figure.data if trace.type == "bar"}


# ---- the clock ----


def test_compute_time_leaves_the_prompt_out_and_counts_its_token():
    progress = Progress.of(run(2, 3))
    assert progress.seconds.tolist() == pytest.approx([0, 0.1, 0.2])
    assert progress.tokens.tolist() == [1, 3, 6]
    assert progress.mean == pytest.approx(25)


def test_what_ends_a_run_between_two_forwards_is_no_forward():
    events = run(2, 2)
    events.append(StepEvent.without_forward(events[-1], LiveValues(), "cancelled"))
    assert Progress.of(events).num_forwards == 2


def test_speed_over_a_window_is_its_tokens_over_its_time():
    progress = Progress.of(run(*[1] * 10, *[3] * 10))
    times = progress.seconds[[5, 10, 15, 20]]
    assert progress.rate(times, 0.5).tolist() == pytest.approx([10, 10, 30, 30])


def test_the_window_is_a_round_number_and_holds_some_forwards():
    assert window_of([Progress.of(run(*[1] * 100))]) == 1  # a fifteenth of 10 s, rounded up
    assert window_of([Progress.of(run(*[1] * 10))]) == 0.5  # four forwards of 0.1 s, rounded up
    assert window_of([Progress.of(run(1))]) == 0


def test_a_long_lane_is_thinned_and_keeps_its_end():
    progress = Progress.of(run(*[2] * 5000))
    thin = progress.thinned()
    assert len(thin.seconds) <= MOST_POINTS + 1
    assert (thin.seconds[-1], thin.tokens[-1]) == (progress.seconds[-1], 10001)
    assert len(race({"long": run(*[2] * 5000)}).to_json()) < 40_000


# ---- the figures ----


def test_every_line_says_its_lane_and_its_mean_and_the_axis_says_the_window():
    figure = throughput({"AR": run(*[1] * 40), "MARS": run(*[2] * 40)})
    assert [trace.name for trace in figure.data] == ["AR: mean 10 tok/s", "MARS: mean 20 tok/s"]
    assert figure.layout.yaxis.title.text == "tok/s, mean of the last 0.5 s"
    assert list(figure.data[1].y) == pytest.approx([20.0] * MOST_POINTS)
    assert figure.data[0].line.dash != figure.data[1].line.dash, "not told apart by colour alone"


def test_the_race_ends_each_lane_with_a_marker():
    figure = race({"AR": run(*[1] * 40), "MARS": run(*[2] * 20)})
    ends = [(trace.x[-1], trace.y[-1]) for trace in figure.data if trace.mode == "markers"]
    assert ends == [(pytest.approx(4), 41), (pytest.approx(2), 41)]


def test_a_lane_that_has_not_begun_leaves_the_others_drawn():
    assert [trace.name for trace in throughput({"AR": [], "MARS": run(*[2] * 40)}).data][-1].startswith(
        "MARS"
    )
    assert race({"AR": [], "MARS": run(*[2] * 40)}).data


def test_tokens_per_forward_are_counted_with_their_mean():
    figure = tokens_per_forward_histogram(run(1, 3, 3, 2))
    assert bars(figure) == {None: [2, 1, 2]}  # the prompt's forward counts as one
    assert "mean 2.00" in said(figure)
    assert figure.layout.yaxis.title.text == "forwards (of 5)"


def test_acceptance_is_the_share_of_forwards_that_got_so_far_by_how():
    verified = event(
        9, [token("x", "verified"), token("y"), token("z", "accepted")], num_drafts=2, verify=True
    )
    figure = acceptance_by_offset([*run(1, 2), verified])
    assert bars(figure) == {
        "autoregressive": [75, 25, 0],
        "verified": [25, 0, 0],
        "accepted": [0, 25, 25],
    }
    line = figure.data[-1]
    assert (list(line.x), list(line.y)) == ([1, 2], [100, 0])


def test_drafts_behind_the_end_of_the_text_were_not_refused():
    last = event(3, [token("x", "verified")], num_drafts=3, verify=True, finish_reason="eos")
    fed, verified = drafts_by_place([last])
    assert (dict(fed), dict(verified)) == ({1: 1}, {1: 1})


def test_predictions_are_told_apart_by_what_became_of_them():
    guesses = [token("", "candidate", p, label=name) for p, name in ((0.8, "right"), (0.6, "wrong"))]
    one = event(0, [token("a"), token("b", "accepted", 0.95)], guesses, verify=True)
    two = event(1, [token("right", "verified", 0.9), token("other")], num_drafts=2, verify=True)
    groups = predictions_by_fate([one, two], "probability")
    assert list(groups.values()) == [[0.95], [0.8], [0.6]]
    figure = confidence_histogram([one, two])
    assert [sum(counts) for counts in bars(figure).values()] == [1, 1, 1]
    assert "τ = 0.90" in said(figure)


def test_each_tau_that_was_in_force_is_drawn_many_as_a_band():
    few = [
        event(k, [token("a")], [token("", "candidate")], threshold=t) for k, t in enumerate((0.9, 0.8, 0.9))
    ]
    figure = confidence_histogram(few)
    assert "τ = 0.80, 0.90" in said(figure)
    assert [shape.x0 for shape in figure.layout.shapes] == [0.8, 0.9]
    many = [event(k, [token("a")], [token("", "candidate")], threshold=0.5 + k / 20) for k in range(8)]
    figure = confidence_histogram(many)
    assert "τ from 0.50 to 0.85" in said(figure)
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(0.5, 0.85)]


def test_the_metric_that_was_in_force_longest_counts_and_entropy_has_its_own_axis():
    guess = [token("", "candidate", 0.2)]
    mixed = [event(k, [token("a")], guess, metric="entropy" if k else "probability") for k in range(4)]
    figure = confidence_histogram(mixed)
    assert "nats" in figure.layout.xaxis.title.text and "nats" in said(figure)
    assert sum(sum(counts) for counts in bars(figure).values()) == 3
    assert bin_edges([7.0], entropy=True)[-1] >= 7


# ---- nothing to draw ----


@pytest.mark.parametrize("figure", FIGURES, ids=NAMES)
@pytest.mark.parametrize("events", [[], [event(0)]], ids=["no events", "a prompt that commits nothing"])
def test_without_data_a_chart_says_so_in_place_of_an_axis(figure, events):
    drawn = figure(events)
    assert not drawn.data
    assert len(said(drawn)) > 15
    assert drawn.layout.xaxis.visible is False


@pytest.mark.parametrize("figure", FIGURES, ids=NAMES)
@pytest.mark.parametrize("number", [1, 2])
def test_one_forward_is_drawn_or_told(figure, number):
    drawn = figure(answer("one two three four five six seven")[:number])
    assert said(drawn) or all(len(trace.x) for trace in drawn.data)
    assert drawn.layout.title.text


def test_a_run_too_short_for_a_line_tells_its_speed():
    assert "3 tokens in 1 forward after the prompt:<br>30 tok/s" in said(throughput({"one": run(3)}))


def test_forwards_that_took_no_measurable_time_are_no_endless_speed():
    assert "no time to draw" in said(throughput({"one": run(2, 2, seconds=0.0)}))


@pytest.mark.parametrize("figure", FIGURES, ids=NAMES)
def test_saved_images_are_light(figure):
    events = answer("one two three four five six seven eight nine ten eleven")
    light = figure(events).layout
    assert light.font.color == "#1d2430" and light.paper_bgcolor == "#ffffff"


def test_names_from_outside_are_text():
    figure = race({"<a href='x'>evil</a>": run(2, 2)})
    assert figure.data[0].name.startswith("&lt;a href")
    assert "NaN" not in figure.to_json()
    assert json.loads(figure.to_json())
