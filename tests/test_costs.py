"""What forwards cost: measured once, noted down, read between and beyond what was measured."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mars_core import DecodeSettings, Engine, Request, costs
from mars_core.costs import CONTEXTS, LENGTHS, ForwardCosts, known_costs, measure_costs
from mars_core.reference import reference_generate
from tests.scripted import always, scripted_loaded
from tests.tiny import tiny_loaded

KNOWN = ForwardCosts((1, 4), (32, 64), ((1.0, 2.0), (1.5, 3.0)))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARS_CACHE_DIR", str(tmp_path))
    return tmp_path / "costs"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each call that would have measured."""
    calls: list[Any] = []

    def measure(loaded: Any) -> ForwardCosts:
        calls.append(loaded)
        return KNOWN

    monkeypatch.setattr(costs, "measure_costs", measure)
    return calls


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Forwards that are not run; their (context, length) pairs. What each takes is 1 + length/10 s."""
    asked: list[tuple[int, int]] = []

    def seconds(forward: Any, token: int, context: int, length: int) -> float:
        asked.append((context, length))
        return 1 + length / 10

    monkeypatch.setattr(costs, "_seconds", seconds)
    return asked


@st.composite
def tables(draw: st.DrawFn) -> ForwardCosts:
    """Any table as it is measured: places ascend, costs never fall."""
    ascending = st.sets(st.integers(1, 500), min_size=1, max_size=6).map(sorted).map(tuple)
    lengths, contexts = draw(ascending), draw(ascending)
    times = st.lists(st.floats(1e-4, 10), min_size=len(lengths), max_size=len(lengths))
    rows = draw(st.lists(times, min_size=len(contexts), max_size=len(contexts)))
    return ForwardCosts(lengths, contexts, costs._rising(rows))


@given(tables())
def test_at_a_measured_place_it_is_what_was_measured(table):
    for context, row in zip(table.contexts, table.seconds, strict=True):
        for length, seconds in zip(table.lengths, row, strict=True):
            assert table.of(length, context) == pytest.approx(seconds)


@given(tables(), st.floats(0, 5000), st.floats(0, 100), st.integers(0, 20_000), st.integers(0, 2000))
def test_no_forward_costs_less_than_a_shorter_one_or_one_with_less_cached(
    table, more, step, context, further
):
    length = table.lengths[0] + more
    here = table.of(length, context)
    assert 0 < here <= table.of(length + step, context) * (1 + 1e-6)
    if length <= table.lengths[-1]:  # beyond, two contexts' lines may cross
        assert here <= table.of(length, context + further) * (1 + 1e-6)


@given(tables(), st.floats(1, 500), st.integers(0, 1000))
def test_a_line_is_the_same_figures(table, length, context):
    assert table.line(context)(length) == table.of(length, context)


def test_between_and_beyond_it_goes_on_straight():
    assert KNOWN.of(2.5, 32) == pytest.approx(1.5)
    assert KNOWN.of(7, 32) == pytest.approx(3)
    assert KNOWN.of(1, 48) == pytest.approx(1.25)
    assert KNOWN.of(1, 96) == pytest.approx(2)
    assert KNOWN.of(1, 0) == KNOWN.of(1, 32)


def test_for_people_it_is_milliseconds():
    assert str(KNOWN) == "1: 1000.0 ms, 4: 2000.0 ms"


# ---- measuring ----


def test_measuring_leaves_model_and_engine_as_they_were():
    loaded = tiny_loaded(max_position_embeddings=1024)
    table = measure_costs(loaded)
    assert (table.lengths, table.contexts) == (LENGTHS, CONTEXTS)
    assert costs._sound(table)
    how = DecodeSettings(threshold=1, verify=True, max_new_tokens=12)
    engine = Engine(loaded)
    got = [choice.id for event in engine.stream(Request([70, 71], how)) for choice in event.committed]
    plain = reference_generate(loaded, [70, 71], DecodeSettings(mode="ar", max_new_tokens=12))
    assert engine.measured is not None and got == sum(plain, [])


def test_noise_never_makes_a_longer_window_or_a_longer_context_cheaper():
    noisy = [[3.0, 2.0, 4.0], [2.5, 3.5, 3.0]]
    assert costs._rising(noisy) == ((3.0, 3.0, 4.0), (3.0, 3.5, 4.0))


@pytest.mark.parametrize(
    "context_length, contexts, longest",
    [(1, (1,), 1), (2, (1,), 1), (3, (1,), 2), (20, (1,), 16), (96, (32,), 64), (831, (32,), 64)],
)
def test_a_short_context_is_measured_as_far_as_it_reaches(clock, context_length, contexts, longest):
    table = measure_costs(scripted_loaded(always(), context_length=context_length))
    assert table.contexts == contexts and table.lengths[-1] == longest
    assert table.of(40, 500) > 0


def test_it_counts_the_quickest_of_five(clock, monkeypatch):
    table = measure_costs(scripted_loaded(always()))
    assert len(clock) == 1 + 5 * len(LENGTHS) * len(CONTEXTS)
    assert table.of(1) == pytest.approx(1.1) and table.of(64) == pytest.approx(7.4)
    times = iter([0.0, *[3.0] * 14, *[2.0] * 14, *[5.0] * 100])
    monkeypatch.setattr(costs, "_seconds", lambda *arguments: next(times))
    assert set(sum(measure_costs(scripted_loaded(always())).seconds, ())) == {2.0}


def test_a_slow_device_is_asked_for_little(clock, monkeypatch):
    now = 0.0

    def tick() -> float:
        nonlocal now
        now += 2.0  # for every length measured
        return now

    monkeypatch.setattr(costs.time, "perf_counter", tick)
    table = measure_costs(scripted_loaded(always()))
    assert table.lengths == LENGTHS[: len(table.lengths)] and 2 <= len(table.lengths) < len(LENGTHS)
    assert len(clock) == 1 + len(table.lengths) * len(CONTEXTS)
    assert table.of(64) == pytest.approx(7.4)  # estimated from the shorter ones


def test_where_memory_is_short_it_goes_as_far_as_that_reaches(monkeypatch):
    def seconds(forward: Any, token: int, context: int, length: int) -> float:
        if length * context > 16 * CONTEXTS[-1]:
            raise torch.OutOfMemoryError
        return 1 + length / 10

    monkeypatch.setattr(costs, "_seconds", seconds)
    table = measure_costs(scripted_loaded(always()))
    assert table.lengths == (1, 2, 4, 8, 16) and table.of(64) == pytest.approx(7.4)
    monkeypatch.setattr(costs, "CONTEXTS", (1 << 20,))
    with pytest.raises(torch.OutOfMemoryError):
        measure_costs(scripted_loaded(always(), context_length=1 << 30))


def test_a_device_so_slow_that_two_lengths_take_too_long_has_those(clock, monkeypatch):
    monkeypatch.setattr(costs, "_MOST_SECONDS", -1.0)
    assert measure_costs(scripted_loaded(always())).lengths == LENGTHS[:2]


def test_a_token_that_is_never_committed_is_not_fed():
    loaded = scripted_loaded(always(), suppressed_token_ids=(0, 1, 3), context_length=8)
    measure_costs(loaded)
    assert {token for forward in loaded.model.fed for row in forward for _, token in row} == {2}


# ---- noted down ----


def test_it_is_measured_once_and_noted_down(directory, measured):
    loaded = tiny_loaded()
    assert known_costs(loaded) == KNOWN and known_costs(tiny_loaded()) == KNOWN
    assert len(measured) == 1 and len(list(directory.iterdir())) == 1


def test_what_was_measured_on_a_machine_too_busy_for_it_is_not_noted_down(directory, measured, monkeypatch):
    monkeypatch.setattr(costs, "_MOST_SECONDS", -1.0)
    assert known_costs(tiny_loaded()) == KNOWN and known_costs(tiny_loaded()) == KNOWN
    assert len(measured) == 2 and not directory.exists()


GOOD = {"format": 1, **dataclasses.asdict(KNOWN)}
DAMAGED = [
    "",
    "null",
    "[]",
    '{"format": 1',
    "\udcff",
    "[" * 100_000,
    json.dumps(GOOD | {"format": 2}),
    json.dumps({"format": 1}),
    json.dumps(GOOD | {"lengths": []}),
    json.dumps(GOOD | {"contexts": [], "seconds": []}),
    json.dumps(GOOD | {"contexts": [32]}),
    json.dumps(GOOD | {"lengths": [4, 1]}),
    json.dumps(GOOD | {"lengths": [4, 4]}),
    json.dumps(GOOD | {"lengths": [0, 4]}),
    json.dumps(GOOD | {"lengths": [1, float("inf")]}),
    json.dumps(GOOD | {"lengths": 7}),
    json.dumps(GOOD | {"contexts": [64, 32]}),
    json.dumps(GOOD | {"seconds": [[1.0, 2.0], [1.5]]}),
    json.dumps(GOOD | {"seconds": [[1.0, 2.0], [1.5, float("nan")]]}),
    json.dumps(GOOD | {"seconds": [[1.0, 2.0], [1.5, 0.0]]}),
    json.dumps(GOOD | {"seconds": [[1.0, 2.0], [-1.5, 3.0]]}),
    json.dumps(GOOD | {"seconds": [[2.0, 1.0], [2.5, 3.0]]}),
    json.dumps(GOOD | {"seconds": [[1.0, 2.0], [0.5, 3.0]]}),
    json.dumps(GOOD | {"seconds": "ab"}),
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_file_that_is_not_one_of_ours_is_measured_anew_with_a_warning(directory, measured, caplog, content):
    known_costs(tiny_loaded())
    (file,) = directory.iterdir()
    file.write_text(content, "utf-8", errors="surrogateescape")
    assert known_costs(tiny_loaded()) == KNOWN and len(measured) == 2
    assert "measured anew" in caplog.text
    assert known_costs(tiny_loaded()) == KNOWN and len(measured) == 2  # noted again


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path, monkeypatch, measured, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert known_costs(tiny_loaded()) == KNOWN
    assert "cannot be noted" in caplog.text


def test_a_home_that_nobody_knows_is_no_reason_to_fail(monkeypatch, measured, caplog):
    monkeypatch.setenv("MARS_CACHE_DIR", "~nobody-of-this-name/cache")
    assert known_costs(tiny_loaded()) == KNOWN
    assert "cannot be noted" in caplog.text


def test_a_full_disk_leaves_nothing_behind(directory, measured, caplog, monkeypatch):
    def full(self: Path, text: str, encoding: str) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert known_costs(tiny_loaded()) == KNOWN
    assert list(directory.iterdir()) == [] and "No space left" in caplog.text


def test_what_was_measured_is_said(directory, measured, caplog):
    caplog.set_level(logging.INFO, "mars_core")
    known_costs(tiny_loaded())
    assert "1: 1000.0 ms" in caplog.text


def test_whatever_decides_the_cost_has_its_own_file(directory, measured, monkeypatch):
    loaded = tiny_loaded()
    others = [
        loaded,
        dataclasses.replace(loaded, dtype=torch.bfloat16),
        dataclasses.replace(loaded, origins=loaded.origins | {"weights_layout": "packed"}),
        dataclasses.replace(loaded, origins=loaded.origins | {"attention": "eager"}),
        tiny_loaded(layers=3),
        tiny_loaded(vocab=280),
    ]
    for other in others:
        known_costs(other)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    known_costs(loaded)
    monkeypatch.setattr(torch, "__version__", "99.0")
    known_costs(loaded)
    assert len(measured) == len(list(directory.iterdir())) == len(others) + 2


def test_where_the_models_files_lie_decides_nothing(directory, measured):
    here, there = tiny_loaded(), tiny_loaded()
    here.model.config._name_or_path, there.model.config._name_or_path = "/here", "/there"
    known_costs(here)
    known_costs(there)
    assert len(measured) == 1
