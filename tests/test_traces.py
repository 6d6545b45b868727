"""Trace files: what is written can be read, what is hostile or damaged is refused in words, and the schema
says what the code does."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mars_core import DecodeSettings, Engine, LiveSettings, MarsError, Request, Trace, traces
from mars_core import trace_checks as check
from mars_core.events import TRACE_FIELDS, TRACE_VERSION, Alternative, Statistics, StepEvent, TokenChoice
from mars_core.planner import NOMINAL_COSTS
from mars_core.traces import load_trace, model_facts, read_trace, record, save_trace, trace_text
from tests.scripted_events import answer
from tests.test_events import DAMAGE, EVENT_DAMAGE
from tests.tiny import tiny_loaded

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((ROOT / "docs" / "trace.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
RECORDED = sorted((ROOT / "assets" / "recorded").glob("*.json"))
MESSAGES = ({"role": "user", "content": "Hello 🤗 <b>"},)
HOW: dict[str, dict[str, Any]] = {
    "ar": {"mode": "ar"},
    "mars": {"threshold": 0.1},
    "verify": {"threshold": 0.3, "verify": True},
    "sampled": {"temperature": 0.9, "seed": 2**62, "top_p": 0.9, "threshold": 0.2},
    "entropy": {"metric": "entropy", "threshold": 2.0, "stop_strings": ("q", "zz"), "num_alternatives": 0},
}


def a_run(**how: Any) -> Trace:
    """A real one, of a tiny model."""
    loaded = tiny_loaded()
    asked = DecodeSettings(max_new_tokens=24, **how)
    ids = list(range(60, 90))
    events = list(Engine(loaded, costs=lambda: NOMINAL_COSTS).stream(Request(ids, asked)))
    return record(loaded, MESSAGES, ids, asked, events)


def valid() -> dict[str, Any]:
    """The data of a small trace."""
    small = Trace(MESSAGES, (1, 2), {"threshold": 0.9}, {"name": "x"}, tuple(answer("a b c")))
    return json.loads(trace_text(small))


def without_rounding(trace: Trace) -> Any:
    """As it is after JSON: tuples are lists."""
    return json.loads(json.dumps(trace.to_json()))


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_a_real_run_fits_the_schema_and_is_read_as_it_was_written(how):
    before = a_run(**how)
    text = trace_text(before)
    VALIDATOR.validate(json.loads(text))
    after = read_trace(text)
    assert (after.text(), after.prompt_ids) == (before.text(), before.prompt_ids)
    assert after.recorded == before.recorded and after.prompt == before.prompt
    assert trace_text(dataclasses.replace(before, events=())) == trace_text(
        dataclasses.replace(after, events=())
    )
    assert [json.loads(trace_text(after))["events"]] == [json.loads(text)["events"]]
    old, new = before.statistics(), after.statistics()
    assert (old.num_tokens, old.num_forwards) == (new.num_tokens, new.num_forwards)
    assert old.decode_s == pytest.approx(new.decode_s, abs=1e-4)
    # the settings can be used again
    used = {name: tuple(v) if isinstance(v, list) else v for name, v in after.settings.items()}
    assert DecodeSettings(**used) == DecodeSettings(max_new_tokens=24, **how)


def test_what_the_chat_saves_unrounded_is_read_too():
    before = a_run(verify=True)
    VALIDATOR.validate(without_rounding(before))
    assert without_rounding(read_trace(json.dumps(before.to_json()))) == without_rounding(before)


def test_a_cancelled_run_and_one_without_events_are_traces():
    live = LiveSettings()
    live.cancel()
    stopped = list(Engine(tiny_loaded()).stream(Request([1, 2], DecodeSettings(), live)))
    for events in (stopped, []):
        text = trace_text(Trace(MESSAGES, (1, 2), {}, {}, tuple(events)))
        VALIDATOR.validate(json.loads(text))
        assert len(read_trace(text).events) == len(events)


def test_the_runs_that_come_with_the_page_are_small_valid_and_what_they_should_be():
    assert len(RECORDED) >= 3
    for path in RECORDED:
        assert path.stat().st_size < 300_000
        VALIDATOR.validate(json.loads(path.read_text("utf-8")))
        trace = load_trace(path)
        assert trace.text() and trace.prompt and trace.events[-1].finish_reason
        assert trace.model["name"] and trace.model["device"] and trace.model["dtype"]


def test_a_file_is_written_and_read_and_what_cannot_be_is_said(tmp_path):
    path = tmp_path / "run.json"
    save_trace(a_run(), path)
    assert load_trace(path).prompt_ids == tuple(range(60, 90))
    with pytest.raises(MarsError, match="cannot be read"):
        load_trace(tmp_path / "none.json")
    with pytest.raises(MarsError, match="cannot be written"):
        save_trace(a_run(), tmp_path / "none" / "run.json")


def test_the_models_facts_are_what_the_page_shows():
    facts = model_facts(tiny_loaded())
    assert (facts["name"], facts["device"], facts["dtype"]) == ("tiny", "cpu", "float32")
    assert check.facts("model", facts) == facts


# ---- schema and code say the same ----


@pytest.mark.parametrize("cls", [StepEvent, TokenChoice, Alternative, Statistics])
def test_the_schema_knows_every_field_of_the_code_and_no_other(cls):
    described = SCHEMA["$defs"][cls.__name__]
    fields = dataclasses.fields(cls)
    assert list(described["properties"]) == [field.name for field in fields]
    # a token's alternatives may be none, but are always there
    needed = [f.name for f in fields if f.default is dataclasses.MISSING or f.name == "alternatives"]
    assert described["required"] == needed
    assert described["additionalProperties"] is False


def test_the_schema_names_the_same_words_and_limits_as_the_code():
    assert tuple(SCHEMA["properties"]) == TRACE_FIELDS
    assert SCHEMA["properties"]["version"]["const"] == TRACE_VERSION
    assert SCHEMA["properties"]["recorded"]["pattern"] == check.TIME_PATTERN
    definitions = SCHEMA["$defs"]
    kinds = get_type_hints(TokenChoice) | get_type_hints(StepEvent)
    assert definitions["TokenChoice"]["properties"]["decided"]["enum"] == list(get_args(kinds["decided"]))
    assert definitions["StepEvent"]["properties"]["metric"]["enum"] == list(get_args(kinds["metric"]))
    reasons, none = get_args(kinds["finish_reason"])
    assert definitions["finish_reason"]["enum"] == [*get_args(reasons), None] and none is type(None)
    assert f"at most {traces.MAX_BYTES >> 20} MB" in SCHEMA["description"]
    text = json.dumps(SCHEMA)
    for name, longest in check.MAX_CHARACTERS.items():
        assert f'"maxLength": {longest}' in text, name
    for limit in (*check.MAX_ITEMS.values(), check.MAX_EVENTS, check.MAX_MESSAGES, check.MAX_PROMPT_IDS):
        assert f'"maxItems": {limit}' in text
    assert definitions["facts"]["maxProperties"] == check.MAX_FACTS


# What a schema cannot say, or says of JSON and not of numbers that no JSON reader keeps.
BEYOND_A_SCHEMA = {"recorded", "text", "events", "surrogate"}


@pytest.mark.parametrize("name, value", DAMAGE, ids=range(len(DAMAGE)))
def test_what_the_reader_refuses_the_schema_refuses_where_it_can(name, value):
    data = valid() | {name: value}
    try:
        data = json.loads(json.dumps(data, allow_nan=False))
    except (ValueError, RecursionError):
        return  # no JSON
    ill = not VALIDATOR.is_valid(data)
    surrogate = "\\ud" in json.dumps(value)
    assert ill or name in BEYOND_A_SCHEMA or surrogate


@pytest.mark.parametrize("name, value", EVENT_DAMAGE, ids=range(len(EVENT_DAMAGE)))
def test_an_event_that_the_reader_refuses_the_schema_refuses(name, value):
    data = valid()
    data["events"][-1][name] = value
    try:
        data = json.loads(json.dumps(data, allow_nan=False))
    except (ValueError, RecursionError):
        return
    assert not VALIDATOR.is_valid(data) or "\\ud" in json.dumps(value)


# ---- hostile and damaged files ----

GOOD = trace_text(Trace(MESSAGES, (1, 2), {}, {}, tuple(answer("a b"))))
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no valid JSON"),
    "not JSON": ("<html>", "no valid JSON"),
    "cut": (GOOD[: len(GOOD) // 2], "no valid JSON"),
    "two documents": (GOOD + GOOD, "no valid JSON"),
    "another JSON": ('{"a": 1}', "not a MARS trace"),
    "a list": ("[]", "not a MARS trace"),
    "null": ("null", "not a MARS trace"),
    "a picture": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "no UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "no UTF-8"),
    "too large": (" " * (traces.MAX_BYTES + 1), "larger than 16 MB"),
    "too large in bytes": ('"' + "é" * (traces.MAX_BYTES // 2) + '"', "larger than 16 MB"),
    "too large as bytes": (b" " * (traces.MAX_BYTES + 1), "larger than 16 MB"),
    "too many parts": ("[" + "[]," * traces.MAX_PARTS + "[]]", "parts"),
    "nested lists": ("[" * 200_000 + "]" * 200_000, "nested|JSON"),
    "nested objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested|JSON"),
    "unclosed nest": ("[" * 400_000, "nested|JSON"),
    "NaN": (GOOD.replace('"threshold":0.9', '"threshold":NaN'), "NaN is not a number"),
    "infinity": (GOOD.replace('"threshold":0.9', '"threshold":-Infinity'), "Infinity is not a number"),
    "a float too large": (GOOD.replace('"threshold":0.9', '"threshold":1e999'), "threshold is inf"),
    "a number of many digits": (GOOD.replace('"index":0', '"index":' + "9" * 100_000), "100000 digits"),
    "a number a little too large": (GOOD.replace('"index":0', '"index":9007199254740993'), "index is 900"),
    "a field twice": (GOOD.replace('"index":0', '"index":0,"index":0'), "twice"),
    "the version twice": (GOOD.replace('"version":2', '"version":1,"version":2'), "twice"),
    "half a character": (GOOD.replace('"label":"a"', '"label":"\\ud83d"'), "label is"),
    "a prototype": (GOOD.replace('"format":', '"__proto__":{"a":1},"format":'), "__proto__"),
    "too many events": (
        json.dumps(valid() | {"events": [{}] * (check.MAX_EVENTS + 1)}), "20001 items"
    ),
    "too many prompt ids": (
        json.dumps(valid() | {"prompt_ids": [1] * (check.MAX_PROMPT_IDS + 1)}), "262145 items"
    ),
    "an older version": (GOOD.replace('"version":2', '"version":1'), "version 1.*Record the run again"),
    "a newer version": (GOOD.replace('"version":2', '"version":3'), "version 3.*Update"),
}  # fmt: skip


@pytest.mark.parametrize("source, words", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_or_damaged_file_is_refused_with_a_sentence(source, words):
    with pytest.raises(MarsError, match=words) as refused:
        read_trace(source)
    assert len(str(refused.value)) < 300


def test_a_byte_order_mark_is_no_damage():
    assert read_trace("\ufeff" + GOOD) == read_trace(GOOD.encode("utf-8-sig")) == read_trace(GOOD)


def test_a_size_is_refused_before_anything_is_parsed(monkeypatch):
    monkeypatch.setattr(traces.json, "loads", lambda *_, **__: pytest.fail("parsed"))
    for source in (" " * (traces.MAX_BYTES + 1), "[" * (traces.MAX_PARTS + 1)):
        with pytest.raises(MarsError):
            read_trace(source)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.text() | st.binary())
def test_any_file_at_all_is_a_trace_or_a_word(source):
    with pytest.raises(MarsError):
        read_trace(source)


@settings(max_examples=50)
@given(st.fixed_dictionaries({name: JSON for name in TRACE_FIELDS if name not in ("format", "version")}))
def test_any_json_that_claims_to_be_a_trace_is_one_or_a_word(fields):
    try:
        read_trace(json.dumps({"format": "mars-trace", "version": 2, **fields}))
    except MarsError:
        pass


def places(data: Any, path: tuple = ()) -> list[tuple]:
    """Paths to every part of JSON data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] * bool(path) + [p for key, value in inner for p in places(value, (*path, key))]


