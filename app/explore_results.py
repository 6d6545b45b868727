"""What came of a sweep: the chart, the table, files to save, estimates; and the setting that was clicked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import gradio as gr

from mars_core import LiveValues, MarsError
from mars_core.bench.sweep.result import SweepResult

from .dial import SCALES
from .explore_charts import pareto
from .explore_estimate import Estimates
from .explore_paper import source_line
from .explore_view import SweepTable, table
from .notices import info
from .run_charts import chart_style, plot_value
from .share import carrier, save_script, sent

X_LABELS = {"Tokens a forward": "tokens_per_forward", "Measured speed-up": "speedup"}
Y_LABELS = {
    "Agreement with AR's text": "agreement",
    "Tokens AR would choose": "ar_choices",
    "Likelihood under AR": "log_likelihood",
}
HINT = (
    "Up and to the right is better. Click a point to set its τ in Chat. Agreement is the share of a text "
    "before it first differs from AR's (100 %: the same text), mean over prompts."
)
_CHOICE = ("threshold", "metric", "block_size", "verify")


class SweepResults:
    """The components, in the page where it is made; `outputs` are what `update` gives values for.

    Attributes:
        result: the state with the `SweepResult`.
        chosen: see `ExploreTab.chosen_threshold`.
        table_s, pareto_s: seconds that the last table and its chart took to make, of any visitor.
    """

    table_s = pareto_s = 0.0

    def __init__(self) -> None:
        self.result: gr.State = gr.State(None)
        self.chosen: gr.State = gr.State(None)
        chart_style()
        with gr.Column(visible=False, elem_id="explore-charts") as self.charts:
            with gr.Row():
                small: dict[str, Any] = dict(min_width=220, filterable=False)
                self.y = gr.Dropdown(list(Y_LABELS), label="Up", elem_id="explore-up", **small)
                self.x = gr.Dropdown(list(X_LABELS), label="Across", elem_id="explore-across", **small)
            self.pareto = gr.Plot(show_label=False, container=False, elem_id="explore-pareto")
            gr.HTML(f"<p class='explore-note'>{HINT}</p>", apply_default_css=False)
            self.paper = gr.Checkbox(
                False, label="Lay the paper's figures over (other models)", elem_id="explore-paper"
            )
            self.source = gr.HTML(
                f"<p class='explore-note'>{source_line()}</p>", visible=False, apply_default_css=False
            )
        self.table = SweepTable(elem_id="explore-table")
        with gr.Row(visible=False) as self.saving:
            self.save_csv = gr.Button("Table as CSV", size="sm", elem_id="explore-csv")
            self.save_json = gr.Button("Everything as JSON", size="sm", elem_id="explore-json")
        self.estimates = Estimates()
        self.files = [carrier(), carrier()]
        # a new value here draws the charts anew, with what they are set to at that moment
        self.drawn_at = gr.Textbox(visible="hidden")

    @property
    def outputs(self) -> list[Any]:
        return [self.table, self.result, self.drawn_at]

    def update(self, result: SweepResult, *, charts: bool) -> dict[Any, Any]:
        """Values of `outputs`.

        Args:
            charts: draw them too; each is made anew then.
        """
        start = time.perf_counter()
        found: dict[Any, Any] = {self.table: table(result), self.result: result}
        self.table_s = time.perf_counter() - start
        return found | (self._redrawn() if charts else {})

    def cleared(self) -> dict[Any, Any]:
        """Values of `outputs` as a new sweep begins."""
        return {self.table: None, self.result: None, **self._redrawn()}

    def _redrawn(self) -> dict[Any, Any]:
        return {self.drawn_at: str(time.time())}

    def connect(self, quick: dict[str, Any], talks: dict[str, Any]) -> None:
        """Let axes, table, points and buttons act.

        Args:
            quick, talks: options of listeners, and of those that may show a toast.
        """
        # one listener for all that a chart is drawn anew for: of two, the one that began earlier could end
        # later, and undo what was chosen in between
        drawing: dict[str, Any] = quick | dict(trigger_mode="always_last")
        view: list[Any] = [self.x, self.y, self.paper]
        inputs, outputs = [self.result, *view], [self.charts, self.pareto, self.source, self.saving]
        gr.on([self.drawn_at.change, *(part.input for part in view)], self._draw, inputs, outputs, **drawing)
        self.estimates.connect(self.result, self.drawn_at, drawing)
        self.table.select(_choose, self.chosen, self.chosen, **talks)
        for button, file, write, script in (
            (self.save_csv, self.files[0], _csv, save_script("sweep", "csv", "text/csv")),
            (self.save_json, self.files[1], _json, save_script("sweep", "json", "application/json")),
        ):
            written = button.click(write, self.result, file, **talks)
            written.then(None, file, file, js=script)

    @property
    def drawing_s(self) -> float:
        """Seconds that the last charts took to make, of any visitor."""
        return self.pareto_s + self.estimates.drawing_s

    def _draw(self, result: SweepResult | None, x: str, y: str, with_paper: bool) -> list[Any]:
        if result is None or not result.answers:
            hidden = gr.update(visible=False)
            return [hidden, None, hidden, hidden]
        start, shown = time.perf_counter(), gr.update(visible=True)
        across, up = X_LABELS.get(x, "tokens_per_forward"), Y_LABELS.get(y, "agreement")
        chart = plot_value(pareto(result.figures, across, up, with_paper=bool(with_paper)), "sweep")
        self.pareto_s = time.perf_counter() - start
        sourced = bool(with_paper) and across == "tokens_per_forward"
        return [shown, chart, gr.update(visible=sourced), shown]


def _choose(before: dict[str, Any] | None, event: gr.EventData) -> Any:
    """A setting was clicked, if that is what the page's own script sent. What Chat's τ does not reach becomes
    the nearest that it does."""
    data = event._data
    if not isinstance(data, dict) or not all(name in data for name in _CHOICE):
        return gr.skip()
    choice = {name: data[name] for name in _CHOICE}
    try:
        LiveValues(**choice)
    except MarsError:
        return gr.skip()
    scale, wanted = SCALES[choice["metric"]], choice["threshold"]
    choice["threshold"] = min(max(wanted, scale.low), scale.high)
    nearest = "" if choice["threshold"] == wanted else f", the nearest that it has to {wanted:g}"
    info(f"τ = {choice['threshold']:g} is set in Chat{nearest}.")
    return choice | {"number": (before or {}).get("number", 0) + 1}


def _csv(result: SweepResult | None) -> str:
    return _saved(result, SweepResult.to_csv)


def _json(result: SweepResult | None) -> str:
    return _saved(result, lambda found: json.dumps(found.to_json(), ensure_ascii=False, allow_nan=False))


def _saved(result: SweepResult | None, write: Callable[[SweepResult], str]) -> str:
    if result is None or not result.answers:
        info("There is nothing to save yet.")
        return ""
    return sent(write(result))
