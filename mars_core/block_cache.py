"""The paper's block-level KV cache, as published, for comparison with the cursor cache.

A batch shares block boundaries every `cache_block` generated tokens. Within a block the prefix cache is
frozen: every forward feeds a row's whole block again, the tokens committed so far and masks behind them. A
row that has filled the block waits; when every row has, the block is fed once more, real tokens only, which
extends the prefix cache (arXiv 2604.07023, block-level caching of a batch).

This is the one decoding loop besides the engine's. It shares all but the loop with it: what a forward is
fed, where keys and values go, how a token is chosen and accepted. So what a benchmark finds between the two
is the scheme itself. A block's first token is predicted by the last token of the prefix, so the forward that
extends the cache (or fills it with the prompts) commits it, and no forward passes without a token. Three
things are cheaper than published and change no token:

- Masks whose predictions this forward could not commit are left out: nothing before them attends to them.
- Rows that wait or have ended are left out of the forward.
- Prompts are not padded inside the cache: each row has its own slots from 0 on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .acceptance import Prediction, accepted_length, check_numbers, make_sampler, predict
from .devices import synchronize
from .errors import MarsError
from .forward import Forward
from .loaded import LoadedModel
from .row import Request, check_request
from .settings import DecodeSettings, one_token_mode
from .window import RowWindow


@dataclass(frozen=True)
class BlockResult:
    """What `block_generate` did.

    Attributes:
        tokens: each row's committed tokens in order, the end-of-sequence token included.
        num_forwards: all forwards of the batch; the prefill counts as one.
        num_extending_forwards: those among them that fed a full block again to extend the cache. The
            prefill is not one of them.
        prefill_s: seconds up to the end of the prefill, which commits the first token of every row.
        decode_s: seconds from there to the last token.
    """

    tokens: tuple[tuple[int, ...], ...]
    num_forwards: int
    num_extending_forwards: int
    prefill_s: float
    decode_s: float

    @property
    def num_tokens(self) -> int:
        """Committed tokens of all rows."""
        return sum(len(row) for row in self.tokens)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all rows together committed in a second after the prefill; 0 where there were none."""
        num_decoded = self.num_tokens - len(self.tokens)
        return num_decoded / self.decode_s if num_decoded else 0.0


@torch.inference_mode()
def block_generate(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], settings: DecodeSettings, *, cache_block: int
) -> BlockResult:
    """Decode a batch with the block-level cache.

    Args:
        loaded: the model.
        prompts: token ids of each row, of any lengths.
        settings: of all rows. With a seed every row draws from a stream of its own that starts there, as if
            it were alone. `num_alternatives` plays no part, there are no events.
        cache_block: generated tokens from one extension of the cache to the next, `B_cache` in the paper;
            need not be a multiple of the model's block size.

    Raises:
        MarsError: the batch cannot work; nothing has been computed.
        ArithmeticError: the model returned NaN.
    """
    _check(loaded, prompts, settings, cache_block)
    return _Batch(loaded, prompts, settings, cache_block).run()


def _check(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], settings: DecodeSettings, cache_block: int
) -> None:
    if isinstance(cache_block, bool) or not isinstance(cache_block, int) or cache_block < 1:
        raise MarsError(f"cache_block is {cache_block!r}; allowed is a whole number, 1 or more.")
    if settings.verify:
        raise MarsError("verify is True; the block-level cache keeps no drafts: set it to False.")
    if settings.stop_strings:
        raise MarsError("stop_strings are given; the block-level cache makes no text: give stop_token_ids.")
    if not len(prompts) or any(isinstance(prompt, int) for prompt in prompts):
        raise MarsError("prompts must be a list of prompts, each a list of token ids, and not empty.")
    for prompt in prompts:
        check_request(Request(prompt, settings), loaded)


