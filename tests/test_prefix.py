"""What is cached of ended rows serves prompts that begin alike: less is fed, and the text is the same."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars_core.cache import CursorCache, zeros
from mars_core.engine import Engine
from mars_core.events import StepEvent
from mars_core.planner import NOMINAL_COSTS
from mars_core.prefix import MIN_TOKENS, PrefixStore
from mars_core.row import Request
from mars_core.settings import DecodeSettings, LiveSettings
from tests.scripted import scripted_loaded, sometimes
from tests.test_engine import Boom, flat, interleaved, model, text_of

AR = DecodeSettings(mode="ar", max_new_tokens=12, ignore_eos=True)
WAYS = {
    "ar": AR,
    "mars": replace(AR, mode="mars", threshold=0.1),
    "verify": replace(AR, mode="mars", threshold=1.0, verify=True, layout="full"),
    "verify, τ": replace(AR, mode="mars", threshold=0.1, verify=True),
    "lookup": replace(AR, mode="mars", threshold=1.0, verify=True, proposer="both"),
}


def engine_of(loaded: Any = None, **options: Any) -> Engine:
    return Engine(loaded or model(), costs=lambda: NOMINAL_COSTS, **options)


def tokens(count: int, first: int = 0) -> list[int]:
    return [(7 * i + first) % 250 for i in range(count)]


def answer(engine: Engine, prompt: Sequence[int], how: DecodeSettings = AR) -> list[StepEvent]:
    return list(engine.stream(Request(prompt, how)))


def outcome(events: Sequence[StepEvent]) -> tuple[list[int], str]:
    """How the tokens came in forwards may differ: the layout `auto` goes by how many rows share them."""
    return flat(events), text_of(events)


def fresh(prompt: Sequence[int], how: DecodeSettings = AR, name: str = "llama") -> tuple[list[int], str]:
    """What an engine says that has seen nothing else."""
    return _fresh(tuple(prompt), how, name)


@functools.cache
def _fresh(prompt: tuple[int, ...], how: DecodeSettings, name: str) -> tuple[list[int], str]:
    return outcome(answer(engine_of(model(name), prefix_bytes=0), prompt, how))


def reused(events: Sequence[StepEvent]) -> int:
    return events[0].num_cached


# --- the next turn ---


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral sliding", "gemma2", "gemma3"])
def test_the_next_turn_feeds_only_what_is_new_and_says_the_same(name, way):
    engine, prompt, how = engine_of(model(name), prefill_chunk=16), tokens(30), WAYS[way]
    before = 1
    for turn in range(3):
        events = answer(engine, prompt, how)
        assert outcome(events) == fresh(prompt, how, name)
        # the last answer's last tokens were never fed: at most a block and the one behind it
        assert before - 5 <= reused(events) <= before - 1
        fed = sum(event.window_length for event in events if event.prefill)
        assert fed <= len(prompt) - reused(events) + 13  # masks and what was looked up
        before = len(prompt) + len(flat(events))
        prompt = [*prompt, *flat(events), *tokens(7, first=turn)]


def test_another_mode_continues_what_one_has_begun():
    engine, prompt = engine_of(), tokens(30)
    for turn, (one, other) in enumerate(itertools.permutations(WAYS.values(), 2)):
        begin = [turn, *prompt]
        whole = [*begin, *flat(answer(engine, begin, one)), 5, 6]
        events = answer(engine, whole, other)
        assert reused(events) > len(begin) and outcome(events) == fresh(whole, other)


def test_only_the_new_positions_are_fed():
    loaded = scripted_loaded(sometimes())
    engine = engine_of(loaded)
    store_of(engine, tokens(40), loaded)
    answer(engine, [*tokens(40), 1, 2, 3], replace(AR, max_new_tokens=1))
    ((fed,),) = loaded.model.fed
    assert fed == [(40, 1), (41, 2), (42, 3)]


def store_of(engine: Engine, prefix: list[int], loaded: Any) -> None:
    """A scripted model writes no keys, so here is a cache to read and to write."""
    from tests.test_cache import write

    for cache in (engine.cache, CursorCache()):
        write(cache, [0], [list(range(len(prefix)))], 1.0)
    engine.prefixes.keep(prefix, cache, 0)


def test_an_identical_prompt_feeds_its_last_token_alone():
    engine = engine_of()
    first, second = answer(engine, tokens(30)), answer(engine, tokens(30))
    assert (reused(first), reused(second)) == (0, 29)
    assert second[0].prefill and second[0].window_length == 1 and second[0].committed
    assert outcome(first) == outcome(second) == fresh(tokens(30))


@pytest.mark.parametrize("length", [MIN_TOKENS + 1, 20, 29])
def test_a_prompt_that_another_one_begins_with_is_reused_up_to_its_end(length):
    engine = engine_of()
    answer(engine, tokens(60))
    events = answer(engine, tokens(length))
    assert reused(events) == length - 1 and outcome(events) == fresh(tokens(length))


def test_prompts_that_part_in_the_middle_share_what_is_before():
    engine = engine_of()
    answer(engine, tokens(60))
    other = [*tokens(33), 249, *tokens(20, first=3)]
    events = answer(engine, other)
    assert reused(events) == 33 and outcome(events) == fresh(other)
    assert reused(answer(engine, tokens(60))) == 59  # the first one is still there


def test_the_longest_of_several_is_taken():
    engine = engine_of()
    for length in (20, 50, 35):
        answer(engine, [*tokens(length), 249], replace(AR, max_new_tokens=1))
    assert reused(answer(engine, tokens(45))) == 44
    assert reused(answer(engine, [*tokens(36), 1, 2])) == 36


def test_a_few_tokens_alike_are_not_worth_it():
    engine = engine_of()
    answer(engine, tokens(60))
    for alike, expected in ((MIN_TOKENS - 1, 0), (MIN_TOKENS, MIN_TOKENS)):
        assert reused(answer(engine, [*tokens(alike), 249, 248, 247])) == expected


def test_a_short_prompt_takes_nothing():
    engine = engine_of()
    answer(engine, tokens(60))
    for length in range(1, MIN_TOKENS + 1):
        events = answer(engine, tokens(length))
        assert reused(events) == 0 and outcome(events) == fresh(tokens(length))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sampled_answer_is_that_of_its_seed(seed):
    how = replace(AR, temperature=1.0, seed=seed, mode="mars", threshold=0.1, verify=True)
    engine = engine_of()
    answer(engine, tokens(50))
    events = answer(engine, tokens(40), how)
    assert reused(events) == 39 and outcome(events) == fresh(tokens(40), how)


# --- whose rows are kept ---


def test_what_a_cancelled_row_has_cached_is_reused():
    engine, live = engine_of(), LiveSettings(AR.live_values())
    stream = engine.stream(Request(tokens(30), replace(AR, max_new_tokens=50), live))
    head = [next(stream) for _ in range(5)]
    live.cancel()
    list(stream)
    prompt = [*tokens(30), *flat(head), 8]
    events = answer(engine, prompt)
    assert reused(events) == 34 and outcome(events) == fresh(prompt)


def test_what_an_abandoned_row_has_cached_is_reused_even_half_a_prompt():
    engine = engine_of(prefill_chunk=20)
    stream = engine.stream(Request(tokens(70), AR))
    next(stream), next(stream)
    stream.close()
    events = answer(engine, tokens(70))
    assert reused(events) == 40 and outcome(events) == fresh(tokens(70))


def test_what_a_failed_row_has_cached_is_not_kept():
    engine = engine_of()
    stream = engine.stream(Request(tokens(30), AR))
    next(stream)
    real = engine.forward.logits

    def fail(*_: Any) -> Any:
        raise Boom

    engine.forward.logits = fail  # type: ignore[method-assign]
    with pytest.raises(Boom):
        list(stream)
    engine.forward.logits = real  # type: ignore[method-assign]
    assert engine.prefixes.num_bytes == 0
    events = answer(engine, tokens(30))
    assert reused(events) == 0 and outcome(events) == fresh(tokens(30))


def test_a_row_that_failed_beside_others_is_not_kept_either():
    engine = engine_of()
    running, failing = engine.stream(Request(tokens(9, 1), AR)), engine.stream(Request(tokens(30), AR))
    next(running), next(failing)

    def fail(*_: Any) -> Any:
        raise Boom

    engine.rows[1].commit = fail  # type: ignore[method-assign]
    with pytest.raises(Boom):
        list(failing)
    assert len(engine.rows) == 1 and engine.prefixes.num_bytes == 0
    events = answer(engine, tokens(30))
    assert reused(events) == 0 and outcome(events) == fresh(tokens(30))


def test_when_all_was_forgotten_nothing_wrong_is_restored():
    engine = engine_of()
    answer(engine, tokens(30))
    stream = engine.stream(Request(tokens(50, first=3), AR))
    next(stream)
    cache, real = engine.cache, engine.forward.logits

    def fail(*_: Any) -> Any:
        raise Boom

    engine.forward.logits = fail  # type: ignore[method-assign]
    with pytest.raises(Boom):
        list(stream)
    assert engine.cache is not cache
    for _ in range(2):  # before the first forward of the new cache too
        with pytest.raises(Boom):
            answer(engine, tokens(30))
    engine.forward.logits = real  # type: ignore[method-assign]
    for expected in (0, 29):  # a cache that holds nothing yet has no layers to write to
        events = answer(engine, tokens(30))
        assert reused(events) == expected and outcome(events) == fresh(tokens(30))
    answer(engine, tokens(20, first=9))
    assert reused(answer(engine, [*tokens(20, first=9), 3])) == 20


def test_a_prefix_that_cannot_be_written_leaves_the_row_to_its_first_token(monkeypatch):
    engine = engine_of()
    answer(engine, tokens(60))
    monkeypatch.setattr("mars_core.cache.CursorLayer.write_row", None)
    events = answer(engine, tokens(60))
    assert reused(events) == 0 and outcome(events) == fresh(tokens(60))


# --- among other rows ---


def test_a_row_that_joins_others_with_a_prefix_disturbs_nobody():
    engine = engine_of(prefill_chunk=8)
    answer(engine, tokens(60))
    asked = [
        (tokens(9, 1), WAYS["mars"]),
        (tokens(60), WAYS["verify"]),
        (tokens(300, 2), AR),
        (tokens(40), AR),
    ]
    streams = [engine.stream(Request(prompt, how)) for prompt, how in asked]
    events: list[list[StepEvent]] = [[] for _ in asked]
    for number in (0, 0, 2, 1, 0, 2, 3, 1):
        events[number] += [next(streams[number])]
    for number in (3, 1, 2, 0):
        events[number] += streams[number]
        assert outcome(events[number]) == fresh(*asked[number])
    assert [reused(each) for each in events] == [0, 59, 0, 39]


def test_rows_that_changed_places_are_kept_as_what_they_are():
    engine = engine_of()
    long = replace(AR, max_new_tokens=60)
    prompts = [tokens(20 + 5 * i, first=i) for i in range(5)]
    streams = [engine.stream(Request(prompt, long)) for prompt in prompts]
    said = [[next(stream)] for stream in streams]
    for number in range(5):
        said[number] += itertools.islice(streams[number], 3 + number)
    for number in (0, 2, 1, 4, 3):  # each time the last row moves into the gap
        streams[number].close()
    for prompt, head in zip(prompts, said, strict=True):
        whole = [*prompt, *flat(head), 9]
        events = answer(engine, whole)
        assert reused(events) >= len(whole) - 2 and outcome(events) == fresh(whole)


def test_two_rows_may_start_from_the_same_prefix_at_once():
    engine = engine_of()
    answer(engine, tokens(50))
    prompts = [[*tokens(40), *tokens(5, first=i)] for i in range(4)]
    together = interleaved(engine, [Request(prompt, WAYS["mars"]) for prompt in prompts])
    for prompt, events in zip(prompts, together, strict=True):
        assert reused(events) >= 40 and outcome(events) == fresh(prompt, WAYS["mars"])


def test_a_prefix_longer_than_the_cache_makes_it_grow():
    engine = engine_of()
    answer(engine, tokens(300))
    answer(engine, tokens(20, 1))
    while engine.cache.capacity > 256:  # as it would after a longer one
        engine.cache._resize(1, 256)
    events = answer(engine, tokens(300))
    assert reused(events) == 299 and outcome(events) == fresh(tokens(300))


@settings(max_examples=15)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(sorted(WAYS)), st.integers(1, 20), st.booleans()),
        min_size=4, max_size=10,
    ),
    order=st.lists(st.integers(0, 9), max_size=40),
    max_bytes=st.sampled_from([0, 40_000, 10**9]),
    chunk=st.sampled_from([7, 256]),
)  # fmt: skip
def test_conversations_in_any_order_say_what_each_says_alone(turns, order, max_bytes, chunk):
    engine = engine_of(prefill_chunk=chunk, prefix_bytes=max_bytes, max_rows=3)
    said = [tokens(17, first=0), tokens(17, first=0), tokens(25, first=1), [*tokens(16), 3]]
    waves: list[dict[int, tuple[str, int, bool]]] = [{}]
    for number, way, new, closed in turns:  # a conversation has one turn at a time
        if number in waves[-1]:
            waves.append({})
        waves[-1][number] = (way, new, closed)
    for wave in waves:
        prompts = {n: [*said[n], *tokens(new, first=n)] for n, (_, new, _) in wave.items()}
        streams = {n: engine.stream(Request(prompts[n], WAYS[way])) for n, (way, _, _) in wave.items()}
        events: dict[int, list[StepEvent]] = {n: [] for n in wave}
        for turn in order:
            number = sorted(wave)[turn % len(wave)]
            events[number] += itertools.islice(streams[number], 1)
        for number, (way, _, closed) in wave.items():
            if closed:
                streams[number].close()
            else:
                events[number] += streams[number]
                assert outcome(events[number]) == fresh(prompts[number], WAYS[way])
            said[number] = [*prompts[number], *flat(events[number])]
    assert engine.rows == [] and engine.prefixes.num_bytes <= max_bytes


# --- the bound ---


class Shelf:
    """A store of so many bytes and a cache to fill it from; one slot of it takes 48 bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.store, self.cache = PrefixStore(max_bytes), CursorCache(allocate=zeros)
        self.keep(tokens(1))  # too short to be kept, but the layers are there

    def keep(self, prefix: list[int]) -> None:
        from tests.test_cache import write

        write(self.cache, [0], [list(range(len(prefix)))], float(prefix[0]))
        self.store.keep(prefix, self.cache, 0)

    def has(self, prefix: list[int]) -> int:
        return self.store.restore([*prefix, 255], self.cache, 0)


