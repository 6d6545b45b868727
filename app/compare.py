"""The Compare tab: one prompt, two lanes, each on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import gradio as gr

from mars_core import Engine, MarsError, Request, fit_prompt
from mars_core.prompts import is_blank

from .baseline import OneTokenBaseline
from .charts import race as race_chart
from .charts import throughput as throughput_chart
from .chat import explain
from .examples import EXAMPLES
from .honesty import honesty_line
from .lane_controls import LaneControls, swapped
from .lanes import DEFAULT_MODES, SIDES, lane_key, lane_settings
from .live import LiveRegistry, Running
from .notices import info, warn
from .race import Race
from .race_feed import race_messages
from .race_result import names_of
from .race_track import LaneEvent, RaceTrack
from .race_view import EMPTY, HANGING, RUNNING, WAITING, LaneView, RacePanel, race_result, race_state
from .run_charts import chart_style, plot_value

Update = dict[Any, Any]
STOP_WAIT_S = 10.0
BUSY = "A race is being run. Stop it first, or wait for its end."
HINT = "This lane's answer appears here."


class CompareTab:
    """Components and events of the tab, in the Blocks where it is made."""

    def __init__(self, engine: Engine, registry: LiveRegistry, baseline: OneTokenBaseline) -> None:
        self.engine, self.registry, self.baseline = engine, registry, baseline
        self.track = RaceTrack(engine, explain)
        self.race = gr.State(None)
        with gr.Column(elem_id="compare"):
            chart_style()
            self._build_prompt()
            with gr.Row(elem_id="compare-lanes"):
                lanes = [self._build_lane(number, side) for number, side in enumerate(SIDES)]
            self.lanes, self.views = [lane for lane, _ in lanes], [view for _, view in lanes]
            self.panel = RacePanel(
                race_state("empty", EMPTY),
                note=honesty_line(engine.loaded, engine.measured),
                elem_id="compare-panel",
            )
            with gr.Row(elem_id="compare-charts", elem_classes="mars-charts", visible=False) as self.charts:
                self.plots = [gr.Plot(show_label=False, container=False) for _ in range(2)]
            self._build_shared()

    def _build_prompt(self) -> None:
        with gr.Row(elem_id="compare-composer", equal_height=True):
            self.box = gr.Textbox(
                placeholder="Ask both lanes …",
                label="The question for both lanes (Enter starts the race, Shift+Enter breaks the line)",
                show_label=False,
                container=False,
                lines=1,
                max_lines=8,
                scale=8,
                elem_id="compare-box",
            )
            self.start = gr.Button("Race", variant="primary", scale=1, min_width=76, elem_id="compare-start")
            self.stop = gr.Button("Stop", variant="stop", scale=1, min_width=76, elem_id="compare-stop")
        with gr.Row(elem_id="compare-tools"):
            small: dict[str, Any] = dict(size="sm", min_width=60, scale=0)
            self.examples = [
                gr.Button(example.label, elem_classes="example", **small) for example in EXAMPLES
            ]
            self.retry = gr.Button("Retry", elem_id="compare-retry", **small)
            self.swap = gr.Button("Swap lanes", elem_id="compare-swap", **small)

    def _build_lane(self, number: int, side: str) -> tuple[LaneControls, LaneView]:
        with gr.Column(min_width=320, elem_classes="lane"):
            controls = LaneControls(number, side, DEFAULT_MODES[number], self.engine.loaded, self.registry)
            view = LaneView(
                hint=HINT,
                view_name=f"Answer of the {side} lane, token by token",
                elem_id=f"compare-{side}",
            )
        return controls, view

    def _build_shared(self) -> None:
        longest = min(2048, self.engine.loaded.context_length // 2)
        with gr.Accordion("Settings of both lanes", open=False, elem_id="compare-shared"):
            self.max_new_tokens = gr.Slider(
                1, longest, min(256, longest), step=1, label="Max new tokens", buttons=[]
            )
            self.temperature = gr.Slider(0, 1.5, 0, step=0.05, label="Temperature (0 is greedy)", buttons=[])
            # no gr.Number: that shows an empty value as 0, which is a seed
            self.seed = gr.Textbox("", label="Seed", placeholder="a new one each time", max_lines=1)

    # ---- events ----

    @property
    def _settings(self) -> list[Any]:
        lanes = [component for lane in self.lanes for component in lane.inputs]
        return [*lanes, self.max_new_tokens, self.temperature, self.seed]

    @property
    def _drawn(self) -> list[Any]:
        return [*self.views, self.panel, self.charts, *self.plots, self.race]

    def connect(self, demo: gr.Blocks) -> None:
        """Wire everything up."""
        run: dict[str, Any] = dict(
            outputs=[self.box, *self._drawn],
            show_progress="hidden",
            trigger_mode="once",
            # not the chat's: a race that waits for others to end would keep its place from answers
            concurrency_id="race",
            concurrency_limit=4,
            api_visibility="private",
        )
        self.box.submit(self._start_typed, [self.box, *self._settings], **run)
        self.start.click(self._start, [self.box, *self._settings], **run)
        # a listener that is still busy takes no second question, and says nothing (it is skipped); this does
        self.box.submit(self._say_if_busy, None, None, concurrency_limit=None, api_visibility="private")
        self.retry.click(self._retry, [self.race, *self._settings], **run)
        for button, example in zip(self.examples, EXAMPLES, strict=True):
            button.click(_ask(self._start, example.prompt), self._settings, **run)
        quick: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
        self.stop.click(self._stop, None, [self.panel], **quick)
        turned = [component for lane in self.lanes for component in lane.inputs]
        shown = [component for lane in self.lanes for component in lane.shown]
        # in the queue, for what is said outside of it never reaches the browser; behind nobody there
        aside = quick | dict(queue=True, concurrency_limit=None)
        self.swap.click(self._swap, [self.race, *turned], [*shown, *self._drawn], **aside)
        for lane in self.lanes:
            lane.connect()
        demo.unload(self._leave)

    def _retry(self, request: gr.Request, race: Race | None, *settings: Any) -> Iterator[Update]:
        if race is None:
            yield self._only_say("There is nothing to race again yet.")
        else:
            yield from self._start(request, race.prompt, *settings)

    def _start_typed(self, request: gr.Request, *values: Any) -> Iterator[Update]:
        """As `_start`, but for the word that a race is being run: `_say_if_busy` has it, once."""
        if self._is_running(request):
            yield {self.race: gr.skip()}
        else:
            yield from self._start(request, *values)

    def _start(self, request: gr.Request, text: str, *settings: Any) -> Iterator[Update]:
        if is_blank(text):
            yield self._only_say("Type a question first.")
            return
        if self._is_running(request):
            yield self._only_say(BUSY)
            return
        try:
            race = self._prepare(text, settings)
        except MarsError as error:
            warn(str(error))
            yield {self.race: gr.skip()}
            return
        yield {self.box: text}
        yield from self._run(race, request)

    def _only_say(self, text: str) -> Update:
        """A word, and nothing changes. A listener that yields nothing would empty its outputs."""
        info(text)
        return {self.race: gr.skip()}

    def _prepare(self, text: str, values: Sequence[Any]) -> Race:
        """What the lanes are given. Raises `MarsError` where that cannot work."""
        loaded = self.engine.loaded
        assert loaded.tokenizer is not None
        settings = lane_settings([values[0:3], values[3:6]], values[6:])
        room = loaded.context_length - settings[0].max_new_tokens
        ids = fit_prompt(loaded.tokenizer, [{"role": "user", "content": text}], room).ids
        return Race(text, ids, settings)

    def _run(self, race: Race, request: gr.Request) -> Iterator[Update]:
        """Stream both lanes; the last update holds the result."""
        with ExitStack() as stack:
            lanes = [
                stack.enter_context(self.registry.running(lane_key(request.session_hash or "", number), live))
                for number, live in enumerate(settings.live_values() for settings in race.settings)
            ]
            yield {self.panel: race_state("running", RUNNING), self.charts: gr.update(visible=False)}
            try:
                yield from self._live(race, lanes)
            except Exception as error:  # whatever happened, the page must come back to rest
                sentence = explain(error)
                warn(sentence)
                race.fail(sentence)
            if not _discarded(lanes):
                yield self._at_rest(race)
            else:  # gradio repeats the last update at the end, and the page has gone on
                yield {self.race: gr.skip()}

    def _live(self, race: Race, lanes: Sequence[Running]) -> Iterator[Update]:
        """Both lanes as they come, in one stream: a second listener would only begin when the first ends."""
        told = RUNNING
        for messages in race_messages(race.noted(self._events(race, lanes)), race.feeds):
            update: Update = {self.views[lane]: message for lane, message in messages.items()}
            words = RUNNING if messages else WAITING
            if words != told:
                update[self.panel] = race_state("running", words)
                told = words
            if update and not _discarded(lanes):
                yield update

    def _events(self, race: Race, lanes: Sequence[Running]) -> Iterator[LaneEvent | None]:
        requests = [
            Request(race.ids, settings, lane.live)
            for settings, lane in zip(race.settings, lanes, strict=True)
        ]
        with closing(self.track.run(requests)) as events:
            for item in events:
                if item is not None:
                    self.baseline.add(item.event)
                yield item

    def _at_rest(self, race: Race) -> Update:
        """Everything as it stands at the end, whatever the views were sent before."""
        views = [str(view.elem_id) for view in self.views]
        panel = race_result(race.runs, race.feeds, views)
        lanes = dict(zip(names_of(race.runs), race.events, strict=True))
        plots = [plot_value(race_chart(lanes), "race"), plot_value(throughput_chart(lanes), "speed")]
        return {
            **dict(zip(self.views, (feed.final() for feed in race.feeds), strict=True)),
            **dict(zip(self.plots, plots, strict=True)),
            self.charts: gr.update(visible=True),
            self.panel: panel,
            self.race: race,
        }

    def _swap(self, request: gr.Request, race: Race | None, *turned: Any) -> Update:
        if self._is_running(request):
            return self._only_say(BUSY)
        components = [component for lane in self.lanes for component in lane.shown]
        update: Update = dict(zip(components, swapped(self.lanes, turned), strict=True))
        return update | (self._at_rest(race.swapped()) if race else {})

    def _say_if_busy(self, request: gr.Request) -> None:
        if self._is_running(request):
            info(BUSY)

    def _is_running(self, request: gr.Request) -> bool:
        return any(self.registry.is_running(key) for key in self._keys(request))

    def _keys(self, request: gr.Request) -> list[str]:
        return [lane_key(request.session_hash or "", number) for number in range(len(SIDES))]

    def _stop(self, request: gr.Request) -> Any:
        """The panel at rest where the race did not end in time and cannot bring it there itself."""
        self._leave(request)
        ended = [self.registry.cancel(key, STOP_WAIT_S) for key in self._keys(request)]
        return gr.skip() if all(ended) else race_state("empty", HANGING)

    def _leave(self, request: gr.Request) -> None:
        """The tab was closed: nobody reads on."""
        for key in self._keys(request):
            self.registry.cancel(key)


def _discarded(lanes: Sequence[Running]) -> bool:
    return any(lane.discarded for lane in lanes)


def _ask(start: Any, prompt: str) -> Any:
    """`start` with its text given."""

    def ask(request: gr.Request, *settings: Any) -> Iterator[Update]:
        yield from start(request, prompt, *settings)

    return ask
