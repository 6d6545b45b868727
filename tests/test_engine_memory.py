"""The engine within a bound of memory: who is let in, who waits, what is given back, what happens without."""

from __future__ import annotations

import functools
import gc
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars_core import acceptance
from mars_core.cache import GROWTH, CursorLayer, zeros
from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.events import StepEvent
from mars_core.memory import CacheBudget, bytes_per_slot
from mars_core.planner import NOMINAL_COSTS
from mars_core.prefix import _Kept
from mars_core.row import Request, Row
from mars_core.settings import DecodeSettings, LiveSettings
from mars_core.text import Vocabulary
from tests.scripted import always, scripted_loaded
from tests.test_engine import MODELS, PROMPT, Boom, flat, groups, interleaved, model, text_of
from tests.tiny import tiny_loaded

AR = DecodeSettings(mode="ar", ignore_eos=True)
FULL = DecodeSettings(threshold=1.0, verify=True, layout="full", ignore_eos=True)


def engine_of(loaded: Any = None, **options: Any) -> Engine:
    return Engine(loaded or model(), costs=lambda: NOMINAL_COSTS, **options)


def request(num_prompt: int, budget: int, how: DecodeSettings = AR, first: int = 0, **rest: Any) -> Request:
    prompt = [(7 * i + first) % 250 for i in range(num_prompt)]
    return Request(prompt, replace(how, max_new_tokens=budget), **rest)


def most_slots(asked: Request) -> int:
    return Row(asked, model(), Vocabulary(model().tokenizer)).most_slots


def room_for(num_rows: int, asked: Request) -> int:
    """Bytes that so many of these take."""
    return CacheBudget(model(), 0).bytes([most_slots(asked)] * num_rows)


def cache_bytes(engine: Engine) -> int:
    layers = [layer for layer in engine.cache.layers if isinstance(layer, CursorLayer)]
    return sum(store.nbytes for layer in layers for store in (layer.keys, layer.values))


def outcome(events: Sequence[StepEvent]) -> tuple[list[list[int]], str]:
    return groups(events), text_of(events)


@functools.cache
def _solo(num_prompt: int, budget: int, how: DecodeSettings, first: int = 0) -> tuple[list[list[int]], str]:
    engine = engine_of(prefix_bytes=0)
    return outcome(list(engine.stream(request(num_prompt, budget, how, first))))


# --- what a slot takes ---


@pytest.mark.parametrize("name", MODELS)
def test_the_config_tells_what_the_cache_will_take(name):
    engine = engine_of(model(name))
    list(engine.stream(request(5, 2)))
    assert bytes_per_slot(model(name)) == engine.cache.bytes_per_slot > 0
    assert cache_bytes(engine) == CacheBudget(model(name), 0).bytes([5])


def test_a_head_size_that_the_config_leaves_open_follows_from_the_width():
    config = SimpleNamespace(num_hidden_layers=3, num_attention_heads=4, hidden_size=32)
    config.get_text_config = lambda: config
    loaded = SimpleNamespace(model=SimpleNamespace(config=config), dtype=torch.bfloat16)
    assert bytes_per_slot(loaded) == 2 * 3 * 4 * 8 * 2  # type: ignore[arg-type]


def test_a_model_that_does_not_tell_its_sizes_is_not_bounded_and_works():
    loaded = scripted_loaded(always())
    assert bytes_per_slot(loaded) is None
    engine = engine_of(loaded, memory_bytes=0)
    assert len(flat(engine.stream(request(20, 9)))) == 9


# --- too much for ever ---


def test_a_request_that_can_never_fit_is_refused_at_once_in_plain_words():
    loaded = model()
    engine = engine_of(loaded, memory_bytes=room_for(1, request(100, 100)))
    with pytest.raises(MarsError, match="400 prompt tokens and max_new_tokens 30.*Shorten the prompt"):
        engine.stream(request(400, 30))
    with pytest.raises(MarsError, match="ask for fewer tokens"):
        engine.stream(request(5, 400))
    assert engine.rows == [] and not engine.waiting
    assert outcome(list(engine.stream(request(100, 100)))) == _solo(100, 100, AR)


