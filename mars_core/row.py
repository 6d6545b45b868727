"""One request on its way through the engine."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from .acceptance import Prediction, Sampler, accepted_length, check_numbers, make_sampler, verified_length
from .errors import MarsError
from .events import Alternative, Decided, FinishReason, StepEvent, TokenChoice
from .loaded import LoadedModel
from .planner import Situation
from .proposals import MOST_LOOKED_UP, Proposals
from .settings import DecodeSettings, LiveSettings, LiveValues, one_token_mode
from .text import StopStrings, Vocabulary
from .window import RowWindow


@dataclass(frozen=True)
class Request:
    """What a caller asks the engine for.

    Attributes:
        prompt_ids: the whole prompt, chat template applied.
        settings: how to decode.
        live: a handle that may change τ, metric and B, or cancel, while it runs. Starts at `settings`.
    """

    prompt_ids: Sequence[int]
    settings: DecodeSettings = field(default_factory=DecodeSettings)
    live: LiveSettings | None = None


def check_request(request: Request, loaded: LoadedModel) -> None:
    """Refuse what cannot work before anything is computed. Raises `MarsError`."""
    _check_ids(request.prompt_ids, loaded)
    settings, num_prompt = request.settings, len(request.prompt_ids)
    if settings.stop_strings and loaded.tokenizer is None:
        raise MarsError("stop_strings need a tokenizer, and this model was given without one.")
    # masks and drafts take no positions beyond the last token that may be committed
    room = loaded.context_length - num_prompt
    if room < settings.max_new_tokens:
        raise MarsError(
            f"The prompt has {num_prompt} tokens and max_new_tokens is {settings.max_new_tokens}, but the "
            f"model's context holds {loaded.context_length}: shorten the prompt"
            + (f" or ask for at most {room} tokens." if room > 0 else ".")
        )


def _check_ids(prompt_ids: Sequence[int], loaded: LoadedModel) -> None:
    if prompt_ids is None or not len(prompt_ids):
        raise MarsError("prompt_ids is empty: there is nothing to continue.")
    table_rows = loaded.num_embeddings
    try:
        known = all(0 <= operator.index(token_id) < table_rows for token_id in prompt_ids)
    except TypeError as error:
        raise MarsError("prompt_ids holds more than whole numbers: give one list of ids.") from error
    if not known:
        raise MarsError(f"prompt_ids holds ids outside 0 … {table_rows - 1}, the model's vocabulary.")


class Row:
    """A request's state: its tokens, how many of them are cached, its text, its events not yet taken.

    Lengths are numbers; nothing is ever told from a token's value, but for stopping.
    """

    def __init__(self, request: Request, loaded: LoadedModel, vocabulary: Vocabulary) -> None:
        settings = request.settings
        self.settings = settings
        self.live = request.live or LiveSettings(settings.live_values())
        self.vocabulary = vocabulary
        self.mask_token_id = loaded.mask_token_id
        self.tokens = [operator.index(token_id) for token_id in request.prompt_ids]
        self.num_prompt = len(self.tokens)
        self.num_cached = 0
        self.num_forwards = 0
        self.sampler: Sampler | None = make_sampler(settings, loaded.device)
        self.proposals = Proposals(self.sampler, loaded.last_mask)
        self.stop_ids = frozenset() if settings.ignore_eos else loaded.stop_token_ids
        self.stop_ids |= frozenset(settings.stop_token_ids)
        self.text = vocabulary.stream()
        self.stop_strings = StopStrings(settings.stop_strings)
        self.events: SimpleQueue[StepEvent | None] = SimpleQueue()  # not yet taken; None behind the last
        self.last_event: StepEvent | None = None
        self.error: BaseException | None = None
        self.abandoned = False  # its caller is gone; set from any thread, at any time
        self.finish_reason: FinishReason | None = None
        self.started = time.perf_counter()

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None or self.abandoned

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.settings.max_new_tokens - (len(self.tokens) - self.num_prompt)

    @property
    def most_slots(self) -> int:
        """Slots of the cache that this row needs at most: its tokens, and the widest window behind them."""
        widest = (self.settings.block_size + 1) ** 2 + MOST_LOOKED_UP
        return self.num_prompt + self.settings.max_new_tokens + widest

    @property
    def in_prefill(self) -> bool:
        """True until the whole prompt has been fed."""
        return self.num_cached < self.num_prompt

    def next_window(self, live: LiveValues, chunk: int, situation: Situation) -> RowWindow:
        """What this row feeds next: at most `chunk` tokens of the prompt, or all that were committed and are
        not cached yet; behind the last of all, drafts and masks."""
        end = self.num_cached + chunk if self.in_prefill else None
        pending = self.tokens[self.num_cached : end]
        if self.num_cached + len(pending) < len(self.tokens):
            return RowWindow(pending, self.num_cached)
        if self._one_token(live):
            self.proposals.drop()
            return RowWindow(pending, self.num_cached, (), [0])
        room = self.num_remaining - 1  # beside the token that every forward commits
        drafts, groups = self.proposals.next(live, self.tokens, room, situation)
        return RowWindow(pending, self.num_cached, drafts, groups)

    def _one_token(self, live: LiveValues) -> bool:
        return one_token_mode(self.settings.mode, live.threshold, live.metric, live.verify)

    def commit(
        self, window: RowWindow, predictions: list[Prediction], live: LiveValues, start: float, num_rows: int
    ) -> None:
        """Take one forward's outcome: commit tokens, advance the cursor, note the event.

        Args:
            window: what the forward was fed for this row.
            predictions: for the last token fed, each draft and each mask; empty for a chunk of the prompt.
            live: the values the window was built with.
            start: `time.perf_counter` when the step began.
            num_rows: rows that shared the forward.
        """
        check_numbers(predictions)
        prefill = self.in_prefill
        num_verified = verified_length(window.drafts, predictions)
        group = window.group(num_verified) if predictions else slice(0, 0)
        behind_masks = predictions[group]
        line = predictions[: num_verified + 1]
        num_accepted = accepted_length([*line[-1:], *behind_masks], live) - 1 if line else 0
        committed, pieces = self._take([*line, *behind_masks[:num_accepted]], num_verified)
        self.num_cached = min(self.num_cached + len(window.tokens) + num_verified, len(self.tokens))
        if predictions:
            self.proposals.learn(window, num_verified, num_accepted)
            self.proposals.keep(slice(group.start + num_accepted, group.stop), predictions, live)
        now = time.perf_counter()
        event = StepEvent(
            index=self.num_forwards,
            prefill=prefill,
            committed=committed,
            candidates=tuple(
                self._choice(p, "candidate", "") for p in _rest(line, behind_masks, len(committed))
            ),
            text="".join(pieces),
            threshold=live.threshold,
            metric=live.metric,
            block_size=live.block_size,
            one_token=self._one_token(live),
            window_length=window.length,
            num_cached=window.start,
            seconds=now - start,
            elapsed=now - self.started,
            finish_reason=self.finish_reason,
            num_rows=num_rows,
            num_drafts=len(window.drafts),
            verify=live.verify,
        )
        self.num_forwards += 1
        self.last_event = event
        self.events.put(event)

    def _take(
        self, predictions: list[Prediction], num_verified: int
    ) -> tuple[tuple[TokenChoice, ...], list[str]]:
        """Commit these one by one, up to the one that ends the generation."""
        committed: list[TokenChoice] = []
        pieces: list[str] = []
        for offset, prediction in enumerate(predictions):
            self.tokens.append(prediction.id)
            # what ends the generation is no part of the text, even if it is an ordinary token
            piece = "" if prediction.id in self.stop_ids else self.text.push(prediction.id)
            pieces.append(self.stop_strings.push(piece))
            committed.append(self._choice(prediction, _decided(offset, num_verified), piece))
            self.finish_reason = self._reason_to_end(prediction.id)
            if self.finish_reason:
                pieces.append(self._last_text())
                break
        return tuple(committed), pieces

    def _reason_to_end(self, token_id: int) -> FinishReason | None:
        if token_id in self.stop_ids:
            return "eos"
        if self.stop_strings.found:
            return "stop"
        return "length" if self.num_remaining <= 0 else None

    def _last_text(self) -> str:
        """What the text streams still hold, unless a stop string ended the text."""
        if self.stop_strings.found:
            return ""
        rest = self.stop_strings.push(self.text.finish())
        return rest if self.stop_strings.found else rest + self.stop_strings.finish()

    def _choice(self, prediction: Prediction, decided: Decided, text: str) -> TokenChoice:
        label = self.vocabulary.label
        return TokenChoice(
            id=prediction.id,
            text=text,
            label=label(prediction.id),
            special=prediction.id in self.vocabulary.special_ids or prediction.id in self.stop_ids,
            decided=decided,
            sampled=self.sampler is not None,
            probability=prediction.probability,
            margin=prediction.margin,
            entropy=prediction.entropy,
            # the forward may have named more, for another row
            alternatives=tuple(
                Alternative(i, label(i), p) for i, p in prediction.best[: self.settings.num_alternatives]
            ),
        )

    def cancel(self) -> None:
        """End without another forward; tell so in a last event that commits nothing."""
        self.finish_reason = "cancelled"
        last = StepEvent.without_forward(
            self.last_event, self.live.read(), "cancelled", text=self._last_text()
        )
        self.events.put(last)


def _decided(offset: int, num_verified: int) -> Decided:
    """How the token at this place of a forward's committed tokens was decided."""
    if offset < num_verified:
        return "verified"
    return "ar" if offset == num_verified else "accepted"


def _rest(line: list[Prediction], behind_masks: list[Prediction], num_committed: int) -> list[Prediction]:
    """The predictions that were not committed, in order."""
    return [*line, *behind_masks][num_committed:]
