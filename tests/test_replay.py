"""Replay and branches without a browser: what the view is sent, and where a branch starts and goes."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from app.feed import messages
from app.replay_branch import Continuation, plan_branch, why_no_branch
from app.replay_lanes import Lanes
from app.replay_recorded import recorded_runs
from app.replay_steps import day, replay_message
from mars_core import DecodeSettings, Engine, MarsError, Request, Trace
from mars_core.planner import NOMINAL_COSTS
from mars_core.traces import record, save_trace
from tests.scripted import always, saying, scripted_loaded, sometimes
from tests.scripted_events import answer, event, token
from tests.tiny import tiny_loaded, tiny_tokenizer

PROMPT = list(b"hello you")
ASKED = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"})


def engine_of(loaded: Any) -> Engine:
    return Engine(loaded, costs=lambda: NOMINAL_COSTS)


def recorded(engine: Engine, **how: Any) -> Trace:
    asked = DecodeSettings(**{"max_new_tokens": 20, "num_alternatives": 3, **how})
    return record(engine.loaded, ASKED, PROMPT, asked, list(engine.stream(Request(PROMPT, asked))))


def spelled(text: str) -> list[int]:
    """Its tokens: one a byte."""
    return list(tiny_tokenizer()(text)["input_ids"])


def ids(trace: Trace) -> list[int]:
    return [choice.id for event in trace.events for choice in event.committed]


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return engine_of(tiny_loaded())


@pytest.fixture
def scripted() -> Engine:
    return engine_of(scripted_loaded(sometimes()))


# ---- what the view is sent ----


def test_every_forward_is_a_step_with_all_that_it_predicted(tiny):
    trace = recorded(tiny, verify=True, threshold=0.2)
    message = replay_message(trace)
    assert len(message["steps"]) == len(message["events"]) == len(trace.events)
    for step, told in zip(message["steps"], trace.events, strict=True):
        assert [t["i"] for t in step["c"]] == [c.id for c in told.committed]
        assert [t["i"] for t in step.get("g", [])] == [c.id for c in told.candidates]
        assert step.get("d", 0) == told.num_drafts and step["k"] == told.num_cached
        for shown, choice in zip(step["c"], told.committed, strict=True):
            assert [a[2] for a in shown["a"]] == [other.id for other in choice.alternatives]
            assert (shown["l"], shown["d"]) == (choice.label, choice.decided)
    assert message["steps"][-1]["f"] == "length"
    assert message["done"]["message"].startswith("Answer cut")


def test_what_tau_is_compared_with_is_told_where_it_is_not_the_probability():
    events = [event(0, [token("a", probability=0.5)], metric="margin")]
    [step] = replay_message(Trace((), (1,), {}, {}, tuple(events)))["steps"]
    assert step["c"][0]["p"] == 0.5 and step["c"][0]["c"] == 0.0


def test_a_character_that_is_not_complete_waits():
    split = [token("", label="⟨F0 9F⟩")], [token("🤗", label="⟨A4 97⟩")]
    steps = replay_message(Trace((), (1,), {}, {}, (event(0, split[0]), event(1, split[1]))))["steps"]
    assert steps[0]["u"] == ["⟨F0 9F⟩"] and "u" not in steps[1]


def test_the_badge_says_where_when_and_how_the_run_was_recorded():
    model = {"name": "<b>M</b>", "device": "cpu", "dtype": "bfloat16", "mars_tuned": True}
    trace = Trace(ASKED, (1, 2), {}, model, tuple(answer("a b", verify=True)), "2026-04-07T09:05:00Z")
    about = replay_message(trace, "Why.", can_branch=False)["about"]
    assert about["where"] == "<b>M</b> · cpu · bfloat16"
    assert about["when"] == day(trace.recorded) == "7 April 2026, 09:05 UTC"
    assert about["how"] == "τ = 0.90, verified, B = 4" and about["question"] == "Hello?"
    assert (about["branching"], about["can_branch"], about["num_prompt"]) == ("Why.", False, 2)


def test_a_run_without_events_and_facts_of_any_kind_is_shown_too():
    about = replay_message(Trace((), (), {}, {"name": 5, "device": None}, ()))["about"]
    assert (about["where"], about["how"], about["question"]) == ("", "", "")


def test_runs_that_come_with_the_page_are_read_and_a_damaged_one_is_left_out(tmp_path, caplog):
    save_trace(Trace(ASKED, (1,), {}, {}, tuple(answer("a b c d"))), tmp_path / "good.json")
    (tmp_path / "bad.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        [run] = recorded_runs(tmp_path)
    assert run.card()["title"] == "Hello?" and run.card()["figures"].startswith("5 tokens, ")
    assert "bad.json" in caplog.text
    assert recorded_runs(tmp_path / "none") == []
    assert len(recorded_runs()) >= 3


# ---- where a branch starts ----


def test_a_branch_is_fed_the_prompt_what_was_committed_before_and_the_token_that_was_chosen(scripted):
    trace = recorded(scripted, threshold=0.9)
    step = next(k for k, told in enumerate(trace.events) if k and len(told.committed) > 1)
    told = trace.events[step]
    before = sum(len(event.committed) for event in trace.events[:step])
    other = told.committed[1].alternatives[1]
    branch = plan_branch(trace, scripted, {"step": step, "place": 1, "id": other.id}, 0.7, True)
    assert branch.answer_ids == (*ids(trace)[: before + 1], other.id)
    assert branch.prompt_ids == (*PROMPT, *branch.answer_ids)
    assert (branch.settings.threshold, branch.settings.verify, branch.settings.mode) == (0.7, True, "mars")
    assert branch.settings.max_new_tokens == max(20 - len(branch.answer_ids), 16)
    assert branch.taken.committed[-1].decided == "chosen" and branch.taken.committed[0] == told.committed[0]


def test_without_a_token_nothing_of_the_step_stays(scripted):
    trace = recorded(scripted)
    branch = plan_branch(trace, scripted, {"step": 2, "place": 0, "id": None}, 0.9, False)
    assert branch.taken is None and len(branch.shared) == 2
    first = plan_branch(trace, scripted, {"step": 0, "place": 0, "id": None}, 0.9, False)
    assert first.prompt_ids == tuple(PROMPT) and first.answer_ids == ()


def test_a_prediction_that_was_not_committed_can_be_taken_and_counts_as_chosen(scripted):
    trace = recorded(scripted, threshold=0.9)
    step, told = next((k, told) for k, told in enumerate(trace.events) if told.candidates)
    place = len(told.committed)
    guess = told.candidates[0]
    branch = plan_branch(trace, scripted, {"step": step, "place": place, "id": guess.id}, 0.9, False)
    assert [c.decided for c in branch.taken.committed][-1] == "chosen"
    assert branch.answer_ids[-1] == guess.id and branch.answer_ids[-2] == told.committed[-1].id


@pytest.mark.parametrize(
    "data",
    [
        None, [], "x", {}, {"step": -1, "id": None}, {"step": 10**9, "id": None}, {"step": True, "id": None},
        {"step": 1, "place": -1, "id": 65}, {"step": 1, "place": 99, "id": 65}, {"step": "1", "id": None},
        {"step": 1, "place": 0, "id": "65"}, {"step": 1, "place": 0, "id": 10**30},
        {"step": 1, "place": 0, "id": 3}, {"step": 1, "place": None, "id": 65}, {"step": 1.0, "id": None},
    ],
    ids=repr,
)  # fmt: skip
def test_a_place_or_token_that_is_not_there_is_refused(scripted, data):
    with pytest.raises(MarsError, match="not part of this run|not among those"):
        plan_branch(recorded(scripted), scripted, data, 0.9, True)


def test_behind_the_end_of_an_answer_nothing_can_follow():
    engine = engine_of(scripted_loaded(saying([65, 66, 258], start=len(PROMPT))))
    trace = recorded(engine)
    end = next(place for place, choice in enumerate(trace.events[0].committed) if choice.id == 258)
    with pytest.raises(MarsError, match="nothing can follow"):
        plan_branch(trace, engine, {"step": 0, "place": end, "id": 258}, 0.9, True)


@pytest.mark.parametrize(
    "changes",
    [{"nonsense": 1}, {"max_new_tokens": "many"}, {"top_p": 7}, {"metric": "luck"}, {"layout": ["auto"]}],
    ids=repr,
)
def test_settings_that_make_no_sense_are_refused(scripted, changes):
    trace = recorded(scripted)
    odd = dataclasses.replace(trace, settings=trace.settings | changes)
    with pytest.raises(MarsError, match="settings of this run"):
        plan_branch(odd, scripted, {"step": 1, "place": 0, "id": None}, 0.9, True)


def test_a_threshold_that_is_none_is_refused(scripted):
    with pytest.raises(MarsError, match="threshold"):
        plan_branch(recorded(scripted), scripted, {"step": 1, "place": 0, "id": None}, float("nan"), True)


def test_without_a_model_or_a_run_there_is_no_branch(scripted):
    trace = recorded(scripted)
    assert "without one" in why_no_branch(trace, None)
    assert "nothing to branch from" in why_no_branch(dataclasses.replace(trace, events=()), scripted)
    assert why_no_branch(trace, scripted) == ""


def test_a_run_of_another_tokenizer_is_refused_and_the_difference_named(scripted):
    trace = recorded(scripted)
    first = trace.events[0]
    renamed = dataclasses.replace(first.committed[0], label="Ü")
    other = dataclasses.replace(first, committed=(renamed, *first.committed[1:]))
    foreign = dataclasses.replace(trace, events=(other, *trace.events[1:]))
    assert "'Ü' there" in why_no_branch(foreign, scripted)
    with pytest.raises(MarsError, match="another tokenizer"):
        plan_branch(foreign, scripted, {"step": 1, "place": 0, "id": None}, 0.9, True)
    larger = dataclasses.replace(trace, prompt_ids=(2**53,))
    assert "another tokenizer" in why_no_branch(larger, scripted)


# ---- how it goes on ----


def written(
    trace: Trace, engine: Engine, data: dict[str, Any], **how: Any
) -> tuple[Lanes, list[dict[str, Any]]]:
    """A branch as the page writes it: its lanes, and every message of the branch's."""
    branch = plan_branch(trace, engine, data, how.get("threshold", 0.9), how.get("verify", False))
    lanes = Lanes(trace, branch, engine)
    events = lanes.follow(engine.stream(Request(branch.prompt_ids, branch.settings)))
    return lanes, [lanes.written(message) for message in messages(events, lanes.feed, interval_s=0)]


