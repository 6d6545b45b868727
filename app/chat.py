"""The Chat tab: one conversation, its answer drawn as it is written."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gradio as gr

from mars_core import DecodeSettings, Engine, MarsError, Request, StepEvent, Trace, fit_prompt
from mars_core.events import StatisticsCounter
from mars_core.prompts import Message, is_blank
from mars_core.traces import record

from .baseline import OneTokenBaseline
from .conversation import Conversation, conversation
from .dial import Dial, DialValues
from .examples import EXAMPLES
from .feed import Feed, messages
from .figures import Figures
from .honesty import honesty_line
from .kept import kept_messages
from .link import COPY_LINK_SCRIPT, LinkReader
from .live import LiveRegistry, Running
from .live_chart import LiveChart
from .notices import HANGING, info, warn
from .run_charts import RunCharts
from .share import ShareButtons
from .token_view import TokenView

logger = logging.getLogger(__name__)

Update = dict[Any, Any]
Kept = list[Message] | None
STOP_WAIT_S = 10.0
BUSY = "An answer is being written. Stop it first, or wait for its end."
# what the link carried stands in the page from here on
READY_SCRIPT = "() => { document.getElementById('thread').dataset.ready = 'yes'; }"


# Takes a question out of the box when its answer begins. What was typed behind it while it waited stays, and
# so does what stands there when another is asked: an example, the last one once more.
TAKEN_SCRIPT = """(typed, shown) => {
  const asked = JSON.parse(shown).messages.findLast(({ role }) => role === 'user')?.text ?? '';
  return typed?.startsWith(asked) ? typed.slice(asked.length) : typed;
}"""


class ChatTab:
    """Components and events of the tab, in the Blocks where it is made."""

    def __init__(self, engine: Engine, registry: LiveRegistry, baseline: OneTokenBaseline) -> None:
        self.engine, self.registry, self.baseline = engine, registry, baseline
        self.note = honesty_line(engine.loaded, engine.measured)
        self.messages: gr.State = gr.State(None)  # None until something was written: see `_history`
        self.trace = gr.State(None)
        # when the last run ended, and when the one did whose charts are drawn
        self.ended, self.drawn = gr.State(None), gr.State(None)
        with gr.Row(elem_id="chat"):
            with gr.Column(scale=3, min_width=320, elem_id="thread"):
                self._build_thread()
            with gr.Column(scale=2, min_width=300, elem_id="dial"):
                self._build_dial()

    def _build_thread(self) -> None:
        self.conversation = Conversation(elem_id="conversation")
        self.view = TokenView(elem_id="token-view", view_height="none")
        with gr.Row(elem_id="examples"):
            self.examples = [
                gr.Button(example.label, size="sm", elem_classes="example") for example in EXAMPLES
            ]
        with gr.Row(elem_id="composer", equal_height=True):
            self.box = gr.Textbox(
                placeholder="Ask something …",
                label="Your message (Enter sends, Shift+Enter breaks the line)",
                show_label=False,
                container=False,
                lines=1,
                max_lines=8,
                scale=8,
                autofocus=True,
                elem_id="box",
            )
            self.send = gr.Button("Send", variant="primary", scale=1, min_width=76, elem_id="send")
            self.stop = gr.Button("Stop", variant="stop", scale=1, min_width=76, elem_id="stop")
        with gr.Row(elem_id="tools"):
            small: dict[str, Any] = dict(size="sm", min_width=60, scale=0)
            self.undo = gr.Button("Undo", **small)
            self.clear = gr.Button("Clear", **small)
            self.copy_link = gr.Button("Copy link", elem_id="copy-link", **small)
            self.share = ShareButtons(**small)
            self.replay = gr.Button("Step through it", elem_id="chat-replay", **small)
        self.charts = RunCharts(elem_id="run-charts")

    def _build_dial(self) -> None:
        self.dial = Dial(self.engine.loaded, self.registry)
        self.figures = Figures(note=self.note, elem_id="figures")
        self.chart = LiveChart(elem_id="live-chart")

    # ---- events ----

    def connect(self, demo: gr.Blocks) -> None:
        """Wire everything up."""
        run: dict[str, Any] = dict(
            outputs=[
                self.messages,
                self.conversation,
                self.box,
                self.view,
                self.figures,
                self.chart,
                self.trace,
                self.ended,
            ],
            show_progress="hidden",
            trigger_mode="once",
            concurrency_id="generation",
            concurrency_limit=8,
            api_visibility="private",
        )
        state = [self.messages, self.conversation, *self.dial.inputs]
        answers = [
            self.box.submit(self._send_typed, [self.box, *state], **run),
            self.send.click(self._send, [self.box, *state], **run),
            self.conversation.retry(self._retry, state, **run),
            self.conversation.edit(self._edit, state, **run),
        ]
        for button, example in zip(self.examples, EXAMPLES, strict=True):
            answers.append(button.click(_ask(self._send, example.prompt), state, **run))
        for answer in answers:  # apart from it, so that the next question need not wait for charts
            answer.then(
                self._draw_charts,
                [self.ended, self.drawn, self.trace],
                [self.drawn, *self.charts.outputs],
                trigger_mode="always_last",  # a run may end while the charts of the one before are drawn
                show_progress="hidden",
                api_visibility="private",
            )
        self.conversation.taken(None, [self.box, self.conversation], self.box, js=TAKEN_SCRIPT)
        # a listener that is still busy takes no second question, and says nothing (it is skipped); this does.
        # Of a question that was taken it comes when all is over
        self.box.submit(self._say_if_busy, self.box, None, concurrency_limit=None, api_visibility="private")
        self._connect_tools()
        self.dial.connect()
        self.dial.follow(self.conversation.change)
        loading: dict[str, Any] = dict(show_progress="hidden", api_visibility="private")
        loaded = demo.load(LinkReader(self.dial), None, [self.box, *self.dial.inputs], **loading)
        loaded.then(None, js=READY_SCRIPT)
        demo.unload(self._leave)

    def _connect_tools(self) -> None:
        quick: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
        stopped = self.stop.click(self._stop, self.messages, self.conversation, **quick)
        # a toast reaches the browser only from the queue (gradio 6.31)
        stopped.then(self._say_if_hanging, None, None, **quick | dict(queue=True, concurrency_limit=None))
        kept = [self.messages, self.conversation, self.box, self.view, self.figures, self.chart, self.trace]
        kept += [self.ended, *self.charts.outputs]
        self.undo.click(self._undo, [self.messages, self.conversation, self.box], kept, **quick)
        self.clear.click(self._clear, None, kept, **quick)
        self.copy_link.click(None, [self.box, self.conversation, *self.dial.inputs], js=COPY_LINK_SCRIPT)
        self.share.connect(self.trace)

    def _send(self, request: gr.Request, text: str, kept: Kept, shown: Any, *dial: Any) -> Iterator[Update]:
        history = _history(kept, shown)
        if is_blank(text):
            yield self._only_say("Type a question first.")
        else:
            yield from self._answer([*history, {"role": "user", "content": text}], dial, request, history)

    def _send_typed(self, request: gr.Request, *values: Any) -> Iterator[Update]:
        """As `_send`, but for the word that an answer is being written: `_say_if_busy` has it, once."""
        if self.registry.is_running(request.session_hash or ""):
            yield {self.trace: gr.skip()}
        else:
            yield from self._send(request, *values)

    def _retry(self, request: gr.Request, kept: Kept, shown: Any, *dial: Any) -> Iterator[Update]:
        history = _history(kept, shown)
        asked = [*history]
        while asked and asked[-1]["role"] == "assistant":
            asked.pop()
        if asked:
            yield from self._answer(asked, dial, request, history)
        else:
            yield self._only_say("There is nothing to answer again yet.")

    def _edit(
        self, request: gr.Request, event: gr.EventData, kept: Kept, shown: Any, *dial: Any
    ) -> Iterator[Update]:
        history = _history(kept, shown)
        data = event._data if isinstance(event._data, dict) else {}
        index, text = data.get("index"), data.get("text")
        if not (isinstance(index, int) and 0 <= index < len(history) and isinstance(text, str)):
            yield self._only_say("That message is no longer there.")
        elif is_blank(text):
            yield self._only_say("Type a question first.")
        else:
            asked = [*history[:index], {"role": "user", "content": text}]
            yield from self._answer(asked, dial, request, history)

    def _only_say(self, text: str) -> Update:
        """A word, and nothing changes. A listener that yields nothing would empty its outputs."""
        info(text)
        return {self.trace: gr.skip()}

    def _answer(
        self, asked: list[Message], dial: Any, request: gr.Request, before: list[Message]
    ) -> Iterator[Update]:
        """Answer the last of `asked`. What cannot even start leaves everything as it was (`before`)."""
        if self.registry.is_running(request.session_hash or ""):
            yield self._only_say(BUSY)
            return
        try:
            prompt, num_dropped = self._prompt(asked, DialValues.read(dial))
        except MarsError as error:
            warn(str(error))
            yield {self.conversation: conversation(before, running=False)}
            return
        if num_dropped:
            info(f"The {num_dropped} oldest messages no longer fit the model's context: left out.")
        yield from self._write(asked, prompt, request)

    def _prompt(self, asked: list[Message], values: DialValues) -> tuple[Prompt, int]:
        """What the engine is given, and how many of the oldest messages had to go. Raises `MarsError`."""
        settings, loaded = values.settings(), self.engine.loaded
        assert loaded.tokenizer is not None
        system = [] if is_blank(values.system) else [{"role": "system", "content": values.system}]
        room = loaded.context_length - settings.max_new_tokens
        fitted = fit_prompt(loaded.tokenizer, [*system, *asked], room)
        return Prompt([*system, *asked], fitted.ids, settings), fitted.num_dropped

    def _write(self, asked: list[Message], prompt: Prompt, request: gr.Request) -> Iterator[Update]:
        """Stream one answer; the last update holds the conversation with it, or the question back in the
        box where not one character was written."""
        feed = Feed(len(prompt.ids), self.note)
        events: list[StepEvent] = []
        with self.registry.running(request.session_hash or "", prompt.settings.live_values()) as running:
            yield {self.messages: asked, self.conversation: conversation(asked, running=True)}
            try:
                for message in messages(self._events(prompt, running, feed, events), feed):
                    if not running.discarded:
                        yield self._drawn(message)
            except Exception as error:  # whatever happened, the page must come back to rest
                yield self._drawn(self._failed(error, prompt, feed, events))
            if not running.discarded:
                trace = record(self.engine.loaded, prompt.messages, prompt.ids, prompt.settings, events)
                yield self._at_rest(asked, feed) | {self.trace: trace, self.ended: time.time()}
            else:  # gradio repeats the last update at the end, and the page has gone on
                yield {self.trace: gr.skip()}

    def _drawn(self, message: dict[str, Any]) -> Update:
        return {self.view: message, self.figures: message, self.chart: message}

    def _failed(
        self, error: Exception, prompt: Prompt, feed: Feed, events: list[StepEvent]
    ) -> dict[str, Any]:
        """Say in the page what went wrong; what was written stays."""
        sentence = explain(error)
        warn(sentence)
        before = events[-1] if events else None
        last = StepEvent.without_forward(before, prompt.settings.live_values(), "error", error=sentence)
        feed.push(last)
        events.append(last)
        return feed.final()

    def _at_rest(self, asked: list[Message], feed: Feed) -> Update:
        update: Update = {}
        if is_blank(feed.text):
            kept, update[self.box] = asked[:-1], asked[-1]["content"]
            return update | {self.messages: kept, self.conversation: conversation(kept, running=False)}
        kept = [*asked, {"role": "assistant", "content": feed.text}]
        shown = conversation(kept, running=False, ending=feed.ending)
        return update | {self.messages: kept, self.conversation: shown}

    def _events(
        self, prompt: Prompt, running: Running, feed: Feed, kept: list[StepEvent]
    ) -> Iterator[StepEvent]:
        counter, shared = StatisticsCounter(len(prompt.ids)), False
        with closing(self.engine.stream(Request(prompt.ids, prompt.settings, running.live))) as events:
            for event in events:
                kept.append(event)
                self.baseline.add(event)
                counter.add(event)
                # forwards shared with other visitors take longer: then there is no fair comparison
                shared = shared or event.num_rows > 1
                feed.speedup = None if shared else self.baseline.speedup(counter.read().tokens_per_s)
                yield event

    def _stop(self, request: gr.Request, history: Kept) -> Any:
        if self.registry.cancel(request.session_hash or "", wait_s=STOP_WAIT_S):
            return gr.skip()
        # it hangs, so it cannot bring the page to rest itself
        return conversation(history or [], running=False)

    def _say_if_busy(self, text: str, request: gr.Request) -> None:
        if not is_blank(text) and self.registry.is_running(request.session_hash or ""):
            info(BUSY)

    def _say_if_hanging(self, request: gr.Request) -> None:
        if self.registry.is_running(request.session_hash or ""):
            warn(HANGING)

    def _leave(self, request: gr.Request) -> None:
        """The tab was closed: nobody reads on."""
        self.registry.cancel(request.session_hash or "")

    def _undo(self, request: gr.Request, kept: Kept, shown: Any, typed: str) -> Update:
        """Take back the last question with its answer; it goes into the box, before what is typed there."""
        self._discard(request)
        rest = [*_history(kept, shown)]
        while rest and rest[-1]["role"] == "assistant":
            rest.pop()
        question = rest.pop()["content"] if rest else ""
        drafts = [text for text in (question, typed) if not is_blank(text)]
        return self._blank(rest) | {self.box: "\n".join(dict.fromkeys(drafts))}

    def _clear(self, request: gr.Request) -> Update:
        self._discard(request)
        return self._blank([])

    def _discard(self, request: gr.Request) -> None:
        self.registry.cancel(request.session_hash or "", STOP_WAIT_S, discard=True)

    def _blank(self, kept: list[Message]) -> Update:
        return {
            self.messages: kept,
            self.conversation: conversation(kept, running=False),
            self.view: None,
            self.figures: None,
            self.chart: None,
            self.trace: None,
            self.ended: None,
            **dict(zip(self.charts.outputs, self.charts.update(None), strict=True)),
        }

    def _draw_charts(self, ended: float | None, drawn: float | None, trace: Trace | None) -> Update:
        """The charts of a run that has just ended; once, however many listeners ask."""
        if trace is None or ended in (None, drawn):
            return {self.drawn: gr.skip()}
        charts = self.charts.update(trace.events)
        return {self.drawn: ended, **dict(zip(self.charts.outputs, charts, strict=True))}


@dataclasses.dataclass(frozen=True)
class Prompt:
    """What an answer starts from."""

    messages: list[Message]
    ids: list[int]
    settings: DecodeSettings


def explain(error: Exception) -> str:
    """One plain sentence for the page; the log has the rest."""
    if isinstance(error, MarsError):
        return str(error)
    logger.error("An answer failed", exc_info=error)
    if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
        return "The device ran out of memory. Shorten the conversation or ask for fewer tokens."
    return f"The model failed ({type(error).__name__}). What was written is kept; try again."


def _history(kept: Kept, shown: Any) -> list[Message]:
    """The conversation so far: the server's, and where it has none that which the page shows. It forgets a
    session when it is restarted, and the oldest when many have come."""
    return kept_messages(shown) if kept is None else kept


def _ask(send: Any, prompt: str) -> Any:
    """`send` with its text given."""

    def ask(request: gr.Request, kept: Kept, shown: Any, *dial: Any) -> Iterator[Update]:
        yield from send(request, prompt, kept, shown, *dial)

    return ask
