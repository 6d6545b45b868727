"""Branching off a recorded run: where, with which token, and how the answer goes on from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mars_core import DecodeSettings, Engine, MarsError, StepEvent, TokenChoice, Trace
from mars_core.text import StopStrings, Vocabulary

FEWEST_NEW_TOKENS, MOST_NEW_TOKENS = 16, 2048


@dataclass(frozen=True)
class Branch:
    """A run that starts inside a recorded one.

    Attributes:
        shared: forwards of the recording that stay as they are.
        taken: the next forward, cut behind the token that was chosen; None where nothing of it stays.
        answer_ids: tokens of the answer that the branch starts with: those of `shared` and `taken`.
        prompt_ids: what the model is fed: the recording's prompt, then `answer_ids`.
        settings: how the rest is decoded.
    """

    shared: tuple[StepEvent, ...]
    taken: StepEvent | None
    answer_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    settings: DecodeSettings


def why_no_branch(trace: Trace, engine: Engine | None) -> str:
    """Why this page cannot branch off this trace, in a sentence; "" where it can."""
    if engine is None:
        return "Branching needs a model, and this page runs without one."
    if not trace.events or not trace.prompt_ids:
        return "There is nothing to branch from in this run."
    difference = _tokenizer_difference(trace, engine)
    if difference:
        return f"Branching is off: this run was recorded with another tokenizer ({difference})."
    return ""


def _tokenizer_difference(trace: Trace, engine: Engine) -> str:
    """The first token that the trace and the loaded model's tokenizer spell differently."""
    labels = dict.fromkeys(_labels(trace))
    largest = max(*trace.prompt_ids, 0, *(token_id for token_id, _ in labels))
    if largest >= engine.num_embeddings:
        return f"it has a token {largest}, the model's last is {engine.num_embeddings - 1}"
    for token_id, label in labels:
        own = engine.vocabulary.label(token_id)
        if own != label:
            return f"token {token_id} is {label[:40]!r} there and {own[:40]!r} here"
    return ""


def _labels(trace: Trace) -> Iterator[tuple[int, str]]:
    for event in trace.events:
        for choice in (*event.committed, *event.candidates):
            yield choice.id, choice.label
            for other in choice.alternatives:
                yield other.id, other.label


def plan_branch(trace: Trace, engine: Engine, data: Any, threshold: float, verify: bool) -> Branch:
    """What a visitor asked for.

    Args:
        data: ``step`` (number of the event), ``place`` (among what it predicted) and ``id`` (one of the
            tokens named there; None for a branch in front of all that this step committed).
        threshold, verify: for the rest of the answer.

    Raises:
        MarsError: there is no such place or token, or the model cannot go on from there.
    """
    reason = why_no_branch(trace, engine)
    if reason:
        raise MarsError(reason)
    step, place, token_id = _place(data, trace)
    shared, taken = trace.events[:step], _taken(trace.events[step], place, token_id)
    kept = [choice for event in (*shared, taken) if event for choice in event.committed]
    if any(choice.id in engine.loaded.stop_token_ids for choice in kept):
        raise MarsError("The answer ends before that place, or with that token: nothing can follow there.")
    answer_ids = tuple(choice.id for choice in kept)
    settings = _settings(trace, len(answer_ids), threshold, verify)
    return Branch(shared, taken, answer_ids, (*trace.prompt_ids, *answer_ids), settings)


def _place(data: Any, trace: Trace) -> tuple[int, int, int | None]:
    fields = data if isinstance(data, dict) else {}
    step, place, token_id = (fields.get(name) for name in ("step", "place", "id"))
    if type(step) is int and 0 <= step < len(trace.events):
        event = trace.events[step]
        if token_id is None:
            return step, 0, None
        if type(place) is int and 0 <= place < len(event.committed) + len(event.candidates):
            if type(token_id) is int:
                return step, place, token_id
    raise MarsError("That forward or token is not part of this run.")


