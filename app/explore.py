"""The Explore tab: the same prompts at many settings, what speed costs, and what another τ would give."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from mars_core import Engine, LiveValues, MarsError
from mars_core.bench.facts import facts_of
from mars_core.bench.sweep.prompts import ready
from mars_core.bench.sweep.result import SweepResult
from mars_core.bench.sweep.run import Sweep

from .chat import explain
from .dial import Dial, threshold_update
from .explore_form import (
    MOST_TEXT,
    OWN_PROMPTS,
    ExploreForm,
    FormValues,
    check_lengths,
    workload_line,
)
from .explore_results import SweepResults
from .explore_view import SweepProgress, at_rest, fault, hung, under_way, waiting
from .live import LiveRegistry, Running
from .notices import info, warn

Update = dict[Any, Any]
STOP_WAIT_S = 10.0
PROGRESS_EVERY_S, TABLE_EVERY_S, CHARTS_EVERY_S = 0.25, 1.5, 2.0
REST = 10  # times what it took to make, before a table or charts are made again
MOST_SWEEPS = 4  # of all visitors at once; others wait
QUICK: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
# a toast reaches the browser only from the queue (gradio 6.31)
TALKS: dict[str, Any] = QUICK | dict(queue=True, concurrency_limit=None)
LEAD = (
    "How much faster does a lower threshold τ make the model, and what does it cost? A sweep answers the "
    "same prompts at several settings and holds each answer against what the same model writes **one token "
    "at a time** (AR)."
)


class ExploreTab:
    """Components and events of the tab, in the Blocks where it is made.

    Attributes:
        chosen_threshold: a state: None until a setting was clicked, in a chart or in the table; then a
            dictionary of its `threshold`, `metric`, `block_size` and `verify`, and a `number` that makes two
            clicks on one setting differ. Its ``change`` fires at every click. `connect_dial` uses it.
    """

    def __init__(self, engine: Engine, registry: LiveRegistry) -> None:
        self.engine, self.registry = engine, registry
        with gr.Row(elem_id="explore"):
            with gr.Column(scale=2, min_width=300, elem_id="explore-form"):
                self._build_form()
            with gr.Column(scale=3, min_width=320, elem_id="explore-results"):
                self.progress = SweepProgress(elem_id="explore-progress")
                self.results = SweepResults()
        self.chosen_threshold = self.results.chosen

    def _build_form(self) -> None:
        gr.Markdown(LEAD, elem_classes="explore-lead")
        self.form = ExploreForm(self.engine.loaded)
        self.work = gr.HTML(elem_classes="explore-work", elem_id="explore-work", apply_default_css=False)
        with gr.Row():
            self.start = gr.Button("Run the sweep", variant="primary", elem_id="explore-start")
            self.stop = gr.Button("Stop", variant="stop", elem_id="explore-stop", interactive=False)

    # ---- events ----

    def connect(self, demo: gr.Blocks) -> None:
        """Wire everything up."""
        self.start.click(
            self._run,
            self.form.inputs,
            [self.progress, self.start, self.stop, *self.results.outputs],
            show_progress="hidden",
            trigger_mode="once",
            concurrency_id="sweep",
            concurrency_limit=MOST_SWEEPS,
            api_visibility="private",
        )
        self.stop.click(self._stop, None, [self.progress, self.start, self.stop], **QUICK)
        self.form.connect()
        changes = [item.change for item in self.form.inputs]
        # raw: while a number is typed it may be out of bounds, which is to be said here and not by an error,
        # behind which gradio loses the next change
        raw = QUICK | dict(trigger_mode="always_last", preprocess=False)
        gr.on(changes, self._workload, self.form.inputs, self.work, **raw)
        demo.load(self._workload, self.form.inputs, self.work, **QUICK)
        self.form.file.upload(_take_file, None, [self.form.text, self.form.source], **TALKS)
        self.results.connect(QUICK, TALKS)
        demo.unload(self._leave)

    def connect_dial(self, dial: Dial) -> None:
        """A click on a setting turns the Chat tab's dial, also of an answer that is being written."""
        parts = [dial.threshold, dial.metric, dial.block_size, dial.verify]
        most_block_size = int(dial.block_size.maximum)

        def turn(choice: dict[str, Any] | None, request: gr.Request) -> list[Any]:
            if choice is None:
                return [gr.skip()] * len(parts)
            threshold, metric, verify = choice["threshold"], choice["metric"], choice["verify"]
            block_size = min(choice["block_size"], most_block_size)
            self.registry.update(
                request.session_hash or "",
                threshold=threshold, metric=metric, block_size=block_size, verify=verify,
            )  # fmt: skip
            return [threshold_update(metric, threshold), metric, block_size, verify]

        self.chosen_threshold.change(turn, self.chosen_threshold, parts, **QUICK)

    def use_run(self, trace: gr.State) -> None:
        """Offer the what-if curve of the answer whose `Trace` this state holds (Chat's last one)."""
        self.results.estimates.use_run(trace, TALKS)

    # ---- a sweep ----

    def _run(self, request: gr.Request, *values: Any) -> Iterator[Update]:
        key, form = self._key(request), FormValues(*values)
        if self.registry.is_running(key):
            info("A sweep is running. Stop it first, or wait for its end.")
            yield {self.progress: gr.skip()}  # yielding nothing would empty all outputs
            return
        try:
            watched = self._begin(form)
        except MarsError as error:
            yield {self.progress: fault(str(error)[:500])}
            return
        with self.registry.running(key, LiveValues()) as running:
            yield {
                self.progress: waiting(len(watched.sweep.points), len(watched.prompts)),
                self.start: gr.update(interactive=False),
                self.stop: gr.update(interactive=True),
                **self.results.cleared(),
            }
            yield from self._updates(watched, running)

    def _begin(self, form: FormValues) -> Watched:
        """Raises `MarsError` for what cannot be swept."""
        plan, chosen = form.plan(), form.prompts()
        form.check_size(plan, len(chosen))
        prompts = ready(chosen, self.engine.loaded, plan.max_new_tokens)
        check_lengths(chosen, prompts)
        # how the server was started is nobody's business
        facts = {name: value for name, value in facts_of(self.engine.loaded).items() if name != "command"}
        return Watched(Sweep(self.engine, plan, prompts), facts)

    def _updates(self, watched: Watched, running: Running) -> Iterator[Update]:
        trouble = ""
        try:
            for message in watched.messages(lambda: running.live.cancelled):
                update: Update = {self.progress: message}
                if watched.table_due(self.results.table_s):
                    charts = watched.charts_due(self.results.drawing_s)
                    update |= self.results.update(watched.result(), charts=charts)
                yield update
        except Exception as error:  # whatever happened, what is done stays and the tab comes back to rest
            trouble = explain(error)
            warn(trouble)
        result = watched.result()
        yield self.results.update(result, charts=True) | {
            self.progress: at_rest(result, watched.seconds, trouble),
            self.start: gr.update(interactive=True),
            self.stop: gr.update(interactive=False),
        }

    def _key(self, request: gr.Request) -> str:
        """A visitor's sweep, apart from the same visitor's answer in Chat."""
        return f"{request.session_hash or ''}/sweep"

    def _stop(self, request: gr.Request) -> list[Any]:
        """The sweep itself brings the tab to rest; where it hangs, nothing else would."""
        if self.registry.cancel(self._key(request), wait_s=STOP_WAIT_S):
            return [gr.skip()] * 3
        return [hung(STOP_WAIT_S), gr.update(interactive=True), gr.update(interactive=False)]

    def _leave(self, request: gr.Request) -> None:
        """The tab was closed: nobody reads on."""
        self.registry.cancel(self._key(request))

    def _workload(self, *values: Any) -> str:
        return workload_line(FormValues(*values), self.engine.measured)