@pytest.mark.parametrize("memory_bytes", [0, 1, -5])
def test_without_any_memory_every_request_is_refused(memory_bytes):
    with pytest.raises(MarsError, match="Shorten the prompt"):
        engine_of(memory_bytes=memory_bytes).stream(request(1, 1))


def test_exactly_enough_is_enough_and_a_byte_less_is_not():
    asked = request(200, 100)
    limit = room_for(1, asked)
    assert len(flat(engine_of(memory_bytes=limit).stream(asked))) == 100
    with pytest.raises(MarsError):
        engine_of(memory_bytes=limit - 1).stream(asked)


@pytest.mark.parametrize("max_rows", [0, -1])
def test_an_engine_for_no_rows_is_refused(max_rows):
    with pytest.raises(MarsError, match="max_rows is"):
        engine_of(max_rows=max_rows)


# --- waiting ---


@pytest.mark.parametrize("bound", [{"max_rows": 2}, {"memory_bytes": room_for(2, request(30, 100))}])
def test_requests_run_when_there_is_room_in_the_order_they_came(bound):
    engine, budgets = engine_of(**bound), [40, 10, 25, 5, 100, 3]
    admitted: list[Row] = []
    for i, budget in enumerate(budgets):
        engine.waiting.append(Row(request(30 + i, budget, first=i), model(), engine.vocabulary))
    arrived = [*engine.waiting]
    while engine.rows or engine.waiting:
        engine.step()
        assert len(engine.rows) <= 2
        admitted += [row for row in engine.rows if row not in admitted]
    assert [arrived.index(row) for row in admitted] == list(range(6))
    for i, row in enumerate(arrived):
        told = [row.events.get_nowait() for _ in range(row.events.qsize())]
        assert told.pop() is None
        assert outcome([event for event in told if event]) == _solo(30 + i, budgets[i], AR, i)


def test_a_small_request_does_not_overtake_a_large_one_for_ever():
    engine = engine_of(memory_bytes=room_for(2, request(20, 60)))
    running = engine.stream(request(20, 60))
    next(running)
    large = Row(request(300, 60), model(), engine.vocabulary)
    small = Row(request(20, 20), model(), engine.vocabulary)
    engine.waiting.extend([large, small])
    next(running)
    assert list(engine.waiting) == [large, small]
    list(running)
    engine.step()
    assert engine.rows[0] is large


def test_whoever_waits_leaves_running_rows_as_they_are():
    bound = room_for(2, request(40, 120))
    asked = [(40, 120, FULL, i) for i in range(6)]
    engine = engine_of(memory_bytes=bound)
    together = interleaved(engine, [request(n, budget, how, i) for n, budget, how, i in asked])
    assert [outcome(events) for events in together] == [_solo(*each) for each in asked]
    assert max(event.num_rows for events in together for event in events) == 2


def test_more_than_may_wait_are_refused_and_come_in_later():
    engine = engine_of(scripted_loaded(always()), max_rows=1, max_waiting=2)
    running = engine.stream(request(5, 50))
    next(running)
    for _ in range(2):
        engine.waiting.append(Row(request(5, 3), engine.loaded, engine.vocabulary))
    with pytest.raises(MarsError, match="2 requests are waiting already"):
        engine.stream(request(5, 5))
    assert len(flat(running)) == 49
    while engine.waiting:
        engine.step()
    assert len(flat(engine.stream(request(5, 5)))) == 5


def test_iterators_made_before_the_queue_was_full_do_not_overfill_it():
    engine = engine_of(scripted_loaded(always()), max_rows=1, max_waiting=1)
    made = [engine.stream(request(5, 50)) for _ in range(3)]
    next(made[0])
    engine.waiting.append(Row(request(5, 3), engine.loaded, engine.vocabulary))
    with pytest.raises(MarsError, match="waiting already"):
        next(made[1])
    assert len(engine.waiting) == 1