def _taken(event: StepEvent, place: int, token_id: int | None) -> StepEvent | None:
    """The forward with its predictions up to `place`, there the token that was chosen."""
    if token_id is None:
        return None
    predictions = [*event.committed, *event.candidates]
    kept = [*predictions[:place], _named(predictions[place], token_id)]
    committed = tuple(_by_hand(choice) if choice.decided == "candidate" else choice for choice in kept)
    return dataclasses.replace(event, committed=committed, candidates=(), finish_reason=None)


def _named(there: TokenChoice, token_id: int) -> TokenChoice:
    """The token that was chosen at a place: the model's own choice there, or an alternative."""
    if token_id == there.id:
        return there
    for other in there.alternatives:
        if other.id == token_id:
            chosen = dataclasses.replace(
                there, id=other.id, label=other.label, probability=other.probability, special=False
            )
            return _by_hand(chosen)
    raise MarsError("That token is not among those that the run names at this place.")


def _by_hand(choice: TokenChoice) -> TokenChoice:
    return dataclasses.replace(choice, decided="chosen", sampled=False)


def _settings(trace: Trace, num_answer: int, threshold: float, verify: bool) -> DecodeSettings:
    """The recording's own, but for what the visitor set. Raises `MarsError` where they make no sense."""
    recorded: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in trace.settings.items()
    }
    try:
        before = DecodeSettings(**recorded)
        left = min(max(before.max_new_tokens - num_answer, FEWEST_NEW_TOKENS), MOST_NEW_TOKENS)
        return dataclasses.replace(
            before, mode="mars", threshold=threshold, verify=verify, max_new_tokens=left
        )
    except (TypeError, MarsError) as error:
        raise MarsError(f"The settings of this run cannot be used: {error}") from error


class Continuation:
    """Events of a branch as a continuation of the recording's: their numbers, and their text, which goes on
    from the tokens before it (a character may begin in the recording and end in the branch)."""

    def __init__(self, branch: Branch, vocabulary: Vocabulary, stop_ids: frozenset[int]) -> None:
        self._branch = branch
        self._stop_ids = stop_ids
        self._stream = vocabulary.stream()
        self._stops = StopStrings(branch.settings.stop_strings)
        self._offset = len(branch.shared)

    def recorded(self) -> list[StepEvent]:
        """What the branch starts with: the shared forwards, and the one that was cut. To be called once,
        first."""
        events = list(self._branch.shared)
        released = [self._push(choice)[1] for event in events for choice in event.committed]
        if self._branch.taken is None:
            return events
        self._offset += 1
        cut = self._continued(self._branch.taken)
        # a forward tells all that is certain, which may be more than its own tokens
        told = sum(len(event.text) for event in events)
        return [*events, dataclasses.replace(cut, text=("".join(released) + cut.text)[told:])]

    def continued(self, event: StepEvent) -> StepEvent:
        """An event of the engine, for the branch's own request, as part of the whole answer."""
        event = self._continued(event)
        text = event.text
        if event.finish_reason and not self._stops.found:
            text += self._stops.push(self._stream.finish()) + self._stops.finish()
        return dataclasses.replace(event, index=event.index + self._offset, text=text)

    def _continued(self, event: StepEvent) -> StepEvent:
        """The event with the text that its tokens add to what stands before them."""
        pairs = [self._push(choice) for choice in event.committed]
        committed = tuple(
            dataclasses.replace(choice, text=piece)
            for choice, (piece, _) in zip(event.committed, pairs, strict=True)
        )
        return dataclasses.replace(
            event, committed=committed, text="".join(released for _, released in pairs)
        )

    def _push(self, choice: TokenChoice) -> tuple[str, str]:
        """What a token adds to the text, and what of it all is certain now."""
        piece = "" if choice.id in self._stop_ids else self._stream.push(choice.id)
        return piece, self._stops.push(piece)
