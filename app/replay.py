"""The Replay tab: a recorded run forward by forward, without a model; with one, branches off it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mars_core import Engine, MarsError, Request, StepEvent, Trace
from mars_core.settings import Metric
from mars_core.traces import read_trace

from .dial import SCALES, threshold_update
from .feed import messages
from .live import LiveRegistry, Running
from .live_slider import FreeSlider, on_turn
from .notices import HANGING, fault, info, warn
from .replay_branch import plan_branch, why_no_branch
from .replay_lanes import Lanes
from .replay_recorded import recorded_runs
from .replay_steps import replay_message
from .replay_view import LaneView, ReplayView, TraceChooser, chosen
from .run_charts import RunCharts

Update = dict[Any, Any]
STOP_WAIT_S = 10.0
BUSY = "A branch is being written. Stop it first, or wait for its end."
_LONGEST_NAME = 80


@dataclass(frozen=True, eq=False)
class _Wish:
    """What a visitor wanted to see, at this time of their page."""

    at: float


class ReplayTab:
    """Components and events of the tab, in the Blocks where it is made.

    Args:
        engine: of the loaded model; None where there is none, which leaves branching off.
        registry: of running generations; the tab's own stand beside the chat's, under a name of their own.
    """

    def __init__(self, engine: Engine | None, registry: LiveRegistry) -> None:
        self.engine, self.registry = engine, registry
        self.runs = {run.name: run for run in recorded_runs()}
        self.trace = gr.State(None)
        self._asked: dict[str, _Wish] = {}  # session -> the last
        with gr.Column(elem_id="replay"):
            self.chooser = TraceChooser(list(self.runs.values()), elem_id="replay-chooser")
            self.view = ReplayView(elem_id="replay-view")
            with gr.Column(visible=False, elem_id="replay-branch") as self.branch_box:
                self._build_branch()
            self.charts = RunCharts("replay-charts")

    def _build_branch(self) -> None:
        scale = SCALES["probability"]
        with gr.Row(elem_id="replay-branch-settings", equal_height=True):
            self.threshold = FreeSlider(
                scale.low, scale.high, scale.start, step=0.01, label=scale.label, buttons=[], scale=3
            )
            self.verify = gr.Checkbox(
                True, label="Verify", info="For the branch. τ and this act at once.", scale=1
            )
            self.stop = gr.Button("Stop", variant="stop", visible=False, scale=0, elem_id="replay-stop")
        with gr.Row(visible=False, elem_id="replay-lanes") as self.lanes:
            with gr.Column(min_width=280):
                self.original = LaneView(view_name="The recorded answer", elem_id="replay-original")
            with gr.Column(min_width=280):
                self.written = LaneView(view_name="The branch", elem_id="replay-written")

    # ---- events ----

    def connect(self, demo: gr.Blocks) -> None:
        """Wire everything up."""
        quick: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
        self.shown = shown = [
            self.chooser, self.trace, self.view, self.branch_box, self.threshold, self.verify, self.lanes,
            self.original, self.written, *self.charts.outputs,
        ]  # fmt: skip
        # of two that are opened at once both are heard, and the later one is shown: see `_show`
        self.chooser.pick(self._pick, None, shown, trigger_mode="multiple", **quick)
        # few at once: a large file takes seconds to check, and a visitor may send many
        few: dict[str, Any] = quick | dict(queue=True, concurrency_id="open", concurrency_limit=2)
        self.chooser.open(self._open, None, shown, trigger_mode="multiple", **few)
        demo.unload(self._leave)
        if self.engine is None:
            demo.load(self._first, None, shown, show_progress="hidden", api_visibility="private")
        else:
            self._connect_branch(quick)

    def _connect_branch(self, quick: dict[str, Any]) -> None:
        self.view.branch(
            self._branch,
            [self.trace, self.threshold, self.verify],
            [self.lanes, self.original, self.written, self.stop],
            show_progress="hidden",
            trigger_mode="once",
            concurrency_id="generation",
            concurrency_limit=8,
            api_visibility="private",
        )
        # a listener that is still busy takes no second branch, and says nothing (it is skipped); this does
        self.view.branch(self._say_if_busy, None, None, **quick | dict(queue=True, concurrency_limit=None))
        stopped = self.stop.click(self._stop, None, None, **quick)
        # a toast reaches the browser only from the queue (gradio 6.31)
        stopped.then(self._say_if_hanging, None, None, **quick | dict(queue=True, concurrency_limit=None))
        live: dict[str, Any] = quick | {"trigger_mode": "always_last"}
        on_turn(self.threshold, self._turn_threshold, [self.trace, self.threshold], **live)
        self.verify.input(self._turn_verify, self.verify, None, **live)

    # ---- choosing a run ----

    def open_trace(self, trace: Trace, request: gr.Request) -> Update:
        """Show a run that another tab has just ended; its outputs are `shown`."""
        return self._show(trace, None, request, self._ask(request))

    def _first(self, request: gr.Request) -> Update:
        if _key(request) in self._asked:  # a visitor was quicker
            return {self.chooser: gr.skip()}
        if not self.runs:
            return {self.chooser: chosen(None)}
        name, run = next(iter(self.runs.items()))
        return self._show(run.trace, name, request, self._ask(request))

    def _pick(self, request: gr.Request, event: gr.EventData) -> Update:
        name = _field(event, "name")
        if name not in self.runs:
            return {self.chooser: chosen(None, "That recorded run is no longer there.")}
        return self._show(self.runs[name].trace, name, request, self._ask(request, event))

    def _open(self, request: gr.Request, event: gr.EventData) -> Update:
        """Read a file's text. What is no trace leaves everything as it was, with a word about it."""
        asked = self._ask(request, event)
        try:
            trace = read_trace(_field(event, "text"))
        except MarsError as error:
            name = _field(event, "name")[:_LONGEST_NAME] or "The file"
            return {self.chooser: chosen(None, f"{name} cannot be opened. {error}")}
        return self._show(trace, None, request, asked)

    def _ask(self, request: gr.Request, event: gr.EventData | None = None) -> _Wish:
        """What a visitor wants to see from now on, unless what they asked for later came before it."""
        before = self._asked.get(_key(request), _Wish(0.0))
        at = event._data.get("at") if event and isinstance(event._data, dict) else None
        wish = _Wish(at if isinstance(at, (int, float)) else before.at)
        if not wish.at < before.at:
            self._asked[_key(request)] = wish
        return wish

    def _show(self, trace: Trace, name: str | None, request: gr.Request, asked: _Wish) -> Update:
        """Everything of a run, unless its visitor has asked for another while it was made ready."""
        charts = self.charts.update(trace.events)
        if self._asked.get(_key(request)) is not asked:
            return {self.chooser: gr.skip()}
        # a branch of the run shown before would be written into this one's lanes
        self.registry.cancel(_key(request), discard=True)
        reason = why_no_branch(trace, self.engine)
        return {
            self.chooser: chosen(name),
            self.trace: trace,
            self.view: replay_message(trace, reason or self._who_writes(trace), can_branch=not reason),
            self.branch_box: gr.update(visible=not reason),
            self.threshold: _recorded_threshold(trace),
            self.verify: gr.update(value=bool(trace.events and trace.events[0].verify)),
            self.lanes: gr.update(visible=False),
            self.original: None,
            self.written: None,
            **dict(zip(self.charts.outputs, charts, strict=True)),
        }

    def _who_writes(self, trace: Trace) -> str:
        """A warning where the loaded model is not the one that was recorded."""
        assert self.engine is not None
        name = self.engine.loaded.name
        recorded = trace.model.get("name")
        return "" if recorded == name else f"Not the recorded model: {name} will write the branch."

    # ---- branching ----

    def _branch(
        self, request: gr.Request, event: gr.EventData, trace: Trace | None, threshold: Any, verify: bool
    ) -> Iterator[Update]:
        """Write a branch into its lane, beside the recorded answer."""
        assert self.engine is not None
        try:
            if trace is None:
                raise MarsError("Choose a run first.")
            if self.registry.is_running(_key(request)):  # `_say_if_busy` says so
                yield {self.stop: gr.skip()}
                return
            scale = SCALES[_metric(trace)]
            if (at := scale.position(threshold)) is None:  # of the run shown before
                at = trace.events[0].threshold if trace.events else scale.start
            branch = plan_branch(trace, self.engine, event._data, at, bool(verify))
            with self.registry.running(_key(request), branch.settings.live_values()) as running:
                events = self.engine.stream(Request(branch.prompt_ids, branch.settings, running.live))
                yield from self._write(Lanes(trace, branch, self.engine), events, running)
        except MarsError as error:
            warn(str(error))
            yield {self.stop: gr.update(visible=False)}

    def _write(
        self, lanes: Lanes, events: Generator[StepEvent, None, None], running: Running
    ) -> Iterator[Update]:
        yield {
            self.lanes: gr.update(visible=True),
            self.original: lanes.original(),
            self.stop: gr.update(visible=True),
        }
        told = False
        with closing(events):
            for message in messages(lanes.follow(events), lanes.feed):
                if running.discarded:
                    break
                update = {self.written: lanes.written(message)}
                if lanes.parts_at is not None and not told:
                    told, update[self.original] = True, lanes.original()
                yield update
        yield {self.stop: gr.update(visible=False)}

    def _stop(self, request: gr.Request) -> None:
        self.registry.cancel(_key(request), wait_s=STOP_WAIT_S)

    def _say_if_busy(self, request: gr.Request) -> None:
        if self.registry.is_running(_key(request)):
            info(BUSY)

    def _say_if_hanging(self, request: gr.Request) -> None:
        if self.registry.is_running(_key(request)):
            warn(HANGING)

    def _leave(self, request: gr.Request) -> None:
        """The tab was closed: nobody reads on."""
        self._asked.pop(_key(request), None)
        self.registry.cancel(_key(request))

    def _turn_threshold(self, trace: Trace | None, threshold: Any, request: gr.Request) -> None:
        if (at := SCALES[_metric(trace)].position(threshold)) is not None:
            self._turn(request, threshold=at)

    def _turn_verify(self, verify: bool, request: gr.Request) -> None:
        self._turn(request, verify=bool(verify))

    def _turn(self, request: gr.Request, **changes: Any) -> None:
        try:
            self.registry.update(_key(request), **changes)
        except MarsError as error:
            raise fault(str(error)) from None


def _key(request: gr.Request) -> str:
    """The tab's own name for a visitor's generation: the chat may write an answer at the same time."""
    return f"{request.session_hash or ''}/replay"


def _field(event: gr.EventData, name: str) -> str:
    """A text of an event's data; "" where there is none."""
    value = event._data.get(name) if isinstance(event._data, dict) else None
    return value if isinstance(value, str) else ""


def _recorded_threshold(trace: Trace) -> Any:
    """The slider as the recording had it."""
    if not trace.events:
        return gr.update()
    return threshold_update(_metric(trace), trace.events[0].threshold)


def _metric(trace: Trace | None) -> Metric:
    return trace.events[0].metric if trace and trace.events else "probability"
