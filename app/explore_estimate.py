"""The what-if curve and the calibration of a sweep's runs, or of an answer in Chat, and what they rest on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mars_core import Trace
from mars_core.bench.sweep.answers import windows_of
from mars_core.bench.sweep.calibration import CalibrationBin
from mars_core.bench.sweep.figures import PointFigures
from mars_core.bench.sweep.grid import GridPoint
from mars_core.bench.sweep.result import SweepResult, curve_thresholds
from mars_core.bench.sweep.what_if import what_if

from .explore_charts import calibration_strip, what_if_chart
from .notices import info
from .run_charts import plot_value

ASSUMPTION = (
    "An estimate at no cost, from the confidences this run logged. It takes for granted that the text would "
    "stay the same; where the run did not look ahead, the nearest confidences it has stand in. At the run's "
    "own τ it is exact."
)
OF_VERIFIED = (
    " Of a verified run it counts what would be committed at once, and the drafts that the run itself "
    "confirmed; above the run's τ it is an upper bound."
)
NO_RUN = (
    "There is no answer in Chat yet that looked ahead: ask something there, at τ below 1, and leave the "
    "settings alone while it writes."
)
CALIBRATION = (
    "Of the tokens that the runs at {} accepted behind a mask: how many AR would choose at that place, by "
    "the confidence they were accepted at. One forward over the finished text says so; n counts tokens."
)


@dataclass(frozen=True)
class WhatIf:
    """A curve.

    Attributes:
        point: the setting of the run.
        source: what the run was, in words.
        thresholds, estimates: τ and tok/fwd.
        measured: figures of a sweep to show beside it.
        ran: tok/fwd that the run itself took, where it is an answer of Chat.
        bins, bins_of: calibration, and the setting whose runs it is of; None where no text was checked.
    """

    point: GridPoint
    source: str
    thresholds: Sequence[float]
    estimates: Sequence[float] | None
    measured: Sequence[PointFigures] = ()
    ran: float | None = None
    bins: Sequence[CalibrationBin] | None = None
    bins_of: GridPoint | None = None


def what_if_of_sweep(result: SweepResult, name: str | None) -> WhatIf | None:
    """From the runs of the point of this name, or of the first that can be estimated from."""
    points = result.estimable()
    if not points:
        return None
    point = next((point for point in points if point.name == name), points[0])
    loosest = result.loosest(point.metric) or point
    thresholds = curve_thresholds(point)
    return WhatIf(
        point=point,
        source=f"the runs at {point.name}",
        thresholds=thresholds,
        estimates=what_if(result.recorded(point), thresholds, point.metric),
        measured=result.figures,
        bins=result.calibration_of(loosest),
        bins_of=loosest,
    )


def what_if_of_run(trace: Trace) -> WhatIf | None:
    """From one answer; None where none of its forwards carried masks, and where the dial was turned while it
    was written: what one setting logged says nothing of how far another went."""
    committed = [event for event in trace.events if event.committed]
    masked = [event for event in committed if not event.one_token]
    if not masked or len({(e.threshold, e.metric, e.block_size, e.verify) for e in committed}) > 1:
        return None
    last = masked[-1]
    point = GridPoint("mars", last.metric, last.block_size, last.verify, last.threshold)
    thresholds = curve_thresholds(point)
    return WhatIf(
        point=point,
        source=f"the last Chat answer ({point.name})",
        thresholds=thresholds,
        estimates=what_if([windows_of(masked, last.metric)], thresholds, last.metric),
        ran=trace.statistics().tokens_per_forward,
    )


class Estimates:
    """The two charts and the choice of the run, in the page where it is made; hidden until there is one.

    `outputs` are what `update` and `of_chat` give values for.

    Attributes:
        drawing_s: seconds that the last charts of a sweep took to make, of any visitor.
    """

    drawing_s = 0.0

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="explore-estimates") as self.box:
            self.run_of = gr.Dropdown([], label="Estimate from the runs at", elem_id="explore-run-of")
            self.what_if = gr.Plot(show_label=False, container=False, elem_id="explore-what-if")
            self.assumption = gr.HTML(apply_default_css=False)
            with gr.Column() as self.calibration_box:
                self.calibration = gr.Plot(show_label=False, container=False, elem_id="explore-calibration")
                self.calibration_note = gr.HTML(apply_default_css=False)
        # shown by `use_run`
        self.from_chat = gr.Button(
            "What if, from the last Chat answer", size="sm", visible=False, elem_id="explore-from-chat"
        )
        self.outputs: list[Any] = [
            self.box, self.run_of, self.what_if, self.assumption, self.calibration_box, self.calibration,
            self.calibration_note,
        ]  # fmt: skip

    def update(self, result: SweepResult | None, run_of: Any) -> list[Any]:
        """The charts of a sweep: of the runs at the setting of that name, else of those that tell most. Where
        there are none yet, as before the first sweep."""
        start = time.perf_counter()
        names = [point.name for point in result.estimable()] if result else []
        if not result or not names:
            return self._values(None, gr.skip())
        # a choice that holds is not sent back: another may have been made meanwhile
        known: dict[str, Any] = {} if run_of in names else {"value": names[0]}
        found = self._values(what_if_of_sweep(result, run_of), gr.update(choices=names, **known))
        self.drawing_s = time.perf_counter() - start
        return found

    def connect(self, result: gr.State, drawn_at: gr.Textbox, drawing: dict[str, Any]) -> None:
        """Another run, another curve; and other charts where `drawn_at` changes.

        The name is taken as it comes: the choices grow during a sweep and change with the next one, so what a
        browser sends may be of those before, which gradio would refuse and `update` does not.
        """
        triggers = [drawn_at.change, self.run_of.input]
        gr.on(triggers, self.update, [result, self.run_of], self.outputs, preprocess=False, **drawing)

    def use_run(self, trace: gr.State, talks: dict[str, Any]) -> None:
        """Offer the curve of the answer whose `Trace` this state holds."""
        self.from_chat.visible = True
        self.from_chat.click(self._of_chat, trace, self.outputs, **talks)

    def _of_chat(self, trace: Trace | None) -> list[Any]:
        found = what_if_of_run(trace) if trace else None
        if found is None:
            info(NO_RUN)
            return [gr.skip()] * len(self.outputs)
        return self._values(found, gr.skip())

    def _values(self, found: WhatIf | None, run_of: Any) -> list[Any]:
        if found is None:
            return [gr.update(visible=False), run_of, None, "", gr.update(visible=False), None, ""]
        chart = what_if_chart(
            found.point,
            found.thresholds,
            found.estimates,
            found.measured,
            ran=found.ran,
            source=found.source,
        )
        words = ASSUMPTION + (OF_VERIFIED if found.point.verify else "")
        strip, note = None, ""
        if found.bins is not None and found.bins_of is not None:
            strip = plot_value(calibration_strip(found.bins, found.bins_of), "calibration")
            note = CALIBRATION.format(found.bins_of.name)
        return [
            gr.update(visible=True),
            run_of,
            plot_value(chart, "what-if"),
            f"<p class='explore-note'>{words}</p>",
            gr.update(visible=strip is not None),
            strip,
            f"<p class='explore-note'>{note}</p>",
        ]