SLOT = 48


def test_what_was_used_longest_ago_makes_room():
    shelf = Shelf(SLOT * 60)
    one, two, three, four = (tokens(20, first=i) for i in range(4))
    for prefix in (one, two, three):
        shelf.keep(prefix)
    assert shelf.store.num_bytes == SLOT * 60
    assert shelf.has(one) == 20  # used: now the second is the oldest
    shelf.keep(four)
    assert [shelf.has(prefix) for prefix in (one, two, three, four)] == [20, 0, 20, 20]
    assert shelf.store.num_bytes == SLOT * 60


def test_a_long_one_takes_the_place_of_as_many_as_needed():
    shelf = Shelf(SLOT * 60)
    for i in range(3):
        shelf.keep(tokens(20, first=i))
    shelf.keep(tokens(35, first=3))
    assert [shelf.has(tokens(20, first=i)) for i in range(4)] == [0, 0, 20, 20]
    assert shelf.store.num_bytes == SLOT * 55


def test_one_longer_than_the_bound_is_not_kept_and_drives_out_nobody():
    shelf = Shelf(SLOT * 60)
    shelf.keep(tokens(20))
    shelf.keep(tokens(61, first=1))
    assert shelf.has(tokens(20)) == 20 and shelf.has(tokens(61, first=1)) == 0
    shelf.keep(tokens(60, first=1))
    assert shelf.has(tokens(60, first=1)) == 60 and shelf.store.num_bytes == SLOT * 60


