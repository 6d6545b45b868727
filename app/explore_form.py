"""What a visitor asks a sweep for: prompts and grid, as components, and read back within bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mars_core import LoadedModel, MarsError
from mars_core.bench.plan import numbers
from mars_core.bench.prompts_file import Prompt
from mars_core.bench.sweep.grid import ENTROPY_THRESHOLDS, SweepPlan, SweepPrompt, Workload
from mars_core.bench.sweep.prompts import BUILT_IN, built_in, parse_prompts
from mars_core.costs import ForwardCosts
from mars_core.settings import METRICS

from .escaped import escaped
from .token_view import FeedHTML, script

BUILT_IN_PROMPTS, OWN_PROMPTS = "Built in", "My own"
VERIFY_LABELS = {"without": "off", "with": "on", "both": "both"}
MOST_PROMPTS, LONGEST_PROMPT = 50, 4000
# a finished text is scored in one forward that everybody waits for
MOST_PROMPT_TOKENS = 512
MOST_ANSWERS, MOST_NEW_TOKENS = 400, 256
MOST_TEXT = MOST_PROMPTS * (LONGEST_PROMPT + 100)  # characters of the box


class PromptFile(FeedHTML):
    """A button that opens a file of prompts in the browser; the server never sees the file itself.

    Events: ``upload`` (data: ``name`` and ``text`` of the file, or ``error``, a sentence).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            js_on_load=script("explore.css", "common.js", "explore_file.js"), most=MOST_TEXT, **kwargs
        )


@dataclass(frozen=True)
class FormValues:
    """What the components hold, in their order."""

    source: str
    num_built_in: int
    text: str
    thresholds: str
    verify: str
    block_sizes: str
    metrics: Sequence[str]
    entropy_thresholds: str
    max_new_tokens: int

    def prompts(self) -> list[Prompt]:
        """Raises `MarsError`, naming the line, for what is too much, too long or no prompt."""
        if self.source != OWN_PROMPTS:
            return built_in(_bounded("The number of prompts", self.num_built_in, len(BUILT_IN)))
        return parse_prompts(self.text or "", "your prompts", MOST_PROMPTS, LONGEST_PROMPT)

    def plan(self) -> SweepPlan:
        """Raises `MarsError` for what is no grid, or too large a one for a page."""
        if not self.metrics:
            raise MarsError("Choose what τ is compared with, under “More settings”.")
        plan = SweepPlan(
            block_sizes=numbers("Block sizes", _plain(self.block_sizes), int),
            thresholds=numbers("Thresholds", _plain(self.thresholds), float),
            metrics=tuple(dict.fromkeys(self.metrics)),  # type: ignore[arg-type]
            entropy_thresholds=numbers("Thresholds on entropy", _plain(self.entropy_thresholds), float),
            verify=VERIFY_LABELS.get(self.verify, self.verify),  # type: ignore[arg-type]
            max_new_tokens=_bounded("Max new tokens", self.max_new_tokens, MOST_NEW_TOKENS),
        )
        return plan

    def check_size(self, plan: SweepPlan, num_prompts: int) -> None:
        """Raises `MarsError` for more answers than a page should give one visitor."""
        num_answers = len(plan.points()) * num_prompts
        if num_answers > MOST_ANSWERS:
            raise MarsError(
                f"{len(plan.points())} settings × {num_prompts} prompts are {num_answers} answers; allowed "
                f"are {MOST_ANSWERS} here. Choose fewer, or run python -m mars_core sweep."
            )


def check_lengths(chosen: Sequence[Prompt], prompts: Sequence[SweepPrompt]) -> None:
    """Raises `MarsError`, naming the line, for a prompt of too many tokens for a page.

    Args:
        chosen, prompts: the same ones, before and after they were made ready.
    """
    for prompt, encoded in zip(chosen, prompts, strict=True):
        if len(encoded.ids) > MOST_PROMPT_TOKENS:
            raise MarsError(
                f"{prompt.where}: the prompt has {len(encoded.ids)} tokens; allowed are {MOST_PROMPT_TOKENS} "
                "here. Shorten it, or run python -m mars_core sweep."
            )


def _plain(text: Any) -> str:
    """Numbers as people write lists of them: commas, semicolons or spaces between."""
    return ",".join(str(text or "")[:500].replace(";", " ").replace(",", " ").split())