class _Row:
    """One prompt on its way.

    `num_cached` is the length of the frozen prefix; what follows it in `tokens` is the current block.
    """

    def __init__(
        self, place: int, prompt: Sequence[int], settings: DecodeSettings, loaded: LoadedModel
    ) -> None:
        self.place = place  # in the cache
        self.tokens = [int(token_id) for token_id in prompt]
        self.num_prompt = len(self.tokens)
        self.num_cached = 0
        self.sampler = make_sampler(settings, loaded.device)
        self.num_remaining = settings.max_new_tokens
        self.ended = False

    def window(self, num_masks: int) -> RowWindow:
        """The whole current block (at first: the prompt), and masks behind it."""
        return RowWindow(self.tokens[self.num_cached :], self.num_cached, groups=[num_masks])

    def room(self, cache_block: int) -> int:
        """Tokens that may still be committed in the current block."""
        if self.ended:
            return 0
        return min(cache_block - (len(self.tokens) - self.num_cached), self.num_remaining)

    def commit(self, predictions: Sequence[Prediction], stop_ids: frozenset[int]) -> None:
        """Append these tokens, up to the one that ends the row."""
        for prediction in predictions:
            self.tokens.append(prediction.id)
            self.num_remaining -= 1
            self.ended = prediction.id in stop_ids or self.num_remaining == 0
            if self.ended:
                return


class _Batch:
    """All rows, their cache, and how many forwards it took."""

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: Sequence[Sequence[int]],
        settings: DecodeSettings,
        cache_block: int,
    ) -> None:
        self.loaded = loaded
        self.live = settings.live_values()
        self.cache_block = cache_block
        one_token = one_token_mode(settings.mode, settings.threshold, settings.metric)
        self.most_masks = 0 if one_token else settings.block_size - 1
        self.stop_ids = frozenset(settings.stop_token_ids)
        self.stop_ids |= frozenset() if settings.ignore_eos else loaded.stop_token_ids
        self.rows = [_Row(place, prompt, settings, loaded) for place, prompt in enumerate(prompts)]
        self.forward = Forward(loaded)
        self.num_forwards = 0
        self._suppressed = torch.tensor(loaded.suppressed_token_ids, dtype=torch.long, device=loaded.device)

    def run(self) -> BlockResult:
        """Decode until every row has ended."""
        start = self._clock()
        self._extend(self.rows)
        prefilled = self._clock()
        self._fill()
        num_extending = 0
        while going_on := [row for row in self.rows if not row.ended]:
            self._extend(going_on)
            num_extending += 1
            self._fill()
        return BlockResult(
            tokens=tuple(tuple(row.tokens[row.num_prompt :]) for row in self.rows),
            num_forwards=self.num_forwards,
            num_extending_forwards=num_extending,
            prefill_s=prefilled - start,
            decode_s=self._clock() - prefilled,
        )

    def _extend(self, rows: Sequence[_Row]) -> None:
        """Feed each row's block once more (at first: its prompt) to have it in the prefix cache.

        The last token's logits predict the first token of the block that begins with this.
        """
        for row, predictions in zip(rows, self._predict(rows, [row.window(0) for row in rows]), strict=True):
            row.num_cached = len(row.tokens)
            row.commit(predictions, self.stop_ids)

    def _fill(self) -> None:
        """Forwards over the block until every row has filled it or ended."""
        while filling := [row for row in self.rows if row.room(self.cache_block) > 0]:
            # more masks than there is room for would predict what cannot be committed
            windows = [row.window(min(self.most_masks, row.room(self.cache_block) - 1)) for row in filling]
            for row, predictions in zip(filling, self._predict(filling, windows), strict=True):
                row.commit(predictions[: accepted_length(predictions, self.live)], self.stop_ids)

    def _predict(self, rows: Sequence[_Row], windows: Sequence[RowWindow]) -> list[list[Prediction]]:
        """One forward: for each row the predictions at its last token and at its masks."""
        self.forward.cache.reserve(len(self.rows), max(window.end for window in windows))
        logits = self.forward.logits([row.place for row in rows], windows)
        self.num_forwards += 1
        counts = [window.num_predictions for window in windows]
        predictions = predict(logits, [row.sampler for row in rows], self._suppressed, 0, counts)
        for of_row in predictions:
            check_numbers(of_row)
        return predictions

    def _clock(self) -> float:
        """Seconds, with nothing left for the device to do."""
        synchronize(self.loaded.device)
        return time.perf_counter()
