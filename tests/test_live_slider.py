"""What a slider that turns a running answer takes for a position, and what the dial makes of the rest."""

from __future__ import annotations

import gradio as gr
import pytest

from app.dial import DialValues
from app.live_slider import FreeSlider, position
from mars_core import MarsError


@pytest.mark.parametrize(
    ("value", "found"),
    [(0.7, 0.7), (1, 1), (0.5, 0.5), (0, None), (16, None), (None, None), ("0.7", None), (True, None)]
    + [(float("nan"), None), (float("inf"), None), ([], None), ({}, None)],
)
def test_what_is_no_place_on_the_slider_is_none(value, found):
    assert position(value, 0.5, 1) == found


def test_the_browser_draws_it_as_a_slider_and_the_server_refuses_nothing():
    slider = FreeSlider(0.5, 1, 0.9)
    assert slider.get_block_name() == gr.Slider(0, 1).get_block_name() == "slider"
    assert slider.preprocess(0.3) == 0.3 and slider.preprocess(None) is None


@pytest.mark.parametrize(
    ("threshold", "metric", "read"),
    [(0.7, "probability", 0.7), (0.3, "probability", 0.9), (1.5, "margin", 0.8), (1.5, "entropy", 1.5)],
)
def test_a_threshold_of_the_metric_before_becomes_where_this_one_starts(threshold, metric, read):
    values = DialValues.read([threshold, True, 4, metric, 64, 0, 1, "", ""])
    assert (values.threshold, values.metric) == (read, metric)


@pytest.mark.parametrize("metric", ["luck", None, [], 3])
def test_a_metric_that_is_none_is_refused(metric):
    with pytest.raises(MarsError, match="no metric"):
        DialValues.read([0.7, True, 4, metric, 64, 0, 1, "", ""])


@pytest.mark.parametrize("threshold", [None, "", "0.7", float("nan")])
def test_a_threshold_that_is_no_number_is_refused(threshold):
    with pytest.raises(MarsError, match="give a number"):
        DialValues.read([threshold, True, 4, "probability", 64, 0, 1, "", ""])
