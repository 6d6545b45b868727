"""Events, traces and the figures drawn from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mars_core.errors import MarsError
from mars_core.events import (
    TRACE_FIELDS,
    Alternative,
    FinishReason,
    StepEvent,
    TokenChoice,
    Trace,
    statistics,
)
from mars_core.settings import LiveValues


def choice(token_id: int = 65, text: str = "A") -> TokenChoice:
    best = (Alternative(65, "A", 0.5), Alternative(66, "B", 0.25))
    return TokenChoice(token_id, text, text, False, "ar", False, 0.5, 0.25, 1.0, best)


def event(
    index: int,
    committed: int,
    seconds: float,
    elapsed: float,
    prefill: bool = False,
    finish_reason: FinishReason | None = None,
) -> StepEvent:
    return StepEvent(
        index=index,
        prefill=prefill,
        committed=(choice(),) * committed,
        candidates=(choice(66, "⟨F0 9F⟩"),),
        text="A" * committed,
        threshold=0.9,
        metric="probability",
        block_size=4,
        one_token=False,
        window_length=4,
        num_cached=7,
        seconds=seconds,
        elapsed=elapsed,
        finish_reason=finish_reason,
    )


def run() -> list[StepEvent]:
    """Prefill 10 s in two chunks, then 20 forwards of 0.1 s that commit 40 tokens, the last EOS."""
    events = [event(0, 0, 4.0, 4.0, prefill=True), event(1, 1, 6.0, 10.0, prefill=True)]
    return events + [
        event(i, 2, 0.1, 10 + i / 10, finish_reason="eos" if i == 21 else None) for i in range(2, 22)
    ]


def trace(events: list[StepEvent]) -> Trace:
    prompt = ({"role": "user", "content": "你好 <b>"},)
    return Trace(prompt, (1, 2, 3), {"threshold": 0.9}, {"name": "tiny"}, tuple(events))


def test_prefill_is_apart_from_the_decoding_speed():
    figures = statistics(run(), 3)
    assert figures.tokens_per_s == pytest.approx(20.0)
    assert (figures.prefill_s, figures.decode_s) == (pytest.approx(10.0), pytest.approx(2.0))
    assert figures.time_to_first_token_s == pytest.approx(10.0)
    assert (figures.num_tokens, figures.num_forwards, figures.num_prompt_tokens) == (41, 21, 3)
    assert figures.tokens_per_forward == pytest.approx(41 / 21)
    assert figures.finish_reason == "eos"


def test_one_token_and_no_token_divide_by_nothing():
    one = statistics(run()[:2])
    assert (one.num_tokens, one.tokens_per_forward, one.tokens_per_s) == (1, 1.0, 0.0)
    none = statistics([])
    assert (none.num_tokens, none.tokens_per_forward, none.tokens_per_s) == (0, 0.0, 0.0)
    assert none.time_to_first_token_s is None and none.finish_reason is None


def test_a_cancellation_counts_neither_a_token_nor_a_forward():
    events = run()[:4]
    last = StepEvent.without_forward(events[-1], LiveValues(), "cancelled", text="x")
    before, after = statistics(events), statistics([*events, last])
    assert (after.num_tokens, after.num_forwards) == (before.num_tokens, before.num_forwards)
    assert after.tokens_per_s == before.tokens_per_s and after.finish_reason == "cancelled"
    assert last.index == 4 and last.committed == ()


def test_a_cancellation_before_the_first_forward_is_an_event_like_any():
    last = StepEvent.without_forward(None, LiveValues(0.5), "cancelled")
    assert (last.index, last.prefill, last.threshold) == (0, True, 0.5)


def test_a_trace_survives_json():
    before = trace(run())
    data = json.loads(json.dumps(before.to_json(), allow_nan=False))
    after = Trace.from_json(data)
    assert after == before
    assert tuple(data) == TRACE_FIELDS
    assert data["text"] == before.text() == "A" * 41
    assert data["statistics"]["tokens_per_s"] == pytest.approx(20.0)


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("version", [0, 3, "2", None, True, 10**5000, nested(100_000)], ids=range(7))
def test_another_version_is_refused_by_its_number(version):
    with pytest.raises(MarsError, match="version"):
        Trace.from_json(trace([]).to_json() | {"version": version})


@pytest.mark.parametrize("data", [None, [], {}, "text", {"format": "other", "version": 2}])
def test_what_is_no_trace_is_refused(data):
    with pytest.raises(MarsError, match="not a MARS trace"):
        Trace.from_json(data)


DAMAGE: list[tuple[str, Any]] = [
    ("events", [5]),
    ("events", [{}]),
    ("events", None),
    ("prompt", [{"content": "no role"}]),
    ("prompt", ["text"]),
    ("prompt_ids", ["a"]),
    ("settings", 5),
    ("settings", {"a": float("nan")}),
    ("settings", nested(100_000)),
    ("model", {"a": nested(100_000)}),
    ("prompt", [{"role": nested(100_000), "content": ""}]),
    ("prompt", [{"role": "user", "content": 5}]),
    ("prompt_ids", [1e400]),
    ("prompt_ids", [1.5]),
    ("prompt_ids", [-1]),
    ("prompt_ids", [True]),
    ("prompt_ids", [10**5000]),
    ("prompt_ids", 7),
    ("events", nested(100_000)),
    ("events", [run()[1].to_json()]),
    ("events", [run()[0].to_json()] * 2),
    ("events", [run()[0].to_json() | {"finish_reason": "eos"}, run()[1].to_json()]),
    ("events", "text"),
    ("events", [[[name, value] for name, value in run()[0].to_json().items()]]),
    ("recorded", None),
    ("recorded", "yesterday"),
    ("recorded", "2026-13-01T00:00:00Z"),
    ("recorded", "2026-04-07T12:30:00Z\n"),
    ("text", "not what the events say"),
    ("statistics", {}),
    ("statistics", trace([]).to_json()["statistics"] | {"num_tokens": -1}),
    ("surprise", 1),
    ("model", {"a": {"b": 1}}),
    ("model", {str(n): n for n in range(65)}),
    ("model", {"name": "\ud800"}),
    ("prompt", [{"role": "user", "content": "\udfff"}]),
    ("prompt", [{"role": "user", "content": "", "more": ""}]),
    ("prompt", {"role": "user"}),
]


@pytest.mark.parametrize("name, value", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_trace_is_refused(name, value):
    with pytest.raises(MarsError):
        Trace.from_json(trace(run()).to_json() | {name: value})


EVENT_DAMAGE: list[tuple[str, Any]] = [
    ("text", None),
    ("threshold", "0.9"),
    ("seconds", float("nan")),
    ("metric", "luck"),
    ("finish_reason", "bored"),
    ("finish_reason", ["eos"]),
    ("committed", 7),
    ("committed", [None]),
    ("committed", {}),
    ("candidates", ""),
    ("committed", [[["id", 1]]]),
    ("prefill", "no"),
    ("unknown", 1),
    ("seconds", 10**400),
    ("seconds", 10**5000),
    ("seconds", -1.0),
    ("seconds", True),
    ("elapsed", float("inf")),
    ("index", -1),
    ("index", False),
    ("index", 10**5000),
    ("block_size", -4),
    ("text", nested(100_000)),
    ("metric", nested(100_000)),
    ("text", "a" * 20_001),
    ("text", "\ud83d"),
    ("error", "a" * 2001),
    ("threshold", -0.1),
    ("committed", [run()[3].to_json()["committed"][0]] * 1025),
]


@pytest.mark.parametrize("name, value", EVENT_DAMAGE, ids=range(len(EVENT_DAMAGE)))
def test_an_event_that_is_not_what_it_claims_is_refused(name, value):
    with pytest.raises(MarsError):
        StepEvent.from_json(run()[3].to_json() | {name: value})


@pytest.mark.parametrize("name", [name for name in TRACE_FIELDS if name not in ("text", "statistics")])
def test_a_trace_without_one_of_its_fields_is_refused(name):
    data = trace(run()).to_json()
    del data[name]
    with pytest.raises(MarsError, match="not a MARS trace" if name == "format" else name):
        Trace.from_json(data)


def test_an_older_trace_is_to_be_recorded_again_and_a_newer_one_needs_a_newer_program():
    for version, advice in [(1, "Record the run again"), (3, "Update this program")]:
        with pytest.raises(MarsError, match=f"version {version}.* reads version 2.*{advice}"):
            Trace.from_json(trace([]).to_json() | {"version": version})


def test_a_token_that_is_not_what_it_claims_is_refused():
    for name, value in [
        ("label", 5),
        ("decided", "guessed"),
        ("alternatives", [{"id": 1}]),
        ("alternatives", {}),
        ("alternatives", None),
        ("alternatives", [{"id": 1, "label": "", "probability": 0.5}] * 33),
        ("margin", None),
        ("id", -1),
        ("id", True),
        ("probability", -0.5),
        ("probability", 1.1),
        ("label", "a" * 1001),
        ("alternatives", [{"id": 1, "label": "", "probability": -0.5}]),
    ]:
        data = run()[3].to_json()
        data["committed"] = [data["committed"][0] | {name: value}]
        with pytest.raises(MarsError):
            StepEvent.from_json(data)


def test_the_figure_that_the_threshold_is_compared_with_goes_by_the_metric():
    assert [choice().confidence(m) for m in ("probability", "margin", "entropy")] == [0.5, 0.25, 1.0]  # type: ignore[arg-type]
