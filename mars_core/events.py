"""What one forward did, in full: the only thing that the page, the charts and a saved trace draw from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from . import trace_checks as check
from .errors import MarsError
from .settings import LiveValues, Metric

Decided = Literal["ar", "accepted", "verified", "candidate", "chosen"]
FinishReason = Literal["eos", "length", "stop", "cancelled", "error"]
TRACE_FORMAT = "mars-trace"
TRACE_VERSION = 2
TRACE_FIELDS = (
    "format", "version", "recorded", "model", "settings", "prompt", "prompt_ids", "text", "statistics",
    "events",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the best tokens at a position, with its probability before any temperature."""

    id: int
    label: str
    probability: float


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One prediction of one forward.

    Attributes:
        id: the token.
        text: what this token added to the text. A character that spans several tokens belongs to the
            last of them and the others have "" here. Always "" for candidates.
        label: the token by itself, made printable (bytes that are no character as ``⟨F0 9F⟩``).
        special: an end-of-sequence or other control token; it adds no text.
        decided: `ar` (offset 1: no mask before it), `accepted` (behind masks, surer than τ), `verified`
            (predicted behind masks by the forward before, confirmed by this one: as good as `ar`),
            `candidate` (predicted and not committed; with verification it is the next forward's draft),
            `chosen` (by a person, to branch off a recorded run; no forward of an engine has it).
        sampled: drawn at a temperature above 0 (False: the likeliest token).
        probability, margin, entropy: p of the token; p₁ − p₂; H(p) in nats; all in fp32, before any
            temperature, after never-committed tokens were ruled out.
        alternatives: the position's best tokens, best first.
    """

    id: int
    text: str
    label: str
    special: bool
    decided: Decided
    sampled: bool
    probability: float
    margin: float
    entropy: float
    alternatives: tuple[Alternative, ...] = ()

    def confidence(self, metric: Metric) -> float:
        """The figure that τ is compared with."""
        return float(getattr(self, metric))


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one forward did for one row.

    Attributes:
        index: number of the forward within its request, from 0.
        prefill: the forward fed prompt tokens. The last of these also commits tokens.
        committed: tokens committed, in order. Empty for all but the last prefill forward, and for the
            event that reports a cancellation or an error.
        candidates: the rest of the window's predictions, not committed.
        text: text that became final (a character is never cut; what might be the start of a stop string
            is held back).
        threshold, metric, block_size: in force for this forward.
        one_token: the forward carried no masks (AR, or τ at its exact end).
        window_length: positions the forward was fed for this row.
        num_cached: positions of the row's cache that were read.
        seconds: what the whole step took, device synchronised (window, forward, decision, text).
        elapsed: seconds since the request.
        finish_reason: why the generation ended with this forward; None while it goes on.
        error: one plain sentence, where `finish_reason` is ``error``.
        num_rows: requests that shared the forward; 1 where it served this one alone.
        num_drafts: drafts of the forward before that this one was fed to verify.
        verify: verification was in force.
    """

    index: int
    prefill: bool
    committed: tuple[TokenChoice, ...]
    candidates: tuple[TokenChoice, ...]
    text: str
    threshold: float
    metric: Metric
    block_size: int
    one_token: bool
    window_length: int
    num_cached: int
    seconds: float
    elapsed: float
    finish_reason: FinishReason | None = None
    error: str | None = None
    num_rows: int = 1
    num_drafts: int = 0
    verify: bool = False

    @classmethod
    def without_forward(
        cls,
        before: StepEvent | None,
        live: LiveValues,
        finish_reason: FinishReason,
        *,
        text: str = "",
        error: str | None = None,
    ) -> StepEvent:
        """The event that ends a generation between two forwards: cancelled, or failed.

        Args:
            before: the generation's last event; None where there was none.
        """
        return cls(
            index=before.index + 1 if before else 0,
            prefill=before.prefill and not before.committed if before else True,
            committed=(),
            candidates=(),
            text=text,
            threshold=live.threshold,
            metric=live.metric,
            block_size=live.block_size,
            one_token=before.one_token if before else False,
            window_length=0,
            num_cached=before.num_cached if before else 0,
            seconds=0.0,
            elapsed=before.elapsed if before else 0.0,
            finish_reason=finish_reason,
            error=error,
            verify=live.verify,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StepEvent:
        """The inverse of `to_json`. Raises `MarsError` where the data is not such an event."""
        try:
            fields = check.fields("an event", data)
            for name in ("committed", "candidates"):
                fields[name] = tuple(map(_choice, check.items(name, fields[name], check.MAX_ITEMS[name])))
            return check.checked(cls(**fields))
        except check.DAMAGE as error:
            raise MarsError(f"This is no event of a trace of version {TRACE_VERSION}: {error}.") from error


def _choice(data: dict[str, Any]) -> TokenChoice:
    fields = check.fields("a token", data)
    best = check.items("alternatives", fields["alternatives"], check.MAX_ITEMS["alternatives"])
    fields["alternatives"] = tuple(check.checked(Alternative(**item)) for item in best)
    return check.checked(TokenChoice(**fields))


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of one generation.

    Attributes:
        num_prompt_tokens: length of the prompt.
        num_tokens: tokens committed, the end-of-sequence token included.
        num_forwards: forwards that committed tokens: the decode forwards, and the prefill as one however
            many chunks it was fed in.
        tokens_per_forward: num_tokens / num_forwards; 0 before the first.
        prefill_s: seconds in prefill forwards.
        decode_s: seconds in the forwards after it.
        tokens_per_s: tokens committed after the prefill / decode_s; 0 where there were none.
        time_to_first_token_s: from the request to its first committed token; None before.
        finish_reason: None while it runs.
    """

    num_prompt_tokens: int
    num_tokens: int
    num_forwards: int
    tokens_per_forward: float
    prefill_s: float
    decode_s: float
    tokens_per_s: float
    time_to_first_token_s: float | None
    finish_reason: FinishReason | None


class StatisticsCounter:
    """Running statistics; `add` every event once, `read` at any time."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = self.num_decode_tokens = self.num_forwards = 0
        self.prefill_s = self.decode_s = 0.0
        self.first_token_s: float | None = None
        self.finish_reason: FinishReason | None = None

    def add(self, event: StepEvent) -> None:
        """Count one forward."""
        num_committed = len(event.committed)
        self.num_tokens += num_committed
        self.num_forwards += bool(num_committed)
        if event.prefill:
            self.prefill_s += event.seconds
        else:
            self.decode_s += event.seconds
            self.num_decode_tokens += num_committed
        if num_committed and self.first_token_s is None:
            self.first_token_s = event.elapsed
        self.finish_reason = event.finish_reason or self.finish_reason

    def read(self) -> Statistics:
        """The figures so far."""
        return Statistics(
            num_prompt_tokens=self.num_prompt_tokens,
            num_tokens=self.num_tokens,
            num_forwards=self.num_forwards,
            tokens_per_forward=_ratio(self.num_tokens, self.num_forwards),
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            tokens_per_s=_ratio(self.num_decode_tokens, self.decode_s),
            time_to_first_token_s=self.first_token_s,
            finish_reason=self.finish_reason,
        )


def statistics(events: Iterable[StepEvent], num_prompt_tokens: int = 0) -> Statistics:
    """The figures of a list of events."""
    counter = StatisticsCounter(num_prompt_tokens)
    for event in events:
        counter.add(event)
    return counter.read()


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0


@dataclass(frozen=True)
class Trace:
    """A whole generation, enough to draw the page again without a model, and to branch off it with one.

    Attributes:
        prompt: the messages, each ``{"role": …, "content": …}``.
        prompt_ids: what the model was fed.
        settings: the `DecodeSettings` it started with, as a dictionary.
        model: name, device, dtype and whatever else tells where the figures were taken.
        events: one a forward, in order.
        recorded: when, in UTC, such as ``2026-04-07T12:30:00Z``.
    """

    prompt: tuple[dict[str, str], ...]
    prompt_ids: tuple[int, ...]
    settings: dict[str, Any]
    model: dict[str, Any]
    events: tuple[StepEvent, ...]
    recorded: str = dataclasses.field(default_factory=check.now)

    def text(self) -> str:
        """The answer."""
        return "".join(event.text for event in self.events)

    def statistics(self) -> Statistics:
        """The figures of the run."""
        return statistics(self.events, len(self.prompt_ids))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists, with the format's name and version (docs/trace.md)."""
        return {
            "format": TRACE_FORMAT,
            "version": TRACE_VERSION,
            "recorded": self.recorded,
            "model": self.model,
            "settings": self.settings,
            "prompt": list(self.prompt),
            "prompt_ids": list(self.prompt_ids),
            "text": self.text(),
            "statistics": dataclasses.asdict(self.statistics()),
            "events": [event.to_json() for event in self.events],
        }

    @classmethod
    def from_json(cls, data: Any) -> Trace:
        """Read what `to_json` wrote. Raises `MarsError` for another format or version, or damage.

        For what comes from a file use `traces.read_trace`, which bounds its size before it is parsed.
        """
        if not isinstance(data, dict) or data.get("format") != TRACE_FORMAT:
            raise MarsError("This file is not a MARS trace.")
        _check_version(data.get("version"))
        try:
            trace = cls(
                prompt=tuple(map(check.message, check.items("prompt", data["prompt"], check.MAX_MESSAGES))),
                prompt_ids=tuple(
                    map(check.token_id, check.items("prompt_ids", data["prompt_ids"], check.MAX_PROMPT_IDS))
                ),
                settings=check.facts("settings", data["settings"]),
                model=check.facts("model", data["model"]),
                events=tuple(
                    map(StepEvent.from_json, check.items("events", data["events"], check.MAX_EVENTS))
                ),
                recorded=check.time(data["recorded"]),
            )
            _check_whole(trace, data)
        except MarsError:
            raise
        except KeyError as error:
            raise MarsError(f"This trace is damaged: {error} is missing.") from error
        except check.DAMAGE as error:
            raise MarsError(f"This trace is damaged: {error}.") from error
        return trace


def _check_version(version: Any) -> None:
    if type(version) is int and version == TRACE_VERSION:
        return
    older = type(version) is int and version < TRACE_VERSION
    what_to_do = "Record the run again." if older else "Update this program to open it."
    raise MarsError(
        f"This trace has version {check.shown(version)}; this program reads version {TRACE_VERSION}. "
        + what_to_do
    )


def _check_whole(trace: Trace, data: dict[str, Any]) -> None:
    """What the parts say of each other. Raises one of `trace_checks.DAMAGE`."""
    unknown = set(data) - set(TRACE_FIELDS)
    if unknown:
        raise ValueError(f"it has a field {check.shown(min(unknown))}, which version {TRACE_VERSION} has not")
    for place, event in enumerate(trace.events):
        if event.index != place:
            raise ValueError(f"event {place} says that it is event {event.index}")
        if event.finish_reason and place + 1 < len(trace.events):
            raise ValueError(f"event {place} ends the run, and more follow")
    if data.get("text", trace.text()) != trace.text():
        raise ValueError("its text is not what its events say")
    if "statistics" in data:
        check.checked(Statistics(**data["statistics"]))
