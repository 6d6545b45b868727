"""The engine against the oracle, against scripted models, and against its own rows."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mars_core.cache import zeros
from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.events import StepEvent
from mars_core.loaded import LoadedModel
from mars_core.reference import reference_generate
from mars_core.row import Request, Row
from mars_core.settings import DecodeSettings, LiveSettings
from mars_core.text import decode
from tests.scripted import MASK, always, never, saying, scripted_loaded, sometimes
from tests.tiny import tiny_loaded

PROMPT = [257, 72, 105, 99, 258, 10, 11]
SLIDING = {"sliding_window": 5}
HYBRID = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"kind": "llama"},
    "llama eager": {"kind": "llama", "attn_implementation": "eager"},
    "qwen2": {"kind": "qwen2", "tied": False},
    "qwen3": {"kind": "qwen3"},
    "mistral sliding": {"kind": "mistral", **SLIDING},
    "qwen2 hybrid": {"kind": "qwen2", "use_sliding_window": True, **HYBRID},
    "qwen2 hybrid eager": {
        "kind": "qwen2", "use_sliding_window": True, "attn_implementation": "eager", **HYBRID
    },
    "gemma2": {"kind": "gemma2", **HYBRID},
    "gemma3": {"kind": "gemma3", **HYBRID},
}  # fmt: skip


@functools.lru_cache
def model(name: str = "llama", seed: int = 0) -> LoadedModel:
    return tiny_loaded(seed=seed, **MODELS[name])


def groups(events: Sequence[StepEvent] | Iterator[StepEvent]) -> list[list[int]]:
    """What each forward committed, prompt chunks left out."""
    return [[choice.id for choice in event.committed] for event in events if event.committed]


def flat(events: Sequence[StepEvent] | Iterator[StepEvent]) -> list[int]:
    return list(itertools.chain.from_iterable(groups(events)))


def text_of(events: Sequence[StepEvent]) -> str:
    return "".join(event.text for event in events)


def run(loaded: LoadedModel, prompt: Sequence[int] = PROMPT, **options: Any) -> list[StepEvent]:
    return list(Engine(loaded).stream(Request(prompt, DecodeSettings(**options))))


def interleaved(
    engine: Engine, requests: Sequence[Request], order: Sequence[int] = ()
) -> list[list[StepEvent]]:
    """Take events by turns: `order` says whose next, then round and round."""
    streams = [engine.stream(request) for request in requests]
    events: list[list[StepEvent]] = [[] for _ in requests]
    open_rows = set(range(len(requests)))
    turns = itertools.chain(order, itertools.cycle(range(len(requests))))
    while open_rows:
        row = next(turns) % len(requests)
        event = next(streams[row], None)
        if event is None:
            open_rows.discard(row)
        else:
            events[row].append(event)
    return events


# --- equal to the oracle ---


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_mode_metric_threshold_and_block_size_equals_the_reference(name, temperature):
    loaded, engine = model(name), Engine(model(name))
    cases = [("ar", "probability", 0.5, 4)]
    cases += [("mars", "probability", t, b) for t in (0.0, 0.1, 0.3, 1.0) for b in (1, 2, 4, 8)]
    cases += [("mars", "margin", t, 4) for t in (0.0, 0.05, 1.0)]
    cases += [("mars", "entropy", t, 4) for t in (0.0, 2.5, 5.0)]
    several = 0
    for mode, metric, threshold, block_size in cases:
        chosen = DecodeSettings(
            mode=mode, metric=metric, threshold=threshold, block_size=block_size,
            max_new_tokens=11, temperature=temperature, top_k=20, top_p=0.95, seed=5,
        )  # fmt: skip
        expected = reference_generate(loaded, PROMPT, chosen)
        assert groups(engine.stream(Request(PROMPT, chosen))) == expected, chosen
        several += any(1 < len(group) < block_size for group in expected)
    assert several  # otherwise nothing but the trivial cases was compared


@pytest.mark.parametrize("name", MODELS)
def test_one_token_mode_equals_generate(name):
    loaded = model(name)
    expected = loaded.model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT)),
        do_sample=False,
        max_new_tokens=24,
        suppress_tokens=list(loaded.suppressed_token_ids),
        pad_token_id=256,
    )[0, len(PROMPT) :].tolist()
    assert flat(run(loaded, mode="ar", max_new_tokens=24)) == expected
    assert flat(run(loaded, threshold=1.0, max_new_tokens=24)) == expected


def test_a_prompt_of_one_token_equals_the_reference():
    for block_size in (1, 4):
        chosen = DecodeSettings(threshold=0.1, block_size=block_size, max_new_tokens=9)
        assert groups(run(model(), [72], **_options(chosen))) == reference_generate(model(), [72], chosen)


def _options(chosen: DecodeSettings) -> dict[str, Any]:
    return {name: getattr(chosen, name) for name in ("threshold", "block_size", "max_new_tokens")}


@pytest.mark.parametrize("name", ["llama", "qwen2 hybrid", "mistral sliding"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 19, 20, 21, 64])
def test_a_prompt_fed_in_chunks_equals_the_whole(name, chunk):
    prompt = [(7 * i) % 250 for i in range(20)]
    chosen = DecodeSettings(threshold=0.1, max_new_tokens=12)
    events = list(Engine(model(name), prefill_chunk=chunk).stream(Request(prompt, chosen)))
    assert groups(events) == reference_generate(model(name), prompt, chosen)
    chunks = [event for event in events if event.prefill]
    assert len(chunks) == math.ceil(20 / chunk)
    assert all(event.committed for event in events[len(chunks) - 1 :])
    assert not any(event.committed for event in chunks[:-1])
    assert [event.index for event in events] == list(range(len(events)))


def test_growing_past_the_allocated_slots_in_the_middle_changes_nothing():
    prompts = [[(3 * i) % 250 for i in range(250)], PROMPT, [(5 * i) % 250 for i in range(240)]]
    chosen = DecodeSettings(threshold=0.1, max_new_tokens=20, ignore_eos=True)
    together = interleaved(Engine(model()), [Request(prompt, chosen) for prompt in prompts])
    for prompt, events in zip(prompts, together, strict=True):
        assert groups(events) == reference_generate(model(), prompt, chosen)


# --- what is left in the cache ---


@pytest.mark.parametrize("name", ["llama", "qwen2 hybrid"])
def test_cached_keys_and_values_are_those_of_a_plain_forward_over_the_committed_tokens(name):
    loaded = model(name)
    engine = Engine(loaded, prefill_chunk=3)
    chosen = DecodeSettings(threshold=0.05, block_size=8, max_new_tokens=60, ignore_eos=True)
    streams = [engine.stream(Request(prompt, chosen)) for prompt in (PROMPT, PROMPT[:2], PROMPT[:5])]
    for stream in streams * 4:
        next(stream)
    streams[0].close()
    for stream in streams[1:] * 2:
        next(stream)
    assert len(engine.rows) == 2
    for place, row in enumerate(engine.rows):
        assert row.num_cached > row.num_prompt
        with torch.no_grad():
            cache = loaded.model(torch.tensor([row.tokens[: row.num_cached]])).cache
        for layer, plain in zip(engine.cache.layers, cache.layers, strict=True):
            seen = plain.keys.shape[2]  # a sliding layer keeps its last keys only
            cached = slice(row.num_cached - seen, row.num_cached)
            torch.testing.assert_close(layer.keys[place, :, cached], plain.keys[0], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(layer.values[place, :, cached], plain.values[0], atol=1e-5, rtol=1e-4)


# --- never, always, sometimes ---


@pytest.mark.parametrize("block_size", [1, 4, 8])
@pytest.mark.parametrize("budget", range(1, 10))
def test_the_budget_is_met_exactly_whatever_the_block_size(budget, block_size):
    loaded = scripted_loaded(always())
    events = run(loaded, block_size=block_size, max_new_tokens=budget)
    ids = flat(events)
    assert len(ids) == budget and MASK not in ids
    assert text_of(events) == decode(loaded.tokenizer, ids)
    assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + ["length"]
    assert len(events) == math.ceil(budget / block_size)
    furthest = max(position for forward in loaded.model.fed for row in forward for position, _ in row)
    assert furthest < len(PROMPT) + budget - 1  # no position that could not be used


@pytest.mark.parametrize("script, per_forward", [(always(), 4.0), (never(), 1.0), (sometimes(), 3.0)])
def test_accepted_tokens_per_forward_follow_the_models_confidence(script, per_forward):
    events = run(scripted_loaded(script), block_size=4, max_new_tokens=48)
    assert flat(events) == flat(run(scripted_loaded(script), mode="ar", max_new_tokens=48))
    lengths = [len(group) for group in groups(events)][1:-1]
    assert sum(lengths) / len(lengths) == pytest.approx(per_forward, abs=0.2)


def test_what_is_fed_is_what_was_committed_then_masks_at_the_next_positions():
    loaded = scripted_loaded(always())
    events = run(loaded, [10, 11, 12], block_size=3, max_new_tokens=7)
    first, second, third = (forward[0] for forward in loaded.model.fed)
    one, two, _ = groups(events)
    assert first == [(0, 10), (1, 11), (2, 12), (3, MASK), (4, MASK)]
    assert second == [(3, one[0]), (4, one[1]), (5, one[2]), (6, MASK), (7, MASK)]
    assert third == [(6, two[0]), (7, two[1]), (8, two[2])]  # one token left: no mask for it
    assert [event.decided for event in events[0].committed] == ["ar", "accepted", "accepted"]


def test_what_was_not_committed_is_told_as_candidates():
    (event, *_) = run(scripted_loaded(never()), block_size=4, max_new_tokens=8)
    assert [choice.decided for choice in (*event.committed, *event.candidates)] == ["ar", *["candidate"] * 3]
    assert all(choice.text == "" for choice in event.candidates)
    assert event.window_length == len(PROMPT) + 3 and event.num_cached == 0


def test_one_token_mode_feeds_no_masks():
    for options in ({"mode": "ar"}, {"threshold": 1.0}, {"metric": "entropy", "threshold": 0.0}):
        loaded = scripted_loaded(always())
        events = run(loaded, max_new_tokens=5, **options)
        assert all(event.one_token and len(event.committed) == 1 for event in events)
        assert not any(i == MASK for forward in loaded.model.fed for row in forward for _, i in row)


# --- ends ---


def test_nothing_behind_an_end_of_sequence_inside_a_block_is_kept():
    loaded = scripted_loaded(saying([60, 258, 27, 51], start=len(PROMPT)))
    engine = Engine(loaded)
    request = Request(PROMPT, DecodeSettings(threshold=0.5, block_size=4))
    for _ in range(2):  # the second turn is as clean as the first
        (event,) = list(engine.stream(request))
        assert [choice.id for choice in event.committed] == [60, 258]
        assert [choice.id for choice in event.candidates] == [27, 51]
        assert event.finish_reason == "eos" and event.text == decode(loaded.tokenizer, [60])
        assert engine.rows == []


@pytest.mark.parametrize("place", range(6))
def test_any_token_declared_to_end_the_sequence_ends_it_there_and_is_no_text(place):
    ids = flat(run(model(), mode="ar", max_new_tokens=6))
    loaded = model()
    cut = ids.index(ids[place]) + 1
    events = run(loaded, threshold=0.0, block_size=4, max_new_tokens=6, stop_token_ids=(ids[place],))
    ar = run(loaded, mode="ar", max_new_tokens=6, stop_token_ids=(ids[place],))
    assert flat(ar) == ids[:cut] and text_of(ar) == decode(loaded.tokenizer, ids[: cut - 1])
    assert ar[-1].finish_reason == "eos"
    mars = flat(events)
    assert ids[place] not in mars[:-1]


def test_ignoring_the_end_of_sequence_goes_on_to_the_budget():
    loaded = scripted_loaded(saying([65, 258, 66], start=len(PROMPT)))
    events = run(loaded, max_new_tokens=6, ignore_eos=True)
    assert len(flat(events)) == 6 and 258 in flat(events) and events[-1].finish_reason == "length"


@pytest.mark.parametrize("block_size", [1, 3, 4, 8])
@pytest.mark.parametrize("stops", [("lo w",), ("lo w", "o"), ("xyz", "d!")])
def test_a_stop_string_ends_the_text_at_the_same_place_for_every_block_size(block_size, stops):
    said = list(b"hello world! and more")
    script = saying([_id_of(byte) for byte in said], start=len(PROMPT))
    events = run(scripted_loaded(script), block_size=block_size, stop_strings=stops, max_new_tokens=40)
    text = bytes(said).decode()
    end = min(text.find(s) + len(s) for s in stops if s in text)
    assert events[-1].finish_reason == "stop"
    assert text_of(events) == min((text[:end].removesuffix(s) for s in stops), key=len)
    assert len(flat(events)) == end  # what completes it is the last token, in the middle of a block too


@functools.cache
def _id_of(byte: int) -> int:
    return scripted_loaded(always()).tokenizer(bytes([byte]).decode("latin-1"))["input_ids"][-1]


def test_text_held_back_for_a_stop_string_or_half_a_character_comes_at_the_end():
    said = [*(_id_of(byte) for byte in b"ab##"), 172]
    script = saying(said, start=len(PROMPT))
    loaded = scripted_loaded(script)
    ended = run(loaded, block_size=1, max_new_tokens=4, stop_strings=("###",))
    assert text_of(ended) == "ab##" and [event.text for event in ended] == ["a", "b", "", "##"]


def test_cancelling_gives_what_was_held_back():
    script = saying([_id_of(byte) for byte in b"ab##"], start=len(PROMPT))
    live = LiveSettings()
    stream = Engine(scripted_loaded(script)).stream(
        Request(PROMPT, DecodeSettings(mode="ar", stop_strings=("###",)), live)
    )
    events = [next(stream) for _ in range(4)]
    live.cancel()
    events += stream
    assert text_of(events) == "ab##" and events[-1].finish_reason == "cancelled"


def test_the_streamed_pieces_are_the_whole_text():
    for seed in range(4):
        events = run(
            model(seed=seed), threshold=0.05, block_size=8, max_new_tokens=60, temperature=1.0, seed=seed
        )
        assert text_of(events) == decode(model().tokenizer, flat(events))
        assert "".join(c.text for e in events for c in e.committed) in text_of(events)


# --- the mask token ---


def test_a_model_that_predicts_the_mask_itself_gives_its_second_best():
    loaded = scripted_loaded(lambda position, masked: (MASK, 0.999))
    original = loaded.model._logits

    def with_second_best(position: int, token_id: int) -> torch.Tensor:
        logits = original(position, token_id)
        logits[42] = logits[MASK] - 1
        return logits

    loaded.model._logits = with_second_best
    events = run(loaded, threshold=0.9, max_new_tokens=8)
    assert flat(events) == [42] * 8
    assert all(choice.probability > 0.98 for event in events for choice in event.committed)
    assert not any(a.id >= MASK for e in events for c in e.committed for a in c.alternatives if a.probability)


# --- padding, batches, order ---


def test_a_conversation_full_of_end_markers_is_the_same_beside_a_shorter_one():
    conversation = [257, 10, 258, 257, 72, 258, 257, 73, 258, 257, 74, 258, 257, 75]  # pad is no token here
    chosen = DecodeSettings(threshold=0.1, max_new_tokens=10)
    batch = interleaved(Engine(model()), [Request(conversation, chosen), Request([258, 258, 5], chosen)])
    assert groups(batch[0]) == reference_generate(model(), conversation, chosen)
    assert groups(batch[1]) == reference_generate(model(), [258, 258, 5], chosen)


def _requests() -> list[Request]:
    """Six that differ in all that may differ in one batch; number 1 ends after three tokens."""
    third = flat(run(model(), PROMPT[:3], mode="ar", max_new_tokens=3))[2]
    base = DecodeSettings(threshold=0.1, max_new_tokens=12)
    chosen = [
        base,
        replace(base, mode="ar", stop_token_ids=(third,)),
        replace(base, block_size=8, threshold=0.05, max_new_tokens=7),
        replace(base, temperature=1.0, seed=3),
        replace(base, metric="entropy", threshold=3.0, num_alternatives=0),
        replace(base, max_new_tokens=1, num_alternatives=9),
    ]
    prompts = [PROMPT, PROMPT[:3], [(7 * i) % 250 for i in range(20)], PROMPT[:5], PROMPT[:1], PROMPT[:6]]
    return [Request(prompt, options) for prompt, options in zip(prompts, chosen, strict=True)]


@functools.cache
def _solo() -> tuple[tuple[list[list[int]], str, Any], ...]:
    return tuple(_outcome(list(Engine(model()).stream(request))) for request in _requests())


def _outcome(events: list[StepEvent]) -> tuple[list[list[int]], str, Any]:
    alternatives = [[[a.id for a in c.alternatives] for c in e.committed] for e in events if e.committed]
    return groups(events), text_of(events), (events[-1].finish_reason, alternatives)


@settings(max_examples=25)
@given(
    order=st.lists(st.integers(0, 5), max_size=25),
    rows=st.permutations(range(6)),
    chunk=st.sampled_from([2, 64]),
)
def test_every_row_of_a_batch_is_as_it_is_alone_in_any_order_of_arrival(order, rows, chunk):
    requests, engine = _requests(), Engine(model(), prefill_chunk=chunk)
    together = interleaved(engine, [requests[row] for row in rows], order)
    for row, events in zip(rows, together, strict=True):
        assert _outcome(events) == _solo()[row]
    assert engine.rows == []


@settings(max_examples=15)
@given(
    order=st.lists(st.integers(0, 5), min_size=6, max_size=25), closed=st.sets(st.integers(0, 5), min_size=1)
)
def test_rows_that_leave_in_the_middle_disturb_nobody(order, closed):
    requests, engine = _requests(), Engine(model(), prefill_chunk=4)
    streams = [engine.stream(request) for request in requests]
    events: list[list[StepEvent]] = [[] for _ in requests]
    for row in order:
        events[row] += itertools.islice(streams[row], 1)
    for row in closed:
        streams[row].close()
    for row in set(range(6)) - closed:
        events[row] += streams[row]
        assert _outcome(events[row]) == _solo()[row]
    assert engine.rows == []


def test_a_row_that_ends_lets_the_other_finish_its_twelve():
    batch = interleaved(Engine(model()), _requests()[:2])
    assert len(flat(batch[0])) == 12 and len(flat(batch[1])) == 3


def test_rows_of_one_length_share_a_forward():
    engine = Engine(scripted_loaded(always()))
    chosen = DecodeSettings(max_new_tokens=16)
    batch = interleaved(engine, [Request(PROMPT, chosen), Request(PROMPT[:3], chosen)])
    assert {event.num_rows for event in batch[0][2:]} == {2}


def test_a_long_prompt_neither_freezes_the_others_nor_waits_for_ever():
    engine = Engine(scripted_loaded(never()), prefill_chunk=2)
    first = engine.stream(Request(PROMPT, DecodeSettings(max_new_tokens=30)))
    for _ in range(5):
        next(first)
    second = engine.stream(Request([7] * 20, DecodeSettings(max_new_tokens=5)))
    next(second)
    waiting = engine.rows[1]
    for _ in range(3):
        next(first)
    assert 4 <= waiting.num_cached < 20
    list(first)
    assert len(flat(second)) == 5


def test_prompts_are_fed_in_the_order_of_arrival_even_if_rows_change_places():
    engine = Engine(scripted_loaded(always()))
    leaving, early, late = (Row(Request(PROMPT), engine.loaded, engine.vocabulary) for _ in range(3))
    engine.rows = [leaving, early, late]
    leaving.abandoned = True
    engine.step()
    assert engine.rows == [late, early]  # the last took the place of the first
    assert (early.num_cached, late.num_cached) == (len(PROMPT), 0)


# --- live settings ---


def test_a_threshold_turned_in_the_middle_acts_from_the_next_forward():
    live = LiveSettings(DecodeSettings(threshold=0.9).live_values())
    stream = Engine(scripted_loaded(never())).stream(Request(PROMPT, DecodeSettings(max_new_tokens=64), live))
    assert [len(next(stream).committed) for _ in range(3)] == [1, 1, 1]
    live.update(threshold=0.2)
    assert [len(next(stream).committed) for _ in range(2)] == [4, 4]
    live.update(block_size=8)
    event = next(stream)
    assert (len(event.committed), event.block_size, event.threshold) == (8, 8, 0.2)
    live.update(threshold=1.0)
    event = next(stream)
    assert len(event.committed) == 1 and event.one_token and event.window_length == 8


def test_a_larger_block_turned_on_near_the_end_stays_inside_the_context():
    loaded = scripted_loaded(always(), context_length=len(PROMPT) + 10)
    live = LiveSettings(DecodeSettings(block_size=1).live_values())
    chosen = DecodeSettings(block_size=1, max_new_tokens=10)
    stream = Engine(loaded).stream(Request(PROMPT, chosen, live))
    next(stream)
    live.update(block_size=64)
    assert len(flat(stream)) == 9
    assert max(p for forward in loaded.model.fed for row in forward for p, _ in row) < loaded.context_length


def test_cancelling_ends_before_the_next_forward_and_frees_the_row():
    loaded = scripted_loaded(always())
    engine, live = Engine(loaded), LiveSettings()
    stream = engine.stream(Request(PROMPT, DecodeSettings(max_new_tokens=500), live))
    for _ in range(5):
        next(stream)
    live.cancel()
    (last,) = list(stream)
    assert last.finish_reason == "cancelled" and last.committed == () and last.index == 5
    assert len(loaded.model.fed) == 5 and engine.rows == []


def test_cancelling_before_the_first_forward_runs_none():
    loaded, live = scripted_loaded(always()), LiveSettings()
    live.cancel()
    (event,) = list(Engine(loaded).stream(Request(PROMPT, DecodeSettings(), live)))
    assert event.finish_reason == "cancelled" and loaded.model.fed == []


# --- callers that go away ---


def test_closing_the_iterator_frees_the_row_and_the_next_request_is_clean():
    engine = Engine(model())
    request = Request(PROMPT, DecodeSettings(threshold=0.1, max_new_tokens=12))
    stream = engine.stream(request)
    next(stream)
    stream.close()
    assert engine.rows == []
    assert _outcome(list(engine.stream(request))) == _solo()[0]


def test_an_iterator_that_nobody_holds_any_more_is_closed():
    engine = Engine(scripted_loaded(always()))
    stream = engine.stream(Request(PROMPT))
    next(stream)
    assert len(engine.rows) == 1
    del stream
    assert engine.rows == []


def test_a_request_that_nobody_asked_events_of_takes_no_place():
    engine = Engine(scripted_loaded(always()))
    engine.stream(Request(PROMPT))
    assert engine.rows == []


def test_the_garbage_collector_may_close_an_iterator_in_the_middle_of_a_step():
    loaded = scripted_loaded(always())
    engine = Engine(loaded)
    circle: dict[str, Any] = {"stream": engine.stream(Request(PROMPT))}
    circle["self"] = circle
    next(circle["stream"])
    del circle
    loaded.model.before = lambda number: gc.collect() and None
    done: list[list[int]] = []
    other = threading.Thread(target=lambda: done.append(flat(run_on(engine, 20))), daemon=True)
    other.start()
    other.join(20)
    assert not other.is_alive(), "closing waits for a lock that its own thread holds"
    assert len(done[0]) == 20 and engine.rows == []


def run_on(engine: Engine, budget: int) -> list[StepEvent]:
    return list(engine.stream(Request(PROMPT, DecodeSettings(max_new_tokens=budget))))


def test_closing_from_another_thread_does_not_wait_for_a_step():
    loaded = scripted_loaded(always())
    engine, inside, go_on = Engine(loaded), threading.Event(), threading.Event()
    idle = engine.stream(Request(PROMPT, DecodeSettings(max_new_tokens=100)))
    next(idle)

    def stop_in_the_forward(number: int) -> None:
        inside.set()
        go_on.wait(10)

    loaded.model.before = stop_in_the_forward
    done: list[list[int]] = []
    other = threading.Thread(target=lambda: done.append(flat(run_on(engine, 9))))
    other.start()
    inside.wait(10)
    idle.close()
    go_on.set()
    other.join(10)
    assert len(done[0]) == 9 and engine.rows == []


# --- threads ---


def test_many_threads_streaming_at_once_each_get_their_solo_run():
    engine, requests = Engine(model(), prefill_chunk=4), _requests()
    got: dict[int, list[StepEvent]] = {}

    def consume(number: int) -> None:
        got[number] = list(engine.stream(requests[number % 6]))

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(18))
    for number, events in got.items():
        assert _outcome(events) == _solo()[number % 6]
    assert engine.rows == []


def test_a_caller_who_looks_while_its_last_event_is_being_made_still_gets_it():
    """One thread drives; the other comes back for its event just when its row has ended and not said so."""
    loaded = scripted_loaded(always())
    engine, ending, looked = Engine(loaded), threading.Event(), threading.Event()
    watcher = engine.stream(Request(PROMPT, DecodeSettings(max_new_tokens=8)))
    first = next(watcher)
    row = engine.rows[0]
    said = row._last_text

    def slow_last_text() -> str:
        ending.set()
        looked.wait(0.3)
        return said()

    row._last_text = slow_last_text  # type: ignore[method-assign]
    driver = threading.Thread(target=run_on, args=(engine, 40))
    driver.start()
    ending.wait(10)
    events = [first, *watcher]
    looked.set()
    driver.join(10)
    assert events[-1].finish_reason == "length" and len(flat(events)) == 8


# --- what a forward raises ---


class Boom(Exception):
    pass


def test_an_error_reaches_its_caller_as_itself_and_the_text_so_far_stays():
    loaded = scripted_loaded(always())
    engine = Engine(loaded)

    def fail(number: int) -> None:
        if number == 3:
            raise Boom("at step 3")

    loaded.model.before = fail
    events = []
    with pytest.raises(Boom, match="at step 3"):
        for event in engine.stream(Request(PROMPT, DecodeSettings(max_new_tokens=64))):
            events.append(event)
    assert len(flat(events)) == 12 and engine.rows == []
    loaded.model.before = lambda number: None
    assert len(flat(run_on(engine, 9))) == 9


def test_an_error_reaches_every_caller_of_that_forward_and_no_other():
    loaded = scripted_loaded(always())
    engine = Engine(loaded, prefill_chunk=2)
    sharing = [engine.stream(Request(PROMPT, DecodeSettings(max_new_tokens=64))) for _ in range(2)]
    for stream in sharing:
        while not next(stream).committed:
            pass
    waiting = engine.stream(Request([7] * 20, DecodeSettings(max_new_tokens=5)))
    next(waiting)

    def fail(number: int) -> None:
        loaded.model.before = lambda later: None
        raise Boom

    while engine._prefilled_last is False:
        next(waiting)
    loaded.model.before = fail
    for stream in sharing:
        with pytest.raises(Boom):
            list(stream)
    assert len(flat(waiting)) == 5 and engine.rows == []


def test_what_only_one_rows_prompt_causes_ends_that_row_alone():
    def script(position: int, masked: bool) -> tuple[int, float]:
        return (65, math.nan) if position == 25 else (65, 1.0)

    engine = Engine(scripted_loaded(script))
    ill = engine.stream(Request([7] * 20, DecodeSettings(max_new_tokens=30)))
    well = engine.stream(Request(PROMPT[:1], DecodeSettings(max_new_tokens=20, block_size=1)))
    next(ill)
    next(well)
    with pytest.raises(ArithmeticError, match="NaN"):
        list(ill)
    assert len(flat(well)) == 19


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("beside", [False, True])
def test_nan_in_one_request_leaves_nothing_behind_for_the_next(temperature, beside):
    loaded = tiny_loaded()
    ill_token = 200
    engine = Engine(loaded)
    request = Request(PROMPT[:3], DecodeSettings(threshold=0.1, max_new_tokens=10))
    expected = groups(Engine(loaded).stream(request))
    other = engine.stream(Request(PROMPT, DecodeSettings(mode="ar", max_new_tokens=60, ignore_eos=True)))
    if beside:
        next(other)
    weight = loaded.model.get_input_embeddings().weight
    healthy = weight.data[ill_token].clone()
    weight.data[ill_token] = math.nan
    loaded.model.lm_head.weight = torch.nn.Parameter(weight.data.clone().nan_to_num(0))
    ill = [ill_token] * 30
    with pytest.raises(ArithmeticError):
        list(engine.stream(Request(ill, DecodeSettings(temperature=temperature, max_new_tokens=5))))
    weight.data[ill_token] = healthy
    loaded.model.lm_head.weight = weight
    companion = engine.stream(
        Request([5] * 40, DecodeSettings(mode="ar", max_new_tokens=40, ignore_eos=True))
    )
    next(companion)  # takes part with more slots than the next one has, so that those are looked at
    stream = engine.stream(request)
    got = []
    for event in stream:
        got.append(event)
        next(companion)
    assert groups(got) == expected


def test_no_memory_for_a_newcomer_leaves_the_running_one_alone():
    left = [10**6]

    def allocate(*request):
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no room")
        return zeros(*request)

    engine = Engine(model(), allocate=allocate)
    running = engine.stream(_requests()[0])
    events = [next(running), next(running)]
    left[0] = 0
    newcomer = engine.stream(_requests()[2])
    with pytest.raises(MemoryError):
        list(newcomer)
    joining = engine.stream(_requests()[3])
    threading.Thread(target=lambda: pytest.raises(MemoryError, list, joining)).start()
    events += running
    assert _outcome(events) == _solo()[0]
    left[0] = 10**6
    assert _outcome(list(engine.stream(_requests()[2]))) == _solo()[2]


def test_a_request_too_large_for_the_memory_does_not_enlarge_the_next():
    def allocate(shape, dtype, device):
        if shape[2] > 300:
            raise MemoryError("no room")
        return zeros(shape, dtype, device)

    engine = Engine(model(), allocate=allocate)
    with pytest.raises(MemoryError):
        list(engine.stream(Request([5] * 400, DecodeSettings(max_new_tokens=5))))
        list(engine.stream(Request([5] * 400, DecodeSettings(max_new_tokens=5))))
    for number in (0, 1):
        assert _outcome(list(engine.stream(_requests()[number]))) == _solo()[number]


def test_a_kept_error_does_not_keep_the_failed_forwards_tensors():
    loaded = scripted_loaded(always())
    kept: list[Any] = []

    def fail(number: int) -> None:
        tensor = torch.zeros(1000)
        kept.append(weakref.ref(tensor))
        raise MemoryError

    loaded.model.before = fail
    with pytest.raises(MemoryError) as caught:
        run(loaded)
    assert caught.value is not None and kept[0]() is None


# --- seeds ---


def test_the_same_seed_gives_the_same_text_and_seeds_differ():
    options = {"temperature": 1.0, "max_new_tokens": 12, "threshold": 0.1, "ignore_eos": True}
    one, again, two = (flat(run(model(), seed=seed, **options)) for seed in (1, 1, 2))
    assert one == again != two
    assert flat(run(model(), **options)) != flat(run(model(), **options))


def test_sampling_disturbs_nobodys_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    run(model(), temperature=1.0, max_new_tokens=3)
    assert torch.equal(torch.rand(3), expected)


# --- requests that cannot work ---


@pytest.mark.parametrize("prompt", [[], None, [[], [5]], ["a"], [1.5], [-1], [272], [5, 10**9]])
def test_a_prompt_that_is_none_is_refused_by_name_before_any_forward(prompt):
    loaded = scripted_loaded(always())
    with pytest.raises(ValueError, match="prompt_ids"):
        Engine(loaded).stream(Request(prompt))
    assert loaded.model.fed == []


def test_a_prompt_may_be_a_tensor():
    assert (
        _outcome(list(Engine(model()).stream(replace(_requests()[0], prompt_ids=torch.tensor(PROMPT)))))
        == (_solo()[0])
    )


def test_prompt_budget_and_block_may_fill_the_context_exactly():
    loaded = tiny_loaded(max_position_embeddings=32)
    exact = DecodeSettings(block_size=4, max_new_tokens=32 - len(PROMPT), ignore_eos=True, threshold=0.0)
    assert len(flat(Engine(loaded).stream(Request(PROMPT, exact)))) == 25
    with pytest.raises(MarsError, match="at most 25 tokens"):
        Engine(loaded).stream(Request(PROMPT, replace(exact, max_new_tokens=26)))
    with pytest.raises(MarsError, match="shorten the prompt"):
        Engine(loaded).stream(Request([5] * 40, exact))


def test_layers_that_are_not_attention_are_refused():
    loaded = scripted_loaded(always())
    loaded.model.text_config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(MarsError, match="linear_attention"):
        Engine(loaded)


def test_stop_strings_need_a_tokenizer():
    loaded = scripted_loaded(always(), tokenizer=None)
    with pytest.raises(MarsError, match="stop_strings need a tokenizer"):
        Engine(loaded).stream(Request(PROMPT, DecodeSettings(stop_strings=("a",))))
    assert len(flat(Engine(loaded).stream(Request(PROMPT, DecodeSettings(max_new_tokens=4))))) == 4