def shown(message: dict[str, Any]) -> str:
    """The answer that a view of this message shows."""
    cells = "".join(cell["x"] for told in message["events"] for cell in told.get("c", []))
    return cells[: message["done"]["length"]] + message["done"]["tail"]


@pytest.mark.parametrize("verify", [False, True])
def test_a_branch_that_changes_nothing_says_the_same(tiny, verify):
    trace = recorded(tiny, threshold=1.0, verify=verify)
    for step in range(len(trace.events)):
        lanes, sent = written(trace, tiny, {"step": step, "id": None}, threshold=1.0, verify=verify)
        assert lanes.parts_at is None
        assert shown(sent[-1]).startswith(trace.text())
        assert sent[-1]["lane"]["note"].endswith("it says the same.")


def test_the_two_part_at_the_token_that_was_chosen(scripted):
    trace = recorded(scripted, threshold=0.9)
    other = trace.events[2].committed[0].alternatives[1]
    before = sum(len(told.committed) for told in trace.events[:2])
    lanes, sent = written(trace, scripted, {"step": 2, "place": 0, "id": other.id})
    assert lanes.parts_at == before == sent[0]["lane"]["mark"] == lanes.original()["lane"]["mark"]
    assert f"part at token {before + 1}" in sent[-1]["lane"]["note"]
    # a script goes by positions alone: behind the chosen token it says what it said before
    assert shown(sent[-1])[before + 1 :].startswith(trace.text()[before + 1 :])
    assert shown(lanes.original()) == trace.text()