def test_where_none_may_wait_those_who_need_not_are_served():
    engine = engine_of(scripted_loaded(always()), max_rows=2, max_waiting=0)
    one, two = engine.stream(request(5, 50)), engine.stream(request(5, 50))
    next(one), next(two)
    with pytest.raises(MarsError, match="waiting already"):
        engine.stream(request(5, 5))
    one.close()
    assert len(flat(engine.stream(request(5, 5)))) == 5 and len(flat(two)) == 49


def test_a_waiting_request_that_is_cancelled_is_told_so_at_once():
    engine = engine_of(scripted_loaded(always()), max_rows=1)
    running, live = engine.stream(request(5, 50)), LiveSettings()
    next(running)
    waiting = engine.stream(request(5, 5, live=live))
    live.cancel()
    (event,) = list(waiting)
    assert (event.finish_reason, event.committed) == ("cancelled", ())
    assert len(engine.rows) == 1 and not engine.waiting
    assert len(flat(running)) == 49


def test_a_waiting_request_that_is_closed_leaves_the_queue():
    engine = engine_of(scripted_loaded(always()), max_rows=1)
    running = engine.stream(request(5, 50))
    next(running)
    waiting = engine._events_of(row := Row(request(5, 5), engine.loaded, engine.vocabulary))
    engine._next_event = lambda row: next(iter([SimpleNamespace()]))  # type: ignore[method-assign, assignment, return-value]
    next(waiting)
    del engine._next_event  # type: ignore[method-assign]
    assert list(engine.waiting) == [row]
    waiting.close()
    assert not engine.waiting and len(flat(running)) == 49


# --- the bound holds ---

_SIZES = st.tuples(
    st.sampled_from([3, 40, 230, 260]), st.sampled_from([1, 30, 240]), st.sampled_from([AR, FULL])
)


@settings(max_examples=12)
@given(
    sizes=st.lists(_SIZES, min_size=2, max_size=6),
    order=st.lists(st.integers(0, 6), max_size=60),
    closed=st.sets(st.integers(0, 6), max_size=2),
    room=st.integers(1, 4),
)
def test_the_cache_never_takes_more_than_the_bound(sizes, order, closed, room):
    asked = [request(n, budget, how, i) for i, (n, budget, how) in enumerate(sizes)]
    longest = max(map(most_slots, asked))
    engine = engine_of(_small(), memory_bytes=CacheBudget(_small(), 0).bytes([longest] * room))
    sizes_seen = []
    step = engine.step

    def watched() -> None:
        step()
        sizes_seen.append(cache_bytes(engine))

    engine.step = watched  # type: ignore[method-assign]
    streams = [engine.stream(each) for each in asked]
    for number in order:
        next(streams[number % len(streams)], None)
    for number in closed:
        streams[number % len(streams)].close()
    lengths = [len(flat(stream)) for stream in streams]
    assert max(sizes_seen) <= engine.budget.limit
    assert engine.rows == [] and not engine.waiting and len(lengths) == len(asked)


@functools.cache
def _small() -> Any:
    return tiny_loaded(layers=1, hidden=16, max_position_embeddings=1024)


def test_rows_that_were_many_do_not_make_one_that_is_long_exceed_the_bound():
    short = request(20, 100)
    engine = engine_of(memory_bytes=room_for(16, short))
    streams = [engine.stream(request(20, 100, first=i)) for i in range(16)]
    for stream in streams:
        next(stream)
    for stream in streams[5:]:
        stream.close()
    assert engine.cache.num_rows == 16  # too little to give back
    long = engine.stream(request(300, 100))
    events = [next(long) for _ in range(20)]
    assert cache_bytes(engine) <= engine.budget.limit
    assert outcome([*events, *long]) == _solo(300, 100, AR)
    assert outcome(list(streams[3])) == (_solo(20, 100, AR, 3)[0][1:], _solo(20, 100, AR, 3)[1][1:])


def test_a_row_that_was_long_does_not_make_many_that_are_short_exceed_the_bound():
    long = request(400, 100)
    engine = engine_of(memory_bytes=room_for(1, long))
    list(engine.stream(long))
    assert engine.cache.capacity == 2 * GROWTH
    streams = [engine.stream(request(20, 50)), engine.stream(request(30, 50))]
    both = [[next(stream)] for stream in streams]
    assert engine.cache.num_rows == 2 and cache_bytes(engine) <= engine.budget.limit
    both = [[*events, *stream] for events, stream in zip(both, streams, strict=True)]
    assert [outcome(events) for events in both] == [_solo(20, 50, AR), _solo(30, 50, AR)]