def test_a_longer_one_takes_the_place_of_what_it_begins_with_and_not_the_other_way_round():
    shelf = Shelf(SLOT * 100)
    shelf.keep(tokens(20))
    shelf.keep(tokens(40))
    assert shelf.store.num_bytes == SLOT * 40
    shelf.keep(tokens(30))
    assert shelf.store.num_bytes == SLOT * 40 and shelf.has(tokens(40)) == 40


@pytest.mark.parametrize("max_bytes", [0, SLOT * MIN_TOKENS - 1])
def test_a_store_of_no_bytes_keeps_nothing(max_bytes):
    shelf = Shelf(max_bytes)
    shelf.keep(tokens(MIN_TOKENS))
    assert shelf.store.num_bytes == 0 and shelf.has(tokens(MIN_TOKENS)) == 0
    assert not shelf.store.clear()


def test_what_is_restored_is_what_was_kept_up_to_where_it_is_alike():
    shelf = Shelf(10**6)
    shelf.keep(tokens(20, first=7))
    shelf.cache.reserve(3, 300)
    assert shelf.store.restore([*tokens(18, first=7), 1, 2], shelf.cache, 2) == 18
    keys = shelf.cache.layers[0].keys
    assert torch.equal(keys[2, :, :18], torch.full_like(keys[2, :, :18], 7.0)) and not keys[2, :, 18:].any()