def test_the_ending_tells_what_the_branch_itself_took(scripted):
    trace = recorded(scripted)
    _, sent = written(trace, scripted, {"step": 3, "id": None})
    new = sum(event["n"] for event in sent[-1]["events"][3:])
    assert sent[-1]["done"]["message"].startswith(f"Branch cut: {new} new tokens in ")


def test_a_character_that_begins_in_the_recording_and_ends_in_the_branch_is_whole():
    word = spelled("é€🤗")
    engine = engine_of(scripted_loaded(saying(word, start=len(PROMPT))))
    trace = recorded(engine, max_new_tokens=len(word), threshold=1.0)
    assert trace.text() == "é€🤗" and len(trace.events) == len(word)
    for step in range(1, len(word)):
        for data in ({"step": step, "id": None}, {"step": step, "place": 0, "id": word[step]}):
            _, sent = written(trace, engine, data)
            assert shown(sent[-1]).startswith("é€🤗") and "\ufffd" not in shown(sent[-1])


def test_a_branch_stops_at_a_stop_string_that_the_recording_knew():
    engine = engine_of(scripted_loaded(saying(spelled("one two three"), start=len(PROMPT))))
    trace = recorded(engine, stop_strings=("three",), threshold=1.0)
    assert trace.text() == "one two "
    _, sent = written(trace, engine, {"step": 2, "id": None})
    assert shown(sent[-1]) == "one two "


def test_a_branchs_events_are_numbered_behind_the_recordings(scripted):
    trace = recorded(scripted)
    branch = plan_branch(
        trace, scripted, {"step": 2, "place": 0, "id": trace.events[2].committed[0].id}, 0.9, True
    )
    going_on = Continuation(branch, scripted.vocabulary, scripted.loaded.stop_token_ids)
    start = going_on.recorded()
    rest = [going_on.continued(e) for e in scripted.stream(Request(branch.prompt_ids, branch.settings))]
    assert [told.index for told in (*start, *rest)] == list(range(3 + len(rest)))


def test_a_model_that_fails_leaves_what_was_written(caplog):
    loaded = scripted_loaded(always())
    engine = engine_of(loaded)
    trace = recorded(engine)
    count = len(loaded.model.fed)

    def fail(number: int) -> None:
        if number >= count + 2:
            raise RuntimeError("broken")

    loaded.model.before = fail
    _, sent = written(trace, engine, {"step": 1, "id": None})
    assert sent[-1]["done"]["reason"] == "error" and "RuntimeError" in sent[-1]["done"]["message"]
    assert len(shown(sent[-1])) > len(trace.events[0].committed)
