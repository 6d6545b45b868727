"""The dial: every setting of a generation, those that act at once and those of the next message."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mars_core import DecodeSettings, LoadedModel, MarsError
from mars_core.settings import METRICS, Metric

from .live import LiveRegistry
from .live_slider import FreeSlider, on_turn, position
from .notices import fault
from .token_view import ASSETS

NEW_SEED_BOUND = 2**31
MAX_SEED_DIGITS = 18  # below 2**63


@dataclass(frozen=True)
class ThresholdScale:
    """How τ is set for a metric: the slider's ends, where it starts, and what its ends mean."""

    low: float
    high: float
    start: float
    label: str
    left: str
    right: str

    def position(self, value: Any) -> float | None:
        """`live_slider.position` between these ends."""
        return position(value, self.low, self.high)


SCALES: dict[Metric, ThresholdScale] = {
    "probability": ThresholdScale(0.5, 1.0, 0.9, "Threshold τ on probability", "faster", "exact"),
    "margin": ThresholdScale(0.0, 1.0, 0.8, "Threshold τ on margin p₁ − p₂", "faster", "exact"),
    "entropy": ThresholdScale(0.0, 2.0, 0.4, "Threshold τ on entropy, nats", "exact", "faster"),
}


@dataclass(frozen=True)
class DialValues:
    """What the dial's components hold, in their order."""

    threshold: float
    verify: bool
    block_size: int
    metric: Metric
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    system: str

    @classmethod
    def read(cls, values: Sequence[Any]) -> DialValues:
        """From the components' raw values. A τ that the metric's slider does not have is of another metric's,
        which was just changed: then it is where this one's starts, as the page is about to show.

        Raises `MarsError` where a number is missing or no number.
        """
        threshold, verify, block_size, metric, max_new_tokens, temperature, top_p, seed, system = values
        scale = SCALES[_metric(metric)]
        at = scale.position(_number("threshold", threshold))
        return cls(
            threshold=scale.start if at is None else at,
            verify=bool(verify),
            block_size=round(_number("block size", block_size)),
            metric=metric,
            max_new_tokens=round(_number("max new tokens", max_new_tokens)),
            temperature=_number("temperature", temperature),
            top_p=_number("top-p", top_p),
            seed=_seed(seed),
            system=system or "",
        )

    def settings(self) -> DecodeSettings:
        """As the engine takes them. Where text is sampled and no seed was given one is drawn here, so that
        the trace knows it. Raises `MarsError` for what is out of range."""
        seed = self.seed
        if seed is None and self.temperature > 0:
            seed = random.randrange(NEW_SEED_BOUND)
        return DecodeSettings(
            threshold=self.threshold,
            verify=self.verify,
            block_size=self.block_size,
            metric=self.metric,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
        )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise MarsError(f"{name} is {value!r}; give a number.")
    return value


def _metric(value: Any) -> Metric:
    if not isinstance(value, str) or value not in SCALES:
        raise MarsError(f"There is no metric {value!r:.40}.")
    return value


def _seed(value: Any) -> int | None:
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > MAX_SEED_DIGITS:
        raise MarsError(f"seed is {text!r}; allowed is a whole number, 0 or more, or nothing.")
    return int(text)


