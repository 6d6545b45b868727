"""The Explore tab without a browser: charts, form, words, and the paper's figures."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import gradio as gr
import pytest

from app.explore import ExploreTab, Refreshed
from app.explore_charts import X_AXES, Y_AXES, calibration_strip, pareto, what_if_chart
from app.explore_estimate import Estimates, what_if_of_run, what_if_of_sweep
from app.explore_form import OWN_PROMPTS, FormValues, duration, workload_line
from app.explore_paper import paper, paper_curves, source_line
from app.explore_results import _choose
from app.explore_view import at_rest, table, under_way
from app.live import LiveRegistry
from mars_core import Engine, LiveValues, MarsError, Trace
from mars_core.bench.sweep.calibration import CalibrationBin
from mars_core.bench.sweep.grid import GridPoint, SweepPlan
from mars_core.bench.sweep.prompts import built_in, ready
from mars_core.bench.sweep.result import SweepResult
from mars_core.bench.sweep.run import Progress, Sweep
from mars_core.planner import NOMINAL_COSTS
from tests.scripted import always
from tests.scripted_events import answer
from tests.scripted_sweep import scorable
from tests.tiny import tiny_loaded

POINT = GridPoint("mars", "probability", 4, False, 0.2)


@pytest.fixture(scope="module")
def result():
    loaded = tiny_loaded()
    plan = SweepPlan((4,), thresholds=(0.05, 0.2, 1.0), max_new_tokens=10)
    prompts = ready(built_in(2), loaded, 10)
    sweep = Sweep(Engine(loaded, costs=lambda: NOMINAL_COSTS), plan, prompts)
    for _ in sweep.steps():
        pass
    facts = {"model": "tiny", "dtype": "float32", "device": "cpu", "hardware": "here"}
    return SweepResult(facts, plan, tuple(prompt.text for prompt in prompts), tuple(sweep.answers))


def form(**changes):
    values = dict(
        source="Built in", num_built_in=2, text="", thresholds="0.5, 1", verify="both", block_sizes="4",
        metrics=["probability"], entropy_thresholds="0.2", max_new_tokens=16,
    )  # fmt: skip
    return FormValues(**(values | changes))


def names(figure):
    return [trace.name for trace in figure.data]


# The paper


def test_the_paper_s_averages_are_those_of_its_tasks():
    data = paper()
    rows = [*data["table_2"]["rows"], *data["table_4"]["rows"]]
    assert len(rows) == 9 + 6 and len(data["tasks"]) == 6
    for row in rows:
        assert len(row["accuracy"]) == 6
        assert sum(row["accuracy"]) / 6 == pytest.approx(row["average_accuracy"], abs=0.0501)
    for row in data["table_4"]["rows"]:
        mean = sum(row["tokens_per_forward"]) / 6
        assert mean == pytest.approx(row["average_tokens_per_forward"], abs=0.00501)


def test_the_paper_s_file_says_whose_it_is_and_what_it_may_be_used_for():
    data = paper()
    assert "2604.07023" in data["url"] and data["licence"] == "CC BY 4.0"
    assert all(name in source_line() for name in ("Jin", "CC BY 4.0", "Qwen2.5-7B-Instruct", "Other models"))
    table = data["table_5"]
    assert all(len(row["speedup"]) == len(table["batch_sizes"]) == 3 for row in table["rows"])
    best = max(table["rows"], key=lambda row: row["speedup"][0])
    assert (best["cache_block"], best["speedup"][0]) == (32, 1.71)


def test_a_curve_goes_from_one_token_mode_to_the_paper_s_threshold():
    curves = {curve.name: curve.points for curve in paper_curves()}
    assert len(curves) == 6
    slow, fast = curves["7B, B 4"]
    assert (slow.threshold, slow.tokens_per_forward, slow.accuracy) == (1.0, 1.0, 58.1)
    assert (fast.threshold, fast.tokens_per_forward, fast.accuracy) == (0.95, 1.68, 56.8)
    assert len(curves["7B, B 16"]) == 1  # its one-token mode is not in the paper


# Charts


@pytest.mark.parametrize("y", Y_AXES)
@pytest.mark.parametrize("x", X_AXES)
def test_the_chart_has_a_line_for_settings_that_differ_in_tau_and_a_mark_for_ar(result, x, y):
    figure = pareto(result.figures, x, y)
    assert names(figure) == ["MARS, B 4", "MARS + verify, B 4", "AR, one token a forward"]
    assert [list(trace.text) for trace in figure.data[:2]] == [["0.05", "0.2"], ["0.05", "0.2", "1"]]
    assert figure.layout.xaxis.title.text == X_AXES[x].title
    assert figure.layout.yaxis.title.text == Y_AXES[y].title
    assert figure.data[0].error_y.array is not None
    json.loads(figure.to_json())


def test_a_point_carries_what_a_click_on_it_sets(result):
    point = pareto(result.figures, "tokens_per_forward", "agreement").data[1].customdata[2]
    assert list(point[:4]) == [1.0, "probability", 4, True]


def test_agreement_is_in_percent_and_likelihood_in_nats(result):
    row = result.figures[0]
    (best,) = pareto([row], "tokens_per_forward", "agreement").data
    assert best.y == (100,) and best.x == (1.0,)
    (likely,) = pareto([row], "tokens_per_forward", "log_likelihood").data
    assert likely.y == (row.log_likelihood,)


def test_the_paper_is_off_by_default_and_has_an_axis_of_its_own(result):
    assert not any(
        "paper" in name for name in names(pareto(result.figures, "tokens_per_forward", "agreement"))
    )
    figure = pareto(result.figures, "tokens_per_forward", "agreement", with_paper=True)
    laid_over = [trace for trace in figure.data if trace.name.startswith("paper: ")]
    assert len(laid_over) == 6 and {trace.yaxis for trace in laid_over} == {"y2"}
    assert [trace.name for trace in laid_over if trace.showlegend] == [
        "paper: 0.5B models", "paper: 7B models"
    ]  # fmt: skip
    assert figure.layout.yaxis2.title.text == "paper: average accuracy, %"
    assert figure.layout.yaxis.title.text == Y_AXES["agreement"].title
    # it has no speed-up of one answer at a time
    assert len(pareto(result.figures, "speedup", "agreement", with_paper=True).data) == 3


def test_without_data_a_chart_says_what_is_missing():
    for figure in (
        pareto([], "speedup", "agreement"),
        what_if_chart(None, [], None),
        what_if_chart(POINT, [0.5], None),
        calibration_strip([], POINT),
    ):
        assert len(figure.data) == 0 and figure.layout.annotations[0].text


def test_a_point_without_a_speed_is_left_out_of_the_speed_chart(result):
    rows = [result.figures[0], dataclasses.replace(result.figures[1], speedup=None)]
    assert names(pareto(rows, "speedup", "agreement")) == ["AR, one token a forward"]


def test_the_estimate_is_marked_as_one_and_the_measured_points_stand_on_it(result):
    found = what_if_of_sweep(result, "τ 0.2, B 4")
    figure = what_if_chart(
        found.point, found.thresholds, found.estimates, found.measured, source=found.source
    )
    assert names(figure) == ["estimate, from the runs at τ 0.2, B 4", "measured"]
    estimate, measured = figure.data
    assert estimate.line.dash == "dash" and list(measured.x) == [0.05, 0.2]
    own = estimate.y[list(estimate.x).index(0.2)]
    assert own == pytest.approx(measured.y[1])
    assert list(estimate.customdata[0]) == [0.0, "probability", 4, False]
    assert "on probability" in figure.layout.xaxis.title.text


def test_the_first_estimate_is_from_the_runs_nearest_to_ar_and_trust_from_the_loosest(result):
    found = what_if_of_sweep(result, None)
    assert (found.point.threshold, found.point.verify) == (0.2, False)
    assert (found.bins_of.threshold, found.bins_of.verify) == (0.05, False)
    assert sum(item.num_tokens for item in found.bins) > 0


def test_nothing_is_chosen_where_nothing_can_be_estimated_from(result):
    started = dataclasses.replace(result, answers=result.answers[:1])  # one-token mode's
    assert not started.estimable()
    with gr.Blocks():
        estimates = Estimates()
    box, run_of, *_ = estimates.update(started, "τ 0.6, B 4")
    assert box == gr.update(visible=False) and run_of == gr.skip()
    _, run_of, *_ = estimates.update(result, "τ 0.6, B 4")
    assert run_of["value"] == "τ 0.2, B 4" and run_of["value"] in run_of["choices"]


@pytest.mark.parametrize("name", ["τ 0.6, B 4", "", None, [], {}, 7])
def test_a_name_of_another_sweep_is_that_of_none(result, name):
    assert what_if_of_sweep(result, name).point == result.estimable()[0]


def test_an_answer_of_chat_can_be_estimated_from_too():
    trace = Trace((), (1,), {}, {}, tuple(answer("one two three four five six seven eight")))
    found = what_if_of_run(trace)
    tokens = sum(len(event.committed) for event in trace.events)
    assert found.estimates[found.thresholds.index(0.9)] == pytest.approx(tokens / len(trace.events))
    assert what_if_of_run(Trace((), (1,), {}, {}, ())) is None
    (_, ran) = what_if_chart(found.point, found.thresholds, found.estimates, ran=found.ran).data
    assert (ran.name, ran.x, ran.y) == ("measured", (0.9,), (tokens / len(trace.events),))
    plain = answer("one two", counts=(1,), one_token=True)
    assert what_if_of_run(Trace((), (1,), {}, {}, tuple(plain))) is None


@pytest.mark.parametrize(
    "turned", [{"threshold": 0.7}, {"metric": "margin"}, {"block_size": 8}, {"verify": True}]
)
def test_an_answer_whose_dial_was_turned_is_estimated_from_by_nothing(turned):
    events = answer("one two three four five six seven eight")
    events[1] = dataclasses.replace(events[1], **turned)
    assert what_if_of_run(Trace((), (1,), {}, {}, tuple(events))) is None
    # what says that it was stopped carries the dial of that moment, and no token
    ended = dataclasses.replace(answer("one")[-1], committed=(), finish_reason="cancelled", threshold=0.6)
    stopped = Trace((), (1,), {}, {}, (*answer("one two three")[:-1], ended))
    assert what_if_of_run(stopped).point.threshold == 0.9


def test_the_strip_shows_share_interval_and_number_of_tokens():
    bins = [CalibrationBin(0.9, 0.95, 40, 38, 0.93, (0.83, 0.99))]
    bars, promised = calibration_strip(bins, POINT).data
    assert bars.y == (95.0,) and bars.x == ("0.9–0.95<br>n 40",) and promised.y == (93.0,)
    assert bars.error_y.array[0] == pytest.approx(4) and bars.error_y.arrayminus[0] == pytest.approx(12)
    entropy = GridPoint("mars", "entropy", 4, False, 1.0)
    assert len(calibration_strip([CalibrationBin(2.0, 100.0, 3, 1, 2.5, (0, 1))], entropy).data) == 1


# The form


def test_the_form_s_values_become_a_plan_and_prompts():
    values = form(thresholds="0.5; 0.7 1", block_sizes="2, 4", verify="with")
    plan = values.plan()
    assert plan == SweepPlan((2, 4), (0.5, 0.7, 1.0), ("probability",), (0.2,), "on", 16)
    assert len(values.prompts()) == 2
    assert [p.text for p in form(source=OWN_PROMPTS, text="a\n\nb").prompts()] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"thresholds": ""}, "no threshold"),
        ({"thresholds": "low"}, "Thresholds is"),
        ({"block_sizes": "4.5"}, "Block sizes is"),
        ({"metrics": []}, "More settings"),
        ({"max_new_tokens": 4000}, "allowed is 1 to 256"),
        ({"max_new_tokens": None}, "Max new tokens is None"),
        ({"source": OWN_PROMPTS, "text": None}, "no prompt in your prompts"),
        ({"source": OWN_PROMPTS, "text": "a\n" * 51}, "allowed are 50"),
        ({"source": OWN_PROMPTS, "text": "a\n" + "b" * 5000}, "your prompts, line 2"),
        ({"thresholds": " ".join(f"0.{k:03}" for k in range(99)), "block_sizes": "2 4 8"}, "allowed are 400"),
        (
            {"thresholds": " ".join(f"0.{k:03}" for k in range(99)), "block_sizes": "2 3 4 8"},
            "allowed are 500",
        ),
    ],
)
def test_what_a_visitor_asks_too_much_of_is_refused(changes, said):
    values = form(**changes)
    with pytest.raises(MarsError, match=said):
        values.check_size(values.plan(), len(values.prompts()))
    assert said.split()[0] in workload_line(values, None)


def test_a_choice_that_is_sent_many_times_counts_once():
    values = form(metrics=["probability"] * 100_000)
    assert values.plan() == form().plan()


def test_a_prompt_that_everybody_would_wait_for_is_refused_by_its_line():
    loaded = scorable(always(), context_length=4096)
    with gr.Blocks():
        tab = ExploreTab(Engine(loaded, costs=lambda: NOMINAL_COSTS), LiveRegistry())
    tab._begin(form(source=OWN_PROMPTS, text="short\n" + "b" * 400))
    with pytest.raises(MarsError, match="your prompts, line 2: the prompt has .* allowed are 512"):
        tab._begin(form(source=OWN_PROMPTS, text="short\n" + "b" * 600))
    assert "up to 512 tokens" in tab.form.text.info


def test_the_workload_is_told_in_words():
    line = workload_line(form(), None)
    assert "4 settings (AR among them) × 2 prompts = 8 answers of up to 16 tokens" in line
    assert "reading the prompts apart" in workload_line(form(), NOMINAL_COSTS) and "about" not in line


def test_hostile_text_in_the_form_is_shown_and_not_run():
    line = workload_line(form(thresholds="<img src=x onerror=alert(1)> ${alert(1)} {{value}}"), None)
    assert "<img" not in line and "${" not in line and "{{" not in line and "&lt;img" in line


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "1 s"), (9.1, "10 s"), (42, "45 s"), (75, "75 s"), (101, "1 min 50 s"), (119, "2 min"),
        (1000, "17 min"),
    ],
)  # fmt: skip
def test_durations_are_rounded_to_what_can_be_known(seconds, said):
    assert duration(seconds) == said


# Pace and Stop


def test_what_is_shown_again_is_made_a_tenth_of_the_time_at_most(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("app.explore.time", SimpleNamespace(perf_counter=lambda: now[0]))
    table = Refreshed(1.5)
    assert not table.due(0, 0.0) and table.due(1, 0.0)
    now[0] += 1.4
    assert not table.due(2, 0.0)
    now[0] += 0.2
    assert not table.due(2, 0.3) and not table.due(1, 0.0) and table.due(2, 0.15)
    now[0] += 3.1
    assert table.due(3, 0.3)


def test_stop_brings_the_tab_to_rest_where_the_sweep_does_not(monkeypatch):
    monkeypatch.setattr("app.explore.STOP_WAIT_S", 0.01)
    registry, request = LiveRegistry(), SimpleNamespace(session_hash="me")
    with gr.Blocks():
        tab = ExploreTab(Engine(tiny_loaded(), costs=lambda: NOMINAL_COSTS), registry)
    assert tab._stop(request) == [gr.skip()] * 3
    with registry.running("me/sweep", LiveValues()) as running:
        progress, start, stop = tab._stop(request)
        assert running.live.cancelled
    assert progress["state"] == "stopped" and start["interactive"] and not stop["interactive"]


# Words


def test_progress_names_answer_setting_and_time_to_go():
    progress = Progress(3, 8, POINT, 1, 5, 0.4, 10.0, 14.0)
    message = under_way(progress, "<b>hi</b>", 2)
    assert message["words"] == "Answer 4 of 8 · about 15 s to go · τ 0.2, B 4 · prompt 2 of 2:"
    assert message["prompt"] == "<b>hi</b>" and message["share"] == 0.4


def test_at_rest_says_what_is_kept_and_what_the_figures_are_of(result):
    assert at_rest(result, 5, "").get("words") == "Done: 12 answers in 5 s."
    part = SweepResult(result.facts, result.plan, result.prompts, result.answers[:7])
    assert "7 of 12 answers are kept. The figures are of the 1 prompt" in at_rest(part, 5)["words"]
    few = SweepResult(result.facts, result.plan, result.prompts, result.answers[:2])
    assert "each row is of what there is" in at_rest(few, 5, "It broke.")["words"]


def test_the_table_has_a_cell_for_every_column_and_a_choice_for_every_tau(result):
    message = table(result)
    assert {len(row["cells"]) for row in message["rows"]} == {len(message["columns"])}
    assert [row["choice"] is None for row in message["rows"]] == [True] + [False] * 5
    assert message["rows"][-1]["choice"] == {
        "threshold": 1.0, "metric": "probability", "block_size": 4, "verify": True
    }  # fmt: skip
    assert "n = 2 prompts" in message["note"] and "tiny · float32 · cpu · here" in message["note"]


@pytest.mark.parametrize(
    "data",
    [None, [], {"threshold": 0.5},
     {"threshold": "0.5", "metric": "probability", "block_size": 4, "verify": True},
     {"threshold": 0.5, "metric": "<b>", "block_size": 4, "verify": True},
     {"threshold": float("nan"), "metric": "margin", "block_size": 4, "verify": True}],
)  # fmt: skip
def test_a_choice_that_the_page_would_not_send_changes_nothing(data):
    assert _choose(None, gr.EventData(None, data)) == gr.skip()


@pytest.mark.parametrize(
    ("metric", "wanted", "found"), [("probability", 0.1, 0.5), ("entropy", 3.0, 2.0), ("margin", 0.1, 0.1)]
)
def test_the_threshold_that_is_promised_is_one_that_the_dial_has(monkeypatch, metric, wanted, found):
    said = []
    monkeypatch.setattr("app.explore_results.info", said.append)
    data = {"threshold": wanted, "metric": metric, "block_size": 4, "verify": True}
    assert _choose(None, gr.EventData(None, data))["threshold"] == found
    assert f"τ = {found:g} is set" in said[0] and ("nearest" in said[0]) == (wanted != found)


def test_two_clicks_on_one_point_differ(monkeypatch):
    monkeypatch.setattr("app.explore_results.info", lambda text: None)
    data = {"threshold": 0.5, "metric": "margin", "block_size": 4, "verify": True}
    first = _choose(None, gr.EventData(None, data))
    assert first == {**data, "number": 1} and _choose(first, gr.EventData(None, data))["number"] == 2