def test_growing_ahead_stops_at_what_the_rows_may_need():
    asked = request(700, 100)  # half as much again as three steps were five
    engine = engine_of(_small(), memory_bytes=CacheBudget(_small(), 0).bytes([most_slots(asked)]))
    for _ in engine.stream(asked):
        assert cache_bytes(engine) <= engine.budget.limit
    assert engine.budget.limit == CacheBudget(_small(), 0).bytes([4 * GROWTH])


def test_growth_is_bounded_when_all_that_was_cached_was_forgotten_too():
    asked = request(700, 100)
    engine = engine_of(_small(), memory_bytes=CacheBudget(_small(), 0).bytes([most_slots(asked)] * 2))
    failing, other = (Row(asked, engine.loaded, engine.vocabulary) for _ in range(2))
    engine.waiting.extend([failing, other])
    real = engine.forward.logits

    def fail(*_: Any) -> Any:
        engine.forward.logits = real  # type: ignore[method-assign]
        raise Boom

    engine.forward.logits = fail  # type: ignore[method-assign]
    engine.step()
    assert isinstance(failing.error, Boom) and engine.rows == [other]
    while not other.ended:
        engine.step()
        assert cache_bytes(engine) <= engine.budget.limit // 2


# --- B turned up in the middle ---


def test_a_larger_block_is_counted_with_where_there_is_room():
    live = LiveSettings(FULL.live_values())
    engine = engine_of(memory_bytes=1 << 30)
    stream = engine.stream(request(5, 60, FULL, live=live))
    next(stream)
    live.update(block_size=12)
    next(stream)
    event = next(stream)
    assert event.block_size == 12 and event.window_length > 60
    assert engine.rows[0].most_slots > most_slots(request(5, 60, FULL))
    assert text_of(list(stream)) in _solo(5, 60, FULL)[1]


def test_without_the_room_a_larger_block_stays_as_it_was_and_the_bound_holds():
    asked = request(150, 60, FULL)
    live = LiveSettings(FULL.live_values())
    engine = engine_of(memory_bytes=room_for(1, asked))
    stream = engine.stream(replace(asked, live=live))
    events = [next(stream)]
    live.update(block_size=30)
    for event in stream:
        events.append(event)
        assert event.block_size == 4 and cache_bytes(engine) <= engine.budget.limit
    assert outcome(events) == _solo(150, 60, FULL)


def test_without_the_room_a_larger_block_still_counts_where_it_takes_none():
    asked = request(150, 60, replace(FULL, verify=False, threshold=0.0))
    live = LiveSettings(asked.settings.live_values())
    engine = engine_of(memory_bytes=room_for(1, asked))
    stream = engine.stream(replace(asked, live=live))
    next(stream)
    live.update(block_size=30)
    assert len(next(stream).committed) == 30
    live.update(layout="linear", verify=True)
    assert next(stream).block_size == 30 and cache_bytes(engine) <= engine.budget.limit


# --- giving back ---


def test_after_a_burst_the_cache_gives_memory_back_and_who_goes_on_is_undisturbed():
    engine = engine_of(prefix_bytes=0)
    streams = [engine.stream(request(200 + i, 90, first=i)) for i in range(16)]
    events = [[next(stream)] for stream in streams]
    for _ in range(60):
        for number, stream in enumerate(streams):
            events[number] += [next(stream)]
    large = cache_bytes(engine)
    for stream in streams[:12]:
        stream.close()
    assert 4 * cache_bytes(engine) <= large and engine.cache.num_rows == 4
    for number in range(12, 16):
        events[number] += streams[number]
        assert outcome(events[number]) == _solo(200 + number, 90, AR, number)
    assert 16 * cache_bytes(engine) <= large