class Dial:
    """The components, in the page where it is made; `inputs` is the order `DialValues.read` expects."""

    def __init__(self, loaded: LoadedModel, registry: LiveRegistry) -> None:
        self.registry = registry
        scale = SCALES["probability"]
        start = scale.start if loaded.mars_tuned else 1.0
        with gr.Column(elem_id="tau-bar"):
            self.threshold = FreeSlider(
                scale.low, scale.high, start, step=0.01, label=scale.label, elem_id="tau", buttons=[]
            )
            gr.HTML(
                html_template=_ENDS,
                js_on_load=(ASSETS / "tau_ends.js").read_text("utf-8"),
                elem_id="tau-ends",
                apply_default_css=False,
            )
        self.verify = gr.Checkbox(
            loaded.mars_tuned,
            label="Verify",
            info="Check unsure predictions in the next forward. At τ = 1 nothing is lost.",
            elem_id="verify",
        )
        with gr.Accordion("More settings", open=False, elem_id="more"):
            gr.Markdown("Act at once, even on an answer that is being written:", elem_classes="mars-when")
            self.block_size = gr.Slider(
                1,
                max(8, 2 * loaded.block_size),
                loaded.block_size,
                step=1,
                label="Block size B",
                info="The next token, and B − 1 behind masks: how far one forward looks ahead.",
                buttons=[],
            )
            self.metric = gr.Radio(
                list(METRICS),
                value="probability",
                label="What τ is compared with",
                info="Of the best guess, its probability; its margin over the second; or how spread all are "
                "(entropy: the lower, the surer).",
            )
            gr.Markdown("Act from the next message on:", elem_classes="mars-when")
            longest = min(2048, loaded.context_length // 2)
            self.max_new_tokens = gr.Slider(
                1, longest, min(256, longest), step=1, label="Max new tokens", buttons=[]
            )
            self.temperature = gr.Slider(0, 1.5, 0, step=0.05, label="Temperature (0 is greedy)", buttons=[])
            self.top_p = gr.Slider(0.05, 1, 1, step=0.01, label="Top-p", buttons=[])
            # no gr.Number: that shows an empty value as 0, which is a seed
            self.seed = gr.Textbox("", label="Seed", placeholder="a new one each time", max_lines=1)
            self.system = gr.Textbox("", lines=2, max_lines=6, label="System prompt")

    @property
    def inputs(self) -> list[Any]:
        return [
            self.threshold,
            self.verify,
            self.block_size,
            self.metric,
            self.max_new_tokens,
            self.temperature,
            self.top_p,
            self.seed,
            self.system,
        ]

    def connect(self) -> None:
        """Let τ, verification, B and the metric act on what is running: outside the queue, the newest
        position only."""
        live: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
        live["trigger_mode"] = "always_last"
        on_turn(self.threshold, self._turn_threshold, [self.threshold, self.metric], **live)
        self.verify.input(self._turn_verify, self.verify, **live)
        on_turn(self.block_size, self._turn_block_size, [self.block_size], **live)
        # the scale is the page's own doing: no answer that comes late can show that of another metric
        self.metric.input(None, self.metric, self.threshold, js=_SCALE_SCRIPT)
        self.metric.input(self._turn_metric, self.metric, **live)

    def follow(self, begins: Any) -> None:
        """Turn what begins at this event to where the dial stands by then: a question may have waited for its
        turn since it was sent."""
        inputs = [self.threshold, self.verify, self.block_size, self.metric]
        begins(
            self._catch_up, inputs, None, queue=False, preprocess=False, show_progress="hidden",
            api_visibility="private",
        )  # fmt: skip

    def _catch_up(
        self, threshold: Any, verify: Any, block_size: Any, metric: Any, request: gr.Request
    ) -> None:
        with _told():
            at = SCALES[_metric(metric)].position(threshold)
            size = position(block_size, 1, self.block_size.maximum)
            if at is not None and size is not None:
                self._turn(request, threshold=at, verify=bool(verify), block_size=round(size), metric=metric)

    def _turn_threshold(self, threshold: Any, metric: Any, request: gr.Request) -> None:
        with _told():
            if (at := SCALES[_metric(metric)].position(threshold)) is not None:
                self._turn(request, threshold=at)

    def _turn_verify(self, verify: bool, request: gr.Request) -> None:
        with _told():
            self._turn(request, verify=bool(verify))

    def _turn_block_size(self, block_size: Any, request: gr.Request) -> None:
        if (at := position(block_size, 1, self.block_size.maximum)) is not None:
            with _told():
                self._turn(request, block_size=round(at))

    def _turn_metric(self, metric: Metric, request: gr.Request) -> None:
        # another metric is another scale: τ goes to where that one starts, in the same step
        with _told():
            self._turn(request, metric=_metric(metric), threshold=SCALES[_metric(metric)].start)

    def _turn(self, request: gr.Request, **changes: Any) -> None:
        self.registry.update(request.session_hash or "", **changes)


@contextmanager
def _told() -> Iterator[None]:
    """What cannot be becomes a word to the visitor."""
    try:
        yield
    except MarsError as error:
        raise fault(str(error)) from None


def threshold_update(metric: Metric, value: float | None = None) -> Any:
    """The slider for a metric, at `value` or where that metric starts."""
    scale = SCALES[metric]
    position = scale.start if value is None else min(max(value, scale.low), scale.high)
    return gr.update(minimum=scale.low, maximum=scale.high, value=position, label=scale.label)


_SCALE_SCRIPT = f"(metric) => ({json.dumps({metric: threshold_update(metric) for metric in SCALES})})[metric]"

_ENDS = (
    '<div class="mars-ends"><span></span><output></output><span></span></div><p class="mars-meaning"></p>'
    '<p class="mars-keys"><kbd>←</kbd> <kbd>→</kbd> turn τ · <kbd>Esc</kbd> stops</p>'
)