def test_what_is_kept_is_a_copy():
    shelf = Shelf(10**6)
    shelf.keep(tokens(20, first=7))
    shelf.keep(tokens(1, first=9))
    shelf.cache.erase_row(0)
    assert shelf.has(tokens(20, first=7)) == 20
    assert shelf.cache.layers[0].keys[0, 0, :20, 0].tolist() == [7.0] * 20


def test_an_engine_keeps_a_quarter_of_its_memory_unless_told_otherwise():
    assert engine_of(memory_bytes=1000).prefixes.max_bytes == 250
    assert engine_of(memory_bytes=1 << 40).prefixes.max_bytes == 1 << 30
    assert engine_of(memory_bytes=1000, prefix_bytes=5).prefixes.max_bytes == 5
    engine = engine_of(prefix_bytes=0)
    answer(engine, tokens(50))
    assert reused(answer(engine, tokens(50))) == 0


def test_what_is_kept_stays_within_the_bound():
    engine = engine_of(prefix_bytes=engine_bytes(100))
    for i in range(8):
        answer(engine, tokens(40 + i, first=i))
        assert 0 < engine.prefixes.num_bytes <= engine_bytes(100)
    assert reused(answer(engine, tokens(47, first=7))) == 46


def engine_bytes(num_slots: int) -> int:
    engine = engine_of()
    answer(engine, tokens(2))
    return engine.cache.bytes_per_slot * num_slots