def test_a_cache_that_cannot_shrink_stays_and_hurts_nobody():
    left = [math.inf]

    def allocate(*asked: Any) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("old and new at once")
        return zeros(*asked)

    engine = engine_of(allocate=allocate)
    streams = [engine.stream(request(20, 20, first=i)) for i in range(8)]
    events = [[next(stream)] for stream in streams]
    left[0] = 0
    for stream in streams[1:]:
        stream.close()
    assert engine.cache.num_rows == 8
    events[0] += streams[0]
    assert outcome(events[0]) == _solo(20, 20, AR) and engine.rows == []


def test_a_row_whose_copy_there_is_no_memory_for_leaves_all_the_same(monkeypatch):
    engine = engine_of()
    one, other = engine.stream(request(30, 20)), engine.stream(request(40, 20))
    events = [next(one), next(one)]
    next(other)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no copy")

    monkeypatch.setattr("mars_core.cache.CursorCache.read_row", full)
    other.close()
    assert len(engine.rows) == 1
    events += one
    assert outcome(events) == _solo(30, 20, AR) and engine.rows == []


# --- out of memory ---


def _fail_at(loaded: Any, *numbers: int) -> None:
    """The scripted model runs out of memory before these forwards, counted from now."""
    tries = iter(range(10**6))

    def before(number: int) -> None:
        if next(tries) in numbers:
            raise torch.OutOfMemoryError("CUDA out of memory")

    loaded.model.before = before


def _keep_something(engine: Engine) -> None:
    """A scripted model writes no keys: put a prefix there by hand."""
    engine.prefixes._kept.append(_Kept(tuple(range(200, 230)), [], 1))


def test_without_memory_the_prefixes_go_and_the_second_try_gives_the_same_text():
    loaded = scripted_loaded(always())
    expected = outcome(list(engine_of(loaded).stream(request(20, 30))))
    engine = engine_of(loaded)
    _keep_something(engine)
    _fail_at(loaded, 2)
    assert outcome(list(engine.stream(request(20, 30)))) == expected
    assert not engine.prefixes.clear()


def test_a_second_failure_reaches_the_request():
    loaded = scripted_loaded(always())
    engine = engine_of(loaded)
    _keep_something(engine)
    _fail_at(loaded, 2, 3)
    with pytest.raises(torch.OutOfMemoryError):
        list(engine.stream(request(20, 30)))
    assert len(flat(engine.stream(request(20, 30)))) == 30


def test_with_nothing_to_forget_it_reaches_the_request_as_itself_and_the_memory_is_freed():
    engine = engine_of(prefix_bytes=0)
    forward = engine.loaded.model.forward
    kept: list[weakref.ref[torch.Tensor]] = []

    def fail(*arguments: Any, **options: Any) -> Any:
        kept.extend(weakref.ref(layer.keys) for layer in engine.cache.layers)
        activations = torch.zeros(10)
        kept.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    stream = engine.stream(request(20, 30))
    next(stream)
    try:
        engine.loaded.model.forward = fail
        with pytest.raises(torch.OutOfMemoryError) as caught:
            list(stream)
    finally:
        engine.loaded.model.forward = forward
    assert caught.value is not None  # somebody keeps the error
    assert len(kept) == 3 and [ref() for ref in kept] == [None] * 3
    assert outcome(list(engine.stream(request(20, 30)))) == _solo(20, 30, AR)


@pytest.mark.parametrize(
    "how", [{}, {"verify": True, "layout": "linear"}, {"verify": True, "layout": "full"}]
)
@pytest.mark.parametrize("where", ["forward", "draw"])
def test_a_second_try_draws_what_an_undisturbed_run_draws(monkeypatch, how, where):
    chosen = DecodeSettings(temperature=1.0, seed=5, threshold=0.2, max_new_tokens=25, ignore_eos=True, **how)
    asked = Request(PROMPT, chosen)
    expected = outcome(list(engine_of().stream(asked)))
    engine, count = engine_of(), iter(range(1000))
    list(engine.stream(request(30, 5)))  # something to forget
    place, name = (engine.forward, "logits") if where == "forward" else (acceptance, "_pack")
    real = getattr(place, name)

    def once(*arguments: Any) -> Any:
        if next(count) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*arguments)

    monkeypatch.setattr(place, name, once)
    assert outcome(list(engine.stream(asked))) == expected
    assert next(count) > 5


