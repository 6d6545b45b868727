"""The charts of one run, made once when it has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components import Component
from gradio.components.plot import PlotData

from mars_core.events import StepEvent

from .charts import acceptance_by_offset, confidence_histogram, throughput, tokens_per_forward_histogram
from .token_view import script

# name of a saved image, its figure, and what it says in a sentence
CHARTS: dict[str, tuple[Callable[..., go.Figure], str]] = {
    "speed": (
        throughput,
        "Tokens per second of the forwards' own time. The prompt, the network and the page are not in it.",
    ),
    "tokens-per-forward": (
        tokens_per_forward_histogram,
        "How often one forward wrote one token, two, or more. One-token decoding is a single bar at 1.",
    ),
    "acceptance": (
        acceptance_by_offset,
        "How many forwards got as far as their k-th token, and what let it in. Dotted: of the drafts that "
        "forwards were given for place k, how many they verified.",
    ),
    "confidence": (
        confidence_histogram,
        "How sure the model was of what it predicted ahead. Acceptance stops at the first prediction on the "
        "wrong side of τ, so some sure ones behind it wait too.",
    ),
}


class RunCharts:
    """Four charts behind a heading that opens them; nothing is there before the first run.

    Args:
        elem_id: of the whole.
    """

    def __init__(self, elem_id: str) -> None:
        chart_style()
        with gr.Accordion("Charts of this run", open=False, visible=False, elem_id=elem_id) as self.box:
            with gr.Column(elem_classes="mars-charts"):
                self.plots = [self._chart(note) for _, note in CHARTS.values()]
        self.outputs: list[Component] = [self.box, *self.plots]  # type: ignore[list-item]

    def _chart(self, note: str) -> gr.Plot:
        with gr.Column():
            plot = gr.Plot(show_label=False, container=False)
            gr.HTML(f"<p class='mars-chart-note'>{note}</p>", apply_default_css=False)
        return plot

    def update(self, events: Sequence[StepEvent] | None) -> list[Any]:
        """Values for `outputs`: to be called when a run has ended, for Plotly draws them all anew. None hides
        the charts."""
        if events is None:
            return [gr.update(visible=False), *[None] * len(self.plots)]
        figures = {
            name: draw({"this run": events} if draw is throughput else events)
            for name, (draw, _) in CHARTS.items()
        }
        return [gr.update(visible=True), *(plot_value(figure, name) for name, figure in figures.items())]


def chart_style() -> gr.HTML:
    """Put the charts' style sheet into the page: text and paper of Plotly figures follow its scheme."""
    return gr.HTML(
        html_template="<span></span>",
        js_on_load=script("charts.css", "common.js", "charts.js"),
        apply_default_css=False,
        visible="hidden",
    )


def plot_value(figure: go.Figure, name: str) -> PlotData:
    """A figure for `gr.Plot`, with the name and the size of the image its camera button saves.

    Gradio hands Plotly the ``config`` it finds beside data and layout (6.31), and Plotly's own Python class
    has no place for one.
    """
    data = json.loads(figure.to_json())
    data["config"] = {
        "displaylogo": False,
        "toImageButtonOptions": {"filename": f"mars-{name}", "scale": 2},
    }
    return PlotData(type="plotly", plot=json.dumps(data))
