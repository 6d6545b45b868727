"""What a caller may set, validated in one place."""

from __future__ import annotations

import dataclasses
import math
import threading
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import MarsError

Mode = Literal["ar", "mars"]
Metric = Literal["probability", "margin", "entropy"]
MODES: tuple[Mode, ...] = get_args(Mode)
METRICS: tuple[Metric, ...] = get_args(Metric)
Layout = Literal["auto", "linear", "full"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
Proposer = Literal["masks", "lookup", "both"]
PROPOSERS: tuple[Proposer, ...] = get_args(Proposer)
MAX_BLOCK_SIZE = 64
MIN_TEMPERATURE = 0.001


def never_accepts(threshold: float, metric: Metric) -> bool:
    """True at τ's exact end, where nothing is committed for its confidence alone.

    By definition, not by luck: in floating point a probability can round to 1, so comparing it with τ = 1
    would not be enough (arXiv 2604.07023, "τ = 1.0").
    """
    return threshold <= 0 if metric == "entropy" else threshold >= 1


def one_token_mode(mode: Mode, threshold: float, metric: Metric, verify: bool = False) -> bool:
    """True where no prediction behind a mask could ever be committed, so that none is made: AR decoding."""
    return mode == "ar" or (not verify and never_accepts(threshold, metric))


@dataclass(frozen=True, slots=True)
class LiveValues:
    """The settings of a row that may change between two of its forwards.

    Attributes:
        threshold: τ; for `probability` and `margin` in [0, 1] (1 = one-token mode, 0 = always B tokens),
            for `entropy` in nats (≤ 0 = one-token mode).
        metric: what τ is compared with.
        block_size: B; without verification the most tokens one forward may commit.
        verify: keep what is not sure enough as drafts, and check them in the next forward.
        layout: of the window with drafts. `linear`: masks after the last draft only, few positions.
            `full`: masks after every draft, so that a wrong one does not cost the next its drafts.
            `auto`: whichever pays most on this device for this text, down to none (`planner.py`).
        max_drafts: the most drafts a forward verifies; None is as many as there are masks in a group.
        proposer: where drafts come from. `masks`: from the model. `lookup`: from what followed the last
            words where they stood before in the prompt or the answer (prompt lookup); needs `verify`.
            `both`: from there where they did, else from the model.
        last_mask: feed B masks instead of B − 1, so that one forward may commit B + 1 tokens: for checkpoints
            whose last mask was trained to predict too. None is as the checkpoint says.
    """

    threshold: float = 0.9
    metric: Metric = "probability"
    block_size: int = 4
    verify: bool = False
    layout: Layout = "auto"
    max_drafts: int | None = None
    proposer: Proposer = "masks"
    last_mask: bool | None = None

    def __post_init__(self) -> None:
        _number("threshold", self.threshold, allowed="a finite number, 0 or more", low=0)
        if self.metric not in METRICS:
            raise MarsError(f"metric is {self.metric!r}; allowed are {', '.join(METRICS)}.")
        _integer("block_size", self.block_size, low=1, high=MAX_BLOCK_SIZE)
        if not isinstance(self.verify, bool):
            raise MarsError(f"verify is {self.verify!r}; allowed is True or False.")
        if self.layout not in LAYOUTS:
            raise MarsError(f"layout is {self.layout!r}; allowed are {', '.join(LAYOUTS)}.")
        if self.max_drafts is not None:
            _integer("max_drafts", self.max_drafts, low=0, high=MAX_BLOCK_SIZE)
        if self.proposer not in PROPOSERS:
            raise MarsError(f"proposer is {self.proposer!r}; allowed are {', '.join(PROPOSERS)}.")
        if self.proposer == "lookup" and not self.verify:
            raise MarsError("proposer is 'lookup', whose drafts must be verified: set verify to True.")
        if self.last_mask is not None and not isinstance(self.last_mask, bool):
            raise MarsError(f"last_mask is {self.last_mask!r}; allowed is True, False or None.")


class LiveSettings:
    """A handle on the settings of a running generation: any thread may turn it, the engine reads it once
    a forward.

    The values are one immutable object that is replaced as a whole, so a reader never sees half a change.
    """

    def __init__(self, values: LiveValues | None = None) -> None:
        self._values = values or LiveValues()
        self._cancelled = False
        self._lock = threading.Lock()

    def read(self) -> LiveValues:
        """The values in force now."""
        return self._values

    def update(self, **changes: Any) -> LiveValues:
        """Replace some values; what is invalid raises `MarsError` and changes nothing."""
        with self._lock:  # two threads that turn different values both have their way
            self._values = dataclasses.replace(self._values, **changes)
            return self._values

    def cancel(self) -> None:
        """End the generation before its next forward."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    """How one request is decoded.

    Attributes:
        mode: `ar` (one token a forward) or `mars` (up to B).
        threshold, metric, block_size, verify, layout, max_drafts, proposer, last_mask: where the generation
            starts; see `LiveValues`.
        max_new_tokens: at most this many tokens are committed, the end-of-sequence token included.
        temperature: 0 is greedy; above, each token is sampled from its own position's distribution.
        top_k: sample among the k likeliest tokens; 0 is off.
        top_p: sample among the likeliest tokens that together reach this probability; 1 is off.
        seed: of the sampling; None draws one. The same seed gives the same text.
        stop_token_ids: end the generation like the model's own end-of-sequence tokens.
        stop_strings: end the generation where one appears; it is not part of the text.
        ignore_eos: go on behind end-of-sequence tokens (benchmarks of a fixed length).
        num_alternatives: how many of a position's best tokens an event names.
    """

    mode: Mode = "mars"
    threshold: float = 0.9
    metric: Metric = "probability"
    block_size: int = 4
    verify: bool = False
    layout: Layout = "auto"
    max_drafts: int | None = None
    proposer: Proposer = "masks"
    last_mask: bool | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    num_alternatives: int = 3

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise MarsError(f"mode is {self.mode!r}; allowed are {', '.join(MODES)}.")
        self.live_values()
        _integer("max_new_tokens", self.max_new_tokens, low=1)
        # logits divided by less could overflow
        lowest = MIN_TEMPERATURE if self.temperature else 0
        allowed = f"0 (greedy), or {MIN_TEMPERATURE} to 10"
        _number("temperature", self.temperature, allowed=allowed, low=lowest, high=10)
        _integer("top_k", self.top_k, low=0)
        _number("top_p", self.top_p, allowed="above 0, up to 1", low=1e-6, high=1)
        _integer("num_alternatives", self.num_alternatives, low=0, high=32)
        if self.seed is not None:
            _integer("seed", self.seed, low=0, high=2**63 - 1)
        # a lone string is a sequence too, of its characters: not what its giver meant
        if not isinstance(self.stop_token_ids, (tuple, list)):
            raise MarsError(f"stop_token_ids is {self.stop_token_ids!r}; allowed is a tuple of token ids.")
        for token_id in self.stop_token_ids:
            _integer("stop_token_ids", token_id, low=0)
        if not isinstance(self.stop_strings, (tuple, list)) or not all(
            isinstance(text, str) and text for text in self.stop_strings
        ):
            raise MarsError(
                f"stop_strings is {self.stop_strings!r}; allowed is a tuple of strings, none empty."
            )

    def live_values(self) -> LiveValues:
        """The part of these settings that may change while the generation runs."""
        names = [field.name for field in dataclasses.fields(LiveValues)]
        return LiveValues(**{name: getattr(self, name) for name in names})


def _number(name: str, value: Any, *, allowed: str, low: float, high: float = math.inf) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and low <= value <= high):
        raise MarsError(f"{name} is {value!r}; allowed is {allowed}.")


def _integer(name: str, value: Any, *, low: int, high: int | None = None) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise MarsError(f"{name} is {value!r}; allowed is a whole number, {allowed}.")