def _bounded(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= most:
        raise MarsError(f"{name} is {value!r:.40}; allowed is 1 to {most}.")
    return round(value)


class ExploreForm:
    """The components, in the page where it is made; `inputs` is the order of `FormValues`."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._build_prompts()
        self.thresholds = gr.Textbox("0.5, 0.7, 0.9, 1", label="Thresholds τ", max_lines=1)
        self.verify = gr.Radio(list(VERIFY_LABELS), value="both", label="Verification")
        with gr.Accordion("More settings", open=False):
            self.block_sizes = gr.Textbox(str(loaded.block_size), label="Block sizes B", max_lines=1)
            self.metrics = gr.CheckboxGroup(
                list(METRICS), value=["probability"], label="What τ is compared with"
            )
            self.entropy_thresholds = gr.Textbox(
                ", ".join(f"{tau:g}" for tau in ENTROPY_THRESHOLDS),
                label="Thresholds on entropy, nats (lower is surer)",
                max_lines=1,
                visible=False,
            )
            most = min(MOST_NEW_TOKENS, loaded.context_length // 2)
            self.max_new_tokens = gr.Slider(
                1, most, min(48, most), step=1, label="Max new tokens", buttons=[]
            )

    def _build_prompts(self) -> None:
        self.source = gr.Radio([BUILT_IN_PROMPTS, OWN_PROMPTS], value=BUILT_IN_PROMPTS, label="Prompts")
        with gr.Column(elem_classes="explore-prompts") as self.built_in_group:
            self.num_built_in = gr.Slider(
                1, len(BUILT_IN), 4, step=1, label="How many of them", elem_id="explore-how-many", buttons=[]
            )
            with gr.Accordion("Read them", open=False):
                gr.Markdown("\n".join(f"{number}. {text}" for number, text in enumerate(BUILT_IN, 1)))
        with gr.Column(visible=False, elem_classes="explore-prompts") as self.own_group:
            self.text = gr.Textbox(
                label="One prompt a line",
                info="Or JSON lines with a prompt each, as from a file. "
                f"At most {MOST_PROMPTS} prompts, of up to {MOST_PROMPT_TOKENS} tokens each.",
                placeholder="Why is the sky blue?\nWrite a haiku about rain.",
                lines=4,
                max_lines=10,
                max_length=MOST_TEXT,
                elem_id="explore-own",
            )
            self.file = PromptFile(elem_id="explore-file")

    @property
    def inputs(self) -> list[Any]:
        return [
            self.source,
            self.num_built_in,
            self.text,
            self.thresholds,
            self.verify,
            self.block_sizes,
            self.metrics,
            self.entropy_thresholds,
            self.max_new_tokens,
        ]

    def connect(self) -> None:
        """Show what belongs to the choices made."""
        quick: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
        self.source.change(_show_prompts, self.source, [self.built_in_group, self.own_group], **quick)
        self.metrics.change(_show_entropy, self.metrics, self.entropy_thresholds, **quick)


def _show_prompts(source: str) -> list[Any]:
    return [gr.update(visible=source != OWN_PROMPTS), gr.update(visible=source == OWN_PROMPTS)]


def _show_entropy(metrics: Sequence[str]) -> Any:
    return gr.update(visible="entropy" in metrics)


def workload_line(values: FormValues, costs: ForwardCosts | None) -> str:
    """How much a sweep with these values is, as HTML; or what is wrong with them."""
    try:
        plan, prompts = values.plan(), values.prompts()
        values.check_size(plan, len(prompts))
    except MarsError as error:
        return f"<p class='explore-fault' role='alert'>{escaped(str(error)[:300])}</p>"
    work = Workload.of(plan, len(prompts), costs)
    settings, answers = len(plan.points()), work.num_answers
    line = (
        f"{settings} settings (AR among them) × {len(prompts)} prompt{'s' * (len(prompts) != 1)} = "
        f"{answers} answers of up to {plan.max_new_tokens} tokens"
    )
    if work.seconds is not None:
        alone = "on this device if nobody else uses it, reading the prompts apart"
        line += f": about {duration(work.seconds)} {alone}"
    return f"<p>{line}.</p>"


def duration(seconds: float) -> str:
    """For people. Example: 75 -> ``1 min 20 s``."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s" if seconds < 10 else f"{5 * math.ceil(seconds / 5)} s"
    minutes, rest = divmod(10 * math.ceil(seconds / 10), 60)
    if minutes >= 10 or not rest:
        return f"{minutes + (rest >= 30 and minutes >= 10)} min"
    return f"{minutes} min {rest} s"