class Watched:
    """A sweep and how far it is, in messages a browser can take."""

    def __init__(self, sweep: Sweep, facts: dict[str, Any]) -> None:
        self.sweep, self.facts = sweep, facts
        self.prompts = tuple(prompt.text for prompt in sweep.prompts)
        self.started = time.perf_counter()
        self._told = 0.0
        self._table, self._charts = Refreshed(TABLE_EVERY_S), Refreshed(CHARTS_EVERY_S)

    def messages(self, cancelled: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """How far it is, a few times a second and after every answer."""
        for progress in self.sweep.steps(cancelled):
            if progress.num_tokens == 0 or time.perf_counter() - self._told > PROGRESS_EVERY_S:
                self._told = time.perf_counter()
                yield under_way(progress, self.prompts[progress.prompt], len(self.prompts))

    def table_due(self, took_s: float) -> bool:
        """There are new answers, and time for them; see `Refreshed`."""
        return self._table.due(len(self.sweep.answers), took_s)

    def charts_due(self, took_s: float) -> bool:
        """As `table_due`; a chart is made anew with each update, so they come only after a whole prompt."""
        return self._charts.due(len(self.sweep.answers) // len(self.sweep.points), took_s)

    def result(self) -> SweepResult:
        """What is done."""
        return SweepResult(self.facts, self.sweep.plan, self.prompts, tuple(self.sweep.answers))

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


class Refreshed:
    """Something shown again and again while it grows: not too often, and never most of the time. Making it
    (intervals, above all) holds up the answers that it is of, and everybody else's."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._amount, self._at = 0, -math.inf

    def due(self, amount: int, took_s: float) -> bool:
        """Whether to make it now, which is noted as done.

        Args:
            amount: of what there is to show.
            took_s: seconds that the last one took to make.
        """
        now = time.perf_counter()
        if amount == self._amount or now - self._at < max(self.every_s, REST * took_s):
            return False
        self._amount, self._at = amount, now
        return True


def _take_file(event: gr.EventData) -> list[Any]:
    """The text of a file goes into the box, where it can be seen."""
    data = event._data if isinstance(event._data, dict) else {}
    text = data.get("text")
    if isinstance(text, str) and len(text) <= MOST_TEXT:
        return [text, OWN_PROMPTS]
    warn(f"That file is too large for a list of prompts: {MOST_TEXT} characters at most.")
    return [gr.skip(), gr.skip()]
