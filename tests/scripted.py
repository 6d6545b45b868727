"""A model that says what the test wants, and remembers what it was fed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from mars_core.loaded import LoadedModel
from tests.tiny import tiny_tokenizer

MASK = 259
VOCABULARY = 272
# Which token follows the one at this position, and how likely it is; `masked` where a mask stands there.
Script = Callable[[int, bool], tuple[int, float]]


def always(token: Callable[[int], int] = lambda position: 65 + position % 26) -> Script:
    """Sure of every token, behind masks too."""
    return lambda position, masked: (token(position + 1), 1.0)


def never(token: Callable[[int], int] = lambda position: 65 + position % 26) -> Script:
    """Right behind masks and never sure there."""
    return lambda position, masked: (token(position + 1), 0.3 if masked else 1.0)


def sometimes(token: Callable[[int], int] = lambda position: 65 + position % 26) -> Script:
    """Sure behind a mask except at every third position."""
    return lambda position, masked: (token(position + 1), 0.3 if masked and position % 3 == 0 else 1.0)


def saying(tokens: list[int], start: int, sure: bool = True) -> Script:
    """These tokens from position `start` on, then 'Z' for ever."""

    def script(position: int, masked: bool) -> tuple[int, float]:
        offset = position + 1 - start
        token = tokens[offset] if 0 <= offset < len(tokens) else 90
        return token, 1.0 if sure or not masked else 0.3

    return script


class ScriptedModel(torch.nn.Module):
    """Duck-types what the engine uses of a model of transformers.

    Attributes:
        fed: for each forward, for each row, the (position, id) pairs of its real window; padding left out.
        before: called with the number of the forward before it; may raise.
    """

    def __init__(self, script: Script, vocabulary: int = VOCABULARY, **config: Any) -> None:
        super().__init__()
        self.script = script
        self.embedding = torch.nn.Embedding(vocabulary, 2)
        self.text_config = SimpleNamespace(
            layer_types=None, sliding_window=None, _attn_implementation="sdpa", dtype=torch.float32, **config
        )
        self.config = SimpleNamespace(get_text_config=lambda: self.text_config)
        self.fed: list[list[list[tuple[int, int]]]] = []
        self.before: Callable[[int], None] = lambda number: None

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embedding

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        cache: Any,
        use_cache: bool,
        logits_to_keep: int,
    ) -> SimpleNamespace:
        self.before(len(self.fed))
        ids, positions = input_ids.tolist(), position_ids.tolist()
        self.fed.append(_without_padding(positions, ids, cache))
        logits = torch.stack(
            [
                torch.stack([self._logits(p, i) for p, i in zip(row_p, row_i, strict=True)])
                for row_p, row_i in zip(positions, ids, strict=True)
            ]
        )
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])

    def _logits(self, position: int, token_id: int) -> torch.Tensor:
        token, probability = self.script(position, token_id == MASK)
        return logits_of(token, probability, self.embedding.num_embeddings)


def logits_of(token: int, probability: float, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Logits whose softmax gives `token` this probability and all others equal shares of the rest."""
    if math.isnan(probability):
        return torch.full((vocabulary,), math.nan)
    rest = max((1 - probability) / (vocabulary - 1), 1e-30)
    logits = torch.full((vocabulary,), math.log(rest))
    logits[token] = math.log(max(probability, 1e-30))
    return logits


def _without_padding(
    positions: list[list[int]], ids: list[list[int]], cache: Any
) -> list[list[tuple[int, int]]]:
    """For each row its (position, id) pairs, less those that the cache puts aside."""
    slots = cache.aim.slots
    slots = positions if isinstance(slots, slice) else slots.tolist()
    return [
        [(p, i) for p, i, slot in zip(*row, strict=True) if slot != cache.scratch_slot]
        for row in zip(positions, ids, slots, strict=True)
    ]


def scripted_loaded(script: Script, **changes: Any) -> LoadedModel:
    """A `LoadedModel` of a `ScriptedModel`; 256 and 258 stop, mask (259) and spare rows are suppressed."""
    fields: dict[str, Any] = dict(
        model=ScriptedModel(script),
        tokenizer=tiny_tokenizer(),
        mask_token_id=MASK,
        block_size=4,
        device=torch.device("cpu"),
        dtype=torch.float32,
        stop_token_ids=frozenset({256, 258}),
        suppressed_token_ids=tuple(range(MASK, VOCABULARY)),
        context_length=4096,
        mars_tuned=True,
        name="scripted",
    )
    return LoadedModel(**(fields | changes))


def slow_letters(pause_s: float) -> LoadedModel:
    """Letters for ever, four a forward, and so many seconds before each forward."""
    loaded = scripted_loaded(always(), context_length=4096)
    loaded.model.before = lambda number: time.sleep(pause_s)
    return loaded