VALID = valid()
PLACES = places(VALID)


@settings(max_examples=150)
@given(st.sampled_from(PLACES), JSON)
def test_a_trace_with_any_one_part_replaced_is_refused_or_still_fits_the_schema(path, value):
    data = copy.deepcopy(VALID)
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    try:
        trace = read_trace(json.dumps(data))
    except MarsError:
        return
    VALIDATOR.validate(json.loads(trace_text(trace)))
    VALIDATOR.validate(json.loads(json.dumps(data)))


SHARES = st.floats(0, 1).map(lambda value: round(value, traces.DECIMALS))
TIMES = st.floats(0, 1e4).map(lambda value: round(value, traces.DECIMALS))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, 2**40)
CHOICES = st.builds(
    TokenChoice,
    id=COUNTS,
    text=TEXTS,
    label=TEXTS,
    special=st.booleans(),
    decided=st.sampled_from(get_args(get_type_hints(TokenChoice)["decided"])),
    sampled=st.booleans(),
    probability=SHARES,
    margin=SHARES,
    entropy=TIMES,
    alternatives=st.lists(st.builds(Alternative, COUNTS, TEXTS, SHARES), max_size=3).map(tuple),
)
SOME_CHOICES = st.lists(CHOICES, max_size=3).map(tuple)


@settings(max_examples=50)
@given(SOME_CHOICES, SOME_CHOICES, TEXTS, TIMES, st.booleans(), COUNTS)
def test_any_run_survives_its_file(committed, candidates, text, seconds, flag, count):
    event = StepEvent(
        0, flag, committed, candidates, text, seconds, "margin", count, flag, count, count, seconds, seconds,
        finish_reason="length", num_drafts=count, verify=flag,
    )  # fmt: skip
    before = Trace(
        ({"role": "user", "content": text},), (count,), {"a": text, "b": [count, text]}, {}, (event,)
    )
    assert read_trace(trace_text(before)) == before
    VALIDATOR.validate(json.loads(trace_text(before)))
