"""Events -> deltas: whatever way a run is cut into messages, a client ends with the same state."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from app.feed import Feed, Message, messages
from app.figures import Figures
from app.live_chart import LiveChart
from app.token_view import TokenView
from mars_core.events import StepEvent

from .scripted_events import answer, event, token

TEXT = "The moon is far.\n\nIt is round, it is cold, and nobody lives there yet.\n" * 4


class Client:
    """What the browser does with the messages, in few lines: the meaning of the protocol."""

    def __init__(self) -> None:
        self.run: str | None = None
        self.seq = -1
        self.events: list[dict[str, Any]] = []
        self.broken = False
        self.last: Message = {}

    def apply(self, message: Message) -> None:
        message = json.loads(json.dumps(message))
        if message["run"] == self.run and message["seq"] <= self.seq:
            return
        if message["run"] != self.run or (message["reset"] and self.broken):
            self.run, self.events, self.broken = message["run"], [], False
        self.seq, self.last = message["seq"], message
        for number, compact in enumerate(message["events"], start=message["from"]):
            self.broken |= number > len(self.events)
            if number >= len(self.events):
                self.events.append(compact)

    @property
    def text(self) -> str:
        """What stands in `.mars-text`."""
        text = "".join(cell["x"] for compact in self.events for cell in compact.get("c", []))
        done = self.last.get("done")
        if done is None:
            return text
        kept = text.encode("utf-16-le", "surrogatepass")[: 2 * done["length"]]
        return kept.decode("utf-16-le", "surrogatepass") + done["tail"]


def deltas(events: list[StepEvent], sizes: list[int]) -> list[Message]:
    """The messages of a caller that takes after `sizes[0]`, then `sizes[1]` … events."""
    feed = Feed(num_prompt_tokens=9)
    taken = [feed.take()]
    left = list(sizes)
    for step in events:
        feed.push(step)
        left[0] -= 1
        if left[0] <= 0:
            taken.append(feed.take())
            left = left[1:] or [1]
    return [message for message in [*taken, feed.final()] if message is not None]


def play(sent: list[Message]) -> Client:
    client = Client()
    for message in sent:
        client.apply(message)
    return client


@pytest.mark.parametrize("sizes", [[1], [2] * 99, [7, 1, 30, 2], [10_000]])
def test_every_chunking_ends_in_the_same_state(sizes: list[int]) -> None:
    events = answer(TEXT)
    client, whole = play(deltas(events, sizes)), play(deltas(events, [1]))
    assert client.text == TEXT
    assert client.events == whole.events
    assert client.last["figures"] == whole.last["figures"]
    assert client.last["done"] == whole.last["done"]


def test_one_lost_message_in_two_loses_nothing() -> None:
    sent = deltas(answer(TEXT), [3] * 99)
    client = play(sent[:-1][::2])
    assert not client.broken
    assert TEXT.startswith(client.text)


def test_the_final_message_repairs_a_client_that_lost_many() -> None:
    sent = deltas(answer(TEXT), [1])
    client = play([*sent[:5], *sent[20:22]])
    assert client.broken
    client.apply(sent[-1])
    assert not client.broken
    assert client.text == TEXT


def test_messages_that_come_twice_or_late_are_ignored() -> None:
    sent = deltas(answer(TEXT), [4] * 99)
    client = play([*sent[:6], sent[2], sent[5], *sent[6:], sent[3]])
    assert client.text == TEXT


def test_a_new_run_replaces_the_last() -> None:
    client = play([*deltas(answer("One."), [1]), *deltas(answer("Two."), [1])])
    assert client.text == "Two."


def test_take_is_none_when_nothing_is_new_and_the_first_clears() -> None:
    feed = Feed(num_prompt_tokens=3)
    first = feed.take()
    assert first is not None and first["reset"] and first["events"] == []
    assert feed.take() is None
    feed.push(event(0, [token("Hi")]))
    assert feed.take() is not None
    assert feed.take() is None


def test_bytes_of_a_message_do_not_grow_with_the_answer() -> None:
    sent = deltas(answer(TEXT * 12), [5] * 9999)[3:-1]
    sizes = [len(json.dumps(message)) for message in sent]
    third = len(sizes) // 3
    assert third > 30
    assert max(sizes[-third:]) < 1.3 * max(sizes[:third])
    assert max(sizes) < 20_000


def test_ghosts_are_those_of_the_newest_event_only() -> None:
    feed = Feed(num_prompt_tokens=3)
    for k, guess in enumerate([" old", " new"]):
        feed.push(event(k, [token("x")], [token("", "candidate", 0.4, label=guess)]))
    message = feed.take()
    assert message is not None
    assert [ghost["l"] for ghost in message["ghosts"]] == [" new"]
    assert feed.final()["ghosts"] == []


def test_the_tokens_of_one_character_share_a_cell() -> None:
    events = [
        event(0, [token("a"), token("", "accepted", label="⟨F0 9F⟩")]),
        event(1, [token("", label="⟨A4⟩"), token("🤗", "accepted", label="⟨97⟩"), token("!", "accepted")]),
    ]
    feed = Feed(num_prompt_tokens=3)
    feed.push(events[0])
    assert feed.snapshot()["waiting"] == ["⟨F0 9F⟩"]
    feed.push(events[1])
    first, second = feed.final()["events"]
    assert [cell["x"] for cell in first["c"]] == ["a"]
    assert first["n"] == 2
    emoji, mark = second["c"]
    assert emoji["x"] == "🤗"
    assert [(label, forward) for _, label, forward in emoji["q"]] == [("⟨F0 9F⟩", 0), ("⟨A4⟩", 1)]
    assert emoji["o"] == 2
    assert "q" not in mark
    assert feed.final()["waiting"] == []


def test_special_tokens_are_chips_without_text() -> None:
    client = play(deltas(answer("Hi."), [1]))
    (chip,) = client.events[-1]["c"]
    assert (chip["x"], chip["l"], chip["s"]) == ("", "<|im_end|>", 1)


def test_a_stop_string_is_no_part_of_the_text() -> None:
    feed = Feed(num_prompt_tokens=3)
    feed.push(event(0, [token("Yes 🤗"), token(" EN", "accepted")], text="Yes 🤗"))
    feed.push(event(1, [token("D")], text="", finish_reason="stop"))
    client = play([feed.final()])
    assert client.text == feed.text == "Yes 🤗"
    assert client.last["done"]["length"] == len("Yes 🤗") + 1


def test_a_run_that_ends_inside_a_character_shows_the_whole_answer() -> None:
    feed = Feed(num_prompt_tokens=3)
    feed.push(event(0, [token("a")]))
    feed.push(event(1, [token("", label="⟨F0⟩")], text="\ufffd", finish_reason="length"))
    client = play([feed.final()])
    assert client.text == feed.text == "a\ufffd"
    assert client.last["waiting"] == ["⟨F0⟩"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"finish_reason": "eos"}, "Answer finished: 1 token in 1 forward."),
        ({"finish_reason": "cancelled"}, "Stopped. 1 token in 1 forward."),
        ({}, "Stopped. 1 token in 1 forward."),
        ({"finish_reason": "error", "error": "Out of memory."}, "Out of memory."),
    ],
)
def test_every_ending_says_so_in_plain_words(fields: dict[str, Any], expected: str) -> None:
    feed = Feed(num_prompt_tokens=3)
    feed.push(event(0, [token("Hi")], **fields))
    assert feed.final()["done"]["message"] == expected


def test_tau_is_in_force_only_where_the_mode_knows_it() -> None:
    steps = [
        event(0, [token("a")], one_token=True, threshold=0.9),
        event(1, [token("b")], one_token=True, threshold=1.0),
        event(2, [token("c")], one_token=False, threshold=0.8),
    ]
    feed = Feed(num_prompt_tokens=3)
    for step in steps:
        feed.push(step)
    assert [compact["t"] for compact in feed.final()["events"]] == [None, 1.0, 0.8]


def test_figures_say_how_far_the_prompt_was_read() -> None:
    feed = Feed(num_prompt_tokens=900)
    feed.push(event(0, num_cached=0, window_length=512))
    assert feed.snapshot()["figures"]["num_prefilled"] == 512
    feed.push(event(1, [token("a")], prefill=True, num_cached=512, window_length=391))
    figures = feed.final()["figures"]
    assert figures["num_prefilled"] == 900
    assert (figures["num_forwards"], figures["num_tokens"]) == (1, 1)


def test_speed_up_is_hidden_until_it_was_measured() -> None:
    feed = Feed(num_prompt_tokens=3)
    assert feed.snapshot()["figures"]["speedup"] is None
    feed.speedup = 1.7
    assert feed.snapshot()["figures"]["speedup"] == 1.7


def test_with_the_entropy_metric_the_confidence_is_the_entropy() -> None:
    feed = Feed(num_prompt_tokens=3)
    feed.push(event(0, [token("a", probability=0.8)], metric="entropy", threshold=0.6))
    (compact,) = feed.final()["events"]
    assert compact["m"] == "e"
    assert compact["c"][0]["c"] == compact["c"][0]["h"] == 0.5


def test_messages_clears_at_once_and_ends_with_the_whole_state() -> None:
    feed = Feed(num_prompt_tokens=3)
    sent = list(messages(answer(TEXT), feed, interval_s=60))
    assert [bool(message["done"]) for message in sent] == [False, True]
    assert play(sent).text == TEXT


def test_components_send_only_what_they_draw() -> None:
    final = deltas(answer("A very secret text.") * 3, [4])[-1]
    sent = {part: part().postprocess(final) for part in (TokenView, LiveChart, Figures)}
    assert all(isinstance(value, str) for value in sent.values())
    assert "secret" in str(sent[TokenView])
    assert "secret" not in str(sent[LiveChart]) + str(sent[Figures])
    assert len(str(sent[Figures])) < 1000
    assert TokenView().preprocess(sent[TokenView]) == json.loads(json.dumps(final))
    assert TokenView().postprocess(None) is None


def test_templates_are_static() -> None:
    for part in (TokenView(), LiveChart(), Figures()):
        assert part.html_template == '<div class="mars-part"></div>'
        assert part.css_template == ""


def test_random_runs_agree_whatever_the_cut() -> None:
    draw = random.Random(4)
    for seed in range(20):
        pieces = [draw.choice(["a", " b", "\n", "\t", "é", "你", "<", "${x}", "`"]) for _ in range(40)]
        events = answer(pieces, counts=[draw.randint(1, 4) for _ in range(9)], seed=seed)
        sizes = [draw.randint(1, 6) for _ in range(60)]
        assert play(deltas(events, sizes)).text == "".join(pieces)
