"""Races without a browser: settings of lanes, turns, clocks, and what is said of a result."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from app.baseline import MIN_SAMPLES, OneTokenBaseline
from app.compare import CompareTab
from app.feed import Feed
from app.lane_controls import AR_BLOCK_SIZE, AR_THRESHOLD, swapped
from app.lanes import lane_key, lane_names, lane_settings
from app.live import LiveRegistry
from app.race import Race
from app.race_feed import race_messages
from app.race_result import (
    LaneRun,
    agreement,
    agreement_words,
    cell_of_token,
    clocks,
    headline,
    is_exact,
    measured,
    pace,
    reference_first,
    why,
)
from app.race_track import MAX_RACES, LaneEvent, RaceTrack
from app.race_view import HANGING, SAMPLED, TURNED, race_result
from mars_core import DecodeSettings, Engine, LiveSettings, MarsError, Request
from mars_core.planner import NOMINAL_COSTS
from tests.chat_page import wait_until
from tests.scripted import always, scripted_loaded, sometimes
from tests.scripted_events import answer, event, token
from tests.tiny import tiny_loaded

NUM_TOKENS = 24
AR = DecodeSettings(mode="ar", threshold=1.0, max_new_tokens=NUM_TOKENS)
MARS = DecodeSettings(threshold=0.5, max_new_tokens=NUM_TOKENS)
LONG = DecodeSettings(mode="ar", threshold=1.0, max_new_tokens=4000)  # still runs when a test goes on
VERIFY = DecodeSettings(verify=True)
SHARED = (256, 0, "")


@pytest.fixture
def scripted():
    """A track on a scripted model: `track`, the shared `engine`, and what the model was `fed`."""
    loaded = scripted_loaded(sometimes())
    engine = Engine(loaded, costs=lambda: NOMINAL_COSTS)
    track = RaceTrack(engine, lambda error: f"explained: {error}")
    yield SimpleNamespace(track=track, engine=engine, model=loaded.model, fed=loaded.model.fed)
    track.stop()


def requests(*settings: DecodeSettings, prompt: tuple[int, ...] = (72, 105)) -> list[Request]:
    return [Request(prompt, lane) for lane in settings]


def run_of(counts: list[int], seconds: float, settings: DecodeSettings = MARS, **fields: Any) -> LaneRun:
    """A lane whose forwards behind the prompt committed `counts` tokens in so many seconds each."""
    events = [event(0, [token("p")], seconds=9.0)]
    for number, count in enumerate(counts, start=1):
        committed = [token(f"{number}.{place}") for place in range(count)]
        reason = "length" if number == len(counts) else None
        events.append(event(number, committed, seconds=seconds, finish_reason=reason, **fields))
    return LaneRun(settings, 1, tuple(events))


# ---- settings ----


def test_ar_is_one_token_mode_whatever_its_dial_says():
    ar, verified = lane_settings([("AR", 0.6, 8), ("MARS + verify", 0.6, 8)], SHARED)
    assert (ar.mode, ar.threshold, ar.verify) == ("ar", 1.0, False)
    assert (verified.mode, verified.threshold, verified.block_size, verified.verify) == ("mars", 0.6, 8, True)


def test_both_lanes_sample_with_the_same_seed_where_none_was_given():
    lanes = lane_settings([("AR", 1, 4), ("MARS", 0.9, 4)], (256, 0.8, ""))
    assert lanes[0].seed is not None and lanes[0].seed == lanes[1].seed


@pytest.mark.parametrize(
    "lane", [("Turbo", 0.9, 4), ("MARS", None, 4), ("MARS", 0.9, 0)], ids=["mode", "threshold", "block size"]
)
def test_what_no_lane_can_run_with_is_refused(lane):
    with pytest.raises(MarsError):
        lane_settings([lane, ("AR", 1, 4)], SHARED)


def test_no_two_lanes_have_the_same_name():
    assert lane_names([AR, VERIFY]) == ["AR", "MARS + verify"]
    assert lane_names([AR, AR]) == ["AR (left)", "AR (right)"]
    assert lane_names([MARS, DecodeSettings(threshold=0.9)]) == ["MARS τ 0.50 B 4", "MARS τ 0.90 B 4"]
    assert lane_names([MARS, MARS]) == ["MARS (left)", "MARS (right)"]


# ---- the track ----


def test_lanes_take_turns_and_no_forward_serves_two(scripted):
    lanes = [(item.lane, item.event.num_rows) for item in scripted.track.run(requests(AR, AR)) if item]
    assert lanes == [(0, 1), (1, 1)] * NUM_TOKENS
    assert all(len(rows) == 1 for rows in scripted.fed)


def test_the_slower_lane_goes_on_alone_when_the_other_has_ended(scripted):
    items = [
        item
        for item in scripted.track.run(requests(AR, DecodeSettings(threshold=0.0, max_new_tokens=24)))
        if item
    ]
    lanes = [item.lane for item in items]
    num_fast = lanes.count(1)
    assert lanes[: 2 * num_fast] == [0, 1] * num_fast
    assert set(lanes[2 * num_fast :]) == {0}
    assert [sum(len(i.event.committed) for i in items if i.lane == lane) for lane in (0, 1)] == [24, 24]


def test_each_lane_writes_what_it_writes_alone():
    loaded = tiny_loaded()
    engine = Engine(loaded, costs=lambda: NOMINAL_COSTS)
    track = RaceTrack(engine)
    settings = [
        DecodeSettings(mode="ar", max_new_tokens=40),
        DecodeSettings(threshold=0.2, max_new_tokens=40),
    ]
    race = Race("", [72, 105, 32], settings)
    assert all(race.noted(track.run([Request(race.ids, lane) for lane in settings])))
    track.stop()
    for lane, run in zip(settings, race.runs, strict=True):
        alone = [c.id for e in engine.stream(Request(race.ids, lane)) for c in e.committed]
        assert run.token_ids == alone


def test_a_lanes_clock_holds_nothing_of_the_other_lanes_forwards(scripted):
    """A forward of the right lane takes ten times as long: the left lane's clock does not know."""

    def before(number: int) -> None:
        time.sleep(0.02 if number % 2 else 0.002)

    scripted.model.before = before
    settings = DecodeSettings(mode="ar", max_new_tokens=12)
    race = Race("", [72], [settings, settings])
    for _ in race.noted(scripted.track.run(requests(settings, settings, prompt=(72,)))):
        pass
    fast, slow = ([e.seconds for e in run.events] for run in race.runs)
    assert min(slow) >= 0.02
    assert sorted(fast)[len(fast) // 2] < 0.02, "a pause of the machine may hit some, not most of them"


def test_a_lane_that_fails_says_so_and_the_other_ends(scripted):
    failures = [4]

    def before(number: int) -> None:
        if number in failures:
            failures.clear()
            raise RuntimeError("broken")

    scripted.model.before = before
    items = [item for item in scripted.track.run(requests(AR, AR)) if item]
    last = {item.lane: item.event for item in items}
    assert last[0].finish_reason == "error" and last[0].error == "explained: broken"
    assert last[1].finish_reason == "length"
    assert all(scripted.track.run(requests(MARS, MARS))), "and the next race runs"


def test_a_request_that_cannot_work_leaves_the_track_free(scripted):
    for _ in range(5):
        with pytest.raises(MarsError):
            next(scripted.track.run([Request([72], AR), Request([], AR)]))
    assert all(scripted.track.run(requests(MARS, MARS)))


def test_a_race_nobody_reads_ends_and_gives_its_place_back(scripted):
    for _ in range(5):
        events = scripted.track.run(requests(LONG, LONG))
        next(events)
        events.close()
    assert all(scripted.track.run(requests(MARS, MARS)))
    assert scripted.track.num_lanes == 0


def test_stopped_lanes_end_with_a_last_event(scripted):
    live = [LiveSettings(AR.live_values()) for _ in range(2)]
    scripted.model.before = lambda number: number == 6 and [handle.cancel() for handle in live]
    items = list(scripted.track.run([Request([72], AR, handle) for handle in live]))
    assert [item.event.finish_reason for item in items[-2:]] == ["cancelled"] * 2
    assert len(items) == 7 + 2, "the forward under way is the last"


def test_tau_turned_while_a_lane_runs_acts_on_that_lane_alone(scripted):
    live = [LiveSettings(MARS.live_values()) for _ in range(2)]
    scripted.model.before = lambda number: number == 4 and live[0].update(threshold=0.9)
    taus: dict[int, list[float]] = {0: [], 1: []}
    for item in scripted.track.run([Request([72], MARS, handle) for handle in live]):
        taus[item.lane].append(item.event.threshold)
    assert taus[0][0] == 0.5 and taus[0][-1] == 0.9 and set(taus[1]) == {0.5}


def test_two_races_take_turns_and_a_third_waits_for_a_place(scripted):
    first, second = scripted.track.run(requests(LONG, LONG)), scripted.track.run(requests(LONG, LONG))
    assert next(first) and next(second)
    third = scripted.track.run(requests(MARS, MARS))
    assert next(third) is None
    first.close()
    assert [item.lane for item in third if item][:2] == [0, 1]
    assert scripted.track.num_lanes == 2, "the second is still on its way"
    second.close()
    assert all(len(rows) == 1 for rows in scripted.fed)


def test_a_race_that_is_stopped_while_it_waits_never_begins(scripted):
    running = [scripted.track.run(requests(LONG, LONG)) for _ in range(2)]
    assert all([next(events) for events in running])
    live = LiveSettings(AR.live_values())
    waiting = scripted.track.run([Request([72], AR, live)] * 2)
    assert next(waiting) is None
    live.cancel()
    assert list(waiting) == []
    for events in running:
        events.close()


def test_no_forward_runs_beside_one_of_the_engine_that_everybody_shares(scripted):
    busy, beside, answers = threading.Lock(), [], []

    def before(number: int) -> None:
        if not busy.acquire(blocking=False):
            beside.append(number)
            return
        time.sleep(0.003)
        busy.release()

    scripted.model.before = before
    others = threading.Thread(target=lambda: answers.extend(scripted.engine.stream(Request([72], AR))))
    others.start()
    items = [item for item in scripted.track.run(requests(AR, MARS)) if item]
    others.join(60)
    assert len(answers) == NUM_TOKENS <= len(items)
    assert beside == []


def clearing_fails(self: Engine, row: Any) -> None:
    raise RuntimeError("cannot be cleared")


def read(events: Any) -> list[LaneEvent]:
    """All that is left of a race, in a thread of its own: it fails where it waits for ever."""
    items: list[LaneEvent] = []
    thread = threading.Thread(target=lambda: items.extend(item for item in events if item), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "nobody ends this race"
    return items


def test_lanes_that_cannot_be_cleared_give_their_places_back(scripted, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(Engine, "_abandon", clearing_fails)
        for _ in range(MAX_RACES + 1):
            last = {item.lane: item.event for item in read(scripted.track.run(requests(AR, MARS)))}
            assert [event.finish_reason for event in last.values()] == ["length"] * 2
        assert wait_until(lambda: scripted.track.num_lanes == 0)
    items = read(scripted.track.run(requests(MARS, MARS)))
    assert items[-1].event.finish_reason == "length", "there is a place, and an engine that works"


def test_stopping_the_track_reaches_every_reader_even_if_no_lane_can_be_cleared(scripted, monkeypatch):
    monkeypatch.setattr(Engine, "_abandon", clearing_fails)
    races = [scripted.track.run(requests(LONG, LONG)) for _ in range(MAX_RACES)]
    for events in races:
        next(events)
    scripted.track.stop()
    for events in races:
        assert {item.lane for item in read(events) if item.event.finish_reason == "error"} == {0, 1}


def test_stopping_the_track_ends_a_race_under_way():
    engine = Engine(scripted_loaded(always()), costs=lambda: NOMINAL_COSTS)
    engine.loaded.model.before = lambda number: threading.Event().wait(0.01)
    track = RaceTrack(engine)
    events = track.run(requests(LONG, LONG))
    next(events)
    track.stop()
    assert {item.lane for item in events if item and item.event.finish_reason == "error"} == {0, 1}


# ---- messages ----


def test_both_lanes_come_in_one_stream_and_each_ends_with_a_final_message():
    now = [0.0]

    def items():
        for number in range(40):
            now[0] += 0.02
            reason = "length" if number in (19, 39) else None
            yield LaneEvent(number >= 20 or number % 2, event(number, [token("x")], finish_reason=reason))

    feeds = [Feed(1), Feed(1)]
    sent = list(race_messages(items(), feeds, 0.05, lambda: now[0]))
    assert set(sent[0]) == {0, 1} and all(message["reset"] for message in sent[0].values())
    assert len(sent) <= 1 + 40 * 0.02 / 0.05 + 1, "20 a second at most, for both together"
    finals = [(number, lane) for number, m in enumerate(sent) for lane in m if m[lane]["done"]]
    assert sorted(lane for _, lane in finals) == [0, 1], "each once"


def test_waiting_shows_as_an_empty_message():
    assert list(race_messages([None, None], [Feed(1)]))[1:3] == [{}, {}]


def test_every_token_reaches_its_own_lane():
    texts = ["one two three four five six. ", "seven eight nine"]
    lanes = [answer(text) for text in texts]
    items = [LaneEvent(lane, e) for pair in zip(*lanes, strict=False) for lane, e in enumerate(pair)]
    shortest = min(map(len, lanes))
    items += [LaneEvent(lane, e) for lane, events in enumerate(lanes) for e in events[shortest:]]
    feeds = [Feed(1), Feed(1)]
    last = {}
    for messages in race_messages(items, feeds, 0.0):
        last |= messages
    for lane, text in enumerate(texts):
        cells = [cell["x"] for e in last[lane]["events"] for cell in e.get("c", ())]
        assert "".join(cells) == text and last[lane]["done"]


# ---- the result ----


def test_the_first_difference_is_found_position_by_position():
    found = agreement([1, 2, 3, 4, 5], [1, 2, 9, 4])
    assert (found.num_compared, found.num_same, found.num_equal) == (5, 2, 3)
    assert found.first_difference == 2


def test_equal_answers_have_no_difference():
    assert agreement([1, 2], [1, 2]).first_difference is None
    assert "100 %" in agreement_words(agreement([1, 2], [1, 2]), "AR")


def test_a_shorter_answer_parts_where_it_ended_unless_it_was_stopped():
    assert agreement([1, 2, 3], [1, 2]).first_difference == 2
    assert agreement([1, 2, 3], [1, 2], ended=False).first_difference is None


def test_nothing_to_compare_is_said_and_divides_nothing():
    assert "no text" in agreement_words(agreement([], [1], ended=False), "AR")


def test_almost_all_is_never_called_all():
    words = agreement_words(agreement([0] * 3000 + [1], [0] * 3000 + [2]), "AR")
    assert "100 %" not in words and words.count("99.9 %") == 2


def test_a_cell_is_found_for_tokens_that_make_one_character_together():
    pieces = [token("a"), token("", label="⟨C3⟩"), token("é"), token("", label="<end>", special=True)]
    events = [event(0, pieces[:2]), event(1, pieces[2:])]
    assert [cell_of_token(events, position) for position in range(4)] == [0, 1, 1, 2]


def test_clocks_start_behind_the_prompt_and_add_the_lanes_own_forwards():
    events = [
        event(0, prefill=True, seconds=3.0),
        event(1, [token("a")], prefill=True, seconds=3.0),
        event(2, [token("b"), token("c")], seconds=0.5),
        event(3, [token("d")], seconds=0.25),
        event(4, seconds=0.0, finish_reason="cancelled"),
    ]
    assert clocks(events) == ([0.0, 0.5, 0.75], [1, 3, 4])


def test_speed_up_is_the_ratio_of_decode_speeds_and_the_prompt_is_not_in_it():
    runs = [run_of([1] * 10, 0.1, AR, one_token=True), run_of([2] * 5, 0.1, VERIFY)]
    assert headline(runs) == "MARS + verify was 2.00× as fast as AR"
    assert measured(runs).startswith("MARS + verify 20.0 tok/s over 10 tokens, AR 10.0 tok/s over 10 tokens")
    assert "n = 1 run" in measured(runs)


def test_it_is_compared_with_ar_wherever_ar_stands():
    ar, mars = run_of([1] * 10, 0.1, AR), run_of([2] * 5, 0.1)
    assert headline([mars, ar]) == headline([ar, mars]) == "MARS was 2.00× as fast as AR"
    assert reference_first([mars, mars]) == reference_first([ar, ar]) == (0, 1)


def test_a_slower_mars_says_so_and_why():
    runs = [run_of([1] * 8, 0.1, AR, window_length=1), run_of([2, 1, 2, 1], 0.21, window_length=4)]
    assert headline(runs) == "MARS was 0.71× as fast as AR"
    assert why(runs) == (
        "A forward of this window (4.0 positions in the mean) took 2.10× an AR forward and committed 1.50 "
        "tokens, so it was 0.71× as fast."
    )


def test_two_lanes_that_both_commit_several_are_told_apart():
    runs = [run_of([2] * 6, 0.1), run_of([3] * 6, 0.2, DecodeSettings(threshold=0.6))]
    assert "took 2.00× a forward of MARS τ 0.50 B 4 and committed 3.00 tokens against 2.00" in why(runs)


def test_too_short_a_run_has_no_speed():
    runs = [run_of([1] * 3, 0.1, AR), run_of([2] * 8, 0.1)]
    assert pace(runs[0]) is None and "Too short" in headline(runs)
    assert measured(runs) == why(runs) == ""
    assert pace(LaneRun(AR, 1, ())) is None


def test_only_a_greedy_lane_that_never_trusted_a_confidence_is_exact():
    assert is_exact(run_of([1], 0.1, AR))
    exact = LaneRun(VERIFY, 1, tuple(answer("one two three", threshold=1.0, verify=True)))
    assert is_exact(exact)
    assert not is_exact(run_of([1], 0.1, VERIFY, threshold=0.99, verify=True))
    assert not is_exact(run_of([1], 0.1, DecodeSettings(mode="ar", temperature=1.0)))


def test_the_panel_says_where_lanes_part_and_what_to_doubt():
    settings = [AR, MARS]
    race = Race("", [1], settings)
    race.events = [answer("one two three"), answer("one two four five")[:-1]]
    panel = race_result(race.runs, race.feeds, ["a", "b"])
    assert panel["difference"]["place"] == 3
    assert [lane["label"] for lane in panel["difference"]["lanes"]] == [" three", " four"]
    assert any("did not come to its end" in line for line in panel["lines"])
    assert [lane["view"] for lane in panel["lanes"]] == ["a", "b"]
    assert not {SAMPLED, TURNED} & set(panel["lines"])


def lines_of(*runs: LaneRun) -> list[str]:
    """What the panel says of these runs."""
    return race_result(runs, [Feed(1) for _ in runs], ["a", "b"])["lines"]


@pytest.mark.parametrize("changes", [{"threshold": 0.6}, {"block_size": 8}])
def test_a_dial_turned_during_the_race_is_said(changes):
    ar, steady = run_of([1] * 5, 0.1, AR), run_of([2] * 5, 0.1)
    turned = LaneRun(MARS, 1, (*steady.events[:-1], replace(steady.events[-1], **changes)))
    assert TURNED in lines_of(ar, turned)
    assert TURNED not in lines_of(ar, steady)


def test_a_dial_says_nothing_of_ar_nor_of_the_event_that_only_ends_a_lane():
    steady = run_of([2] * 5, 0.1)
    last = replace(steady.events[-1], threshold=0.6)
    ended = LaneRun(MARS, 1, (*steady.events, replace(last, committed=(), finish_reason="cancelled")))
    ar = LaneRun(AR, 1, (*steady.events[:-1], last))
    assert TURNED not in lines_of(ar, ended)


def test_sampled_texts_that_part_may_do_so_by_chance():
    sampled = replace(AR, temperature=0.8, seed=1), replace(MARS, temperature=0.8, seed=1)
    assert SAMPLED in lines_of(*(run_of([1, n], 0.1, lane) for n, lane in enumerate(sampled, start=1)))
    assert SAMPLED not in lines_of(*(run_of([1, 1], 0.1, lane) for lane in sampled)), "they do not part"
    assert SAMPLED not in lines_of(run_of([1], 0.1, AR), run_of([2], 0.1))


def test_an_answer_that_had_ended_has_no_token_there():
    race = Race("", [1], [AR, MARS])
    race.events = [[event(0, [token("a")], finish_reason="length")]]
    race.events.append([event(0, [token("a"), token("b")], finish_reason="length")])
    panel = race_result(race.runs, race.feeds, ["a", "b"])
    assert [lane["label"] for lane in panel["difference"]["lanes"]] == [None, "b"]


def test_swapped_lanes_take_their_answers_along():
    race = Race("q", [1], [AR, MARS])
    for lane, text in enumerate(("left text", "right text")):
        race.events[lane] = answer(text)
    swapped = race.swapped()
    assert swapped.settings == [MARS, AR]
    assert [feed.text for feed in swapped.feeds] == ["right text", "left text"]
    assert [feed.text for feed in race.swapped().swapped().feeds] == ["left text", "right text"]


def test_a_fault_ends_the_lanes_that_have_not_ended():
    race = Race("q", [1], [AR, MARS])
    race.events[0] = answer("done")
    race.fail("It broke.")
    assert race.events[0][-1].finish_reason == "eos"
    assert race.events[1][-1].error == "It broke." and "It broke." in race.feeds[1].ending


# ---- the tab ----


@pytest.fixture
def tab(scripted):
    """The tab and the Blocks around it (`tab.demo`), without a browser."""
    with gr.Blocks(analytics_enabled=False) as demo:
        tab = CompareTab(scripted.engine, LiveRegistry(), OneTokenBaseline())
        tab.connect(demo)
    tab.demo = demo
    yield tab
    tab.track.stop()


def test_races_that_wait_for_a_place_take_none_from_the_chat(tab):
    streams = [listener for listener in tab.demo.fns.values() if listener.types_generator]
    assert len(streams) >= 2
    assert {(listener.concurrency_id, listener.concurrency_limit) for listener in streams} == {("race", 4)}


def test_an_ar_lanes_forwards_tell_what_one_token_costs_whoever_else_writes(tab):
    others = tab.engine.stream(Request([72], LONG))
    next(others)
    race = Race("", [72, 105], [AR, AR])
    lanes = [SimpleNamespace(live=LiveSettings(AR.live_values())) for _ in race.settings]
    assert len(list(tab._events(race, lanes))) >= MIN_SAMPLES
    assert tab.baseline.seconds_per_token()
    others.close()


def test_stop_brings_the_panel_to_rest_only_where_the_race_hangs(tab, monkeypatch):
    monkeypatch.setattr("app.compare.STOP_WAIT_S", 0.0)
    visitor = SimpleNamespace(session_hash="visitor")
    assert tab._stop(visitor) == gr.skip()
    with tab.registry.running(lane_key("visitor", 1), MARS.live_values()) as hanging:
        assert tab._stop(visitor) == {"state": "empty", "words": HANGING}
        assert hanging.live.cancelled


def test_a_block_size_of_one_chosen_by_hand_is_kept(tab):
    right = tab.lanes[1]
    threshold, block_size, was_ar = right._choose("MARS", 0.7, 1, was_ar=False)
    assert (threshold["value"], block_size["value"], was_ar) == (0.7, 1, False)
    updates = swapped(tab.lanes, ["AR", AR_THRESHOLD, AR_BLOCK_SIZE, "MARS", 0.7, 1])
    shown = [update["value"] if isinstance(update, dict) else update for update in updates]
    assert shown == ["MARS", 0.7, 1, False, "AR", AR_THRESHOLD, AR_BLOCK_SIZE, True]


def test_a_lane_that_turns_from_ar_goes_to_where_the_dial_starts(tab):
    left = tab.lanes[0]
    threshold, block_size, was_ar = left._choose("MARS", AR_THRESHOLD, AR_BLOCK_SIZE, was_ar=True)
    assert (threshold["value"], block_size["value"], was_ar) == (0.9, tab.engine.loaded.block_size, False)
    assert threshold["interactive"] and block_size["interactive"]


def test_one_script_alone_clicks_stop_on_escape():
    assets = Path(__file__).resolve().parent.parent / "assets"
    click = re.compile(r"stop\w*\W{1,4}click\(", re.IGNORECASE)
    clicking = [path.name for path in assets.glob("*.js") if click.search(path.read_text("utf-8"))]
    assert clicking == ["page.js"]