def test_prefixes_make_way_for_a_cache_that_must_grow():
    """The memory holds so many tensors of a long cache, and not those of the prefixes beside them."""
    engine: Engine

    def allocate(shape: tuple[int, ...], *rest: Any) -> torch.Tensor:
        if shape[2] > GROWTH + 1 and engine.prefixes.num_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(shape, *rest)

    engine = engine_of(allocate=allocate)
    list(engine.stream(request(30, 5, first=3)))
    assert engine.prefixes.num_bytes
    assert outcome(list(engine.stream(request(240, 40)))) == _solo(240, 40, AR)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, RuntimeError])
def test_a_growth_that_fails_ends_the_row_that_needed_it_and_no_other(error):
    def allocate(shape: tuple[int, ...], *rest: Any) -> torch.Tensor:
        if shape[2] > GROWTH + 1:
            raise error("no room")
        return zeros(shape, *rest)

    engine = engine_of(allocate=allocate, prefix_bytes=0)
    asked = [(20, 60, FULL, 0), (200, 100, AR, 1), (30, 60, AR, 2)]
    streams = [engine.stream(request(n, budget, how, i)) for n, budget, how, i in asked]
    events: list[list[StepEvent]] = [[], [], []]
    for number in (0, 1, 2) * 3:
        events[number] += [next(streams[number])]
    with pytest.raises(error, match="no room"):
        for event in streams[1]:
            events[1].append(event)
    assert (
        len(flat(events[1])) > 50 and outcome(events[1])[1] == _solo(*asked[1])[1][: len(text_of(events[1]))]
    )
    for number in (0, 2):
        events[number] += streams[number]
        assert outcome(events[number]) == _solo(*asked[number])


def test_a_row_that_had_no_room_keeps_its_own_error_where_the_forward_fails_too():
    def allocate(shape: tuple[int, ...], *rest: Any) -> torch.Tensor:
        if shape[2] > GROWTH + 1:
            raise MemoryError("no room")
        return zeros(shape, *rest)

    engine = engine_of(allocate=allocate, prefix_bytes=0)
    long, short = engine.stream(request(240, 100)), engine.stream(request(20, 100))
    next(long), next(short)
    real = engine.forward.logits

    def fail_for_one(places: Any, windows: Any) -> Any:
        if len(engine.rows) == 2 and len(windows) == 1:
            raise Boom
        return real(places, windows)

    engine.forward.logits = fail_for_one  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        list(long)
    with pytest.raises(Boom):
        list(short)


def test_an_engine_that_is_let_go_frees_its_cache():
    engine = engine_of()
    list(engine.stream(request(30, 5)))
    keys = weakref.ref(engine.cache.layers[0].keys)
    del engine
    gc.collect()
    assert keys() is None


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("given_up", [False, True])
def test_nan_in_a_prompt_leaves_nothing_behind_in_any_place_it_was(moved, given_up):
    loaded, ill_token = tiny_loaded(tied=False), 251
    expected = outcome(list(engine_of(loaded).stream(request(10, 12))))
    engine = engine_of(loaded, prefill_chunk=8)
    weight = loaded.model.get_input_embeddings().weight
    healthy = weight.data[ill_token].clone()
    weight.data[ill_token] = math.nan
    first = engine.stream(request(3, 40))
    ill = engine.stream(Request([ill_token] * 60, AR))
    if moved:
        next(first)
    for _ in range(5):
        next(ill)  # no prediction yet that would tell
    first.close()
    if given_up:
        ill.close()
    else:
        with pytest.raises(ArithmeticError):
            list(ill)
    weight.data[ill_token] = healthy
    companion = engine.stream(request(60, 60, first=1))
    short = engine.stream(request(10, 12))
    events = []
    if moved:
        next(companion)
    for event in short:  # has a place that the ill one had, and slots behind its own are looked at
        events.append(event)
        next(companion)
    assert outcome(events) == expected
