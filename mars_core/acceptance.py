"""Confidence, choice of tokens and left-to-right acceptance: pure functions on logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .settings import DecodeSettings, LiveValues, never_accepts

# A packed prediction carries token ids as float32, which holds whole numbers exactly up to here.
MAX_VOCABULARY = 2**24
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says about one position, on the host.

    Attributes:
        id: the chosen token.
        probability: p(id); margin: p₁ − p₂; entropy: −Σ p ln p in nats. All of the untempered softmax.
        best: the likeliest tokens with their probabilities, best first.
    """

    id: int
    probability: float
    margin: float
    entropy: float
    best: tuple[tuple[int, float], ...]

    def passes(self, live: LiveValues) -> bool:
        """True where this prediction, made behind a mask, is sure enough to be committed."""
        if never_accepts(live.threshold, live.metric):
            return False
        if live.metric == "entropy":
            return self.entropy <= live.threshold
        confidence = self.margin if live.metric == "margin" else self.probability
        return confidence >= live.threshold


class Sampler:
    """Draws tokens at a temperature, from its own random stream (so that rows never disturb each other)."""

    def __init__(self, settings: DecodeSettings, device: torch.device) -> None:
        self.generator = torch.Generator(device)
        if settings.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(settings.seed)
        self.warpers = LogitsProcessorList([TemperatureLogitsWarper(float(settings.temperature))])
        if settings.top_k:
            self.warpers.append(TopKLogitsWarper(settings.top_k))
        if settings.top_p < 1:
            self.warpers.append(TopPLogitsWarper(settings.top_p))
        self._drafted_from: torch.Tensor | None = None  # q of the drafts to come; None: point masses

    def draw(self, logits: torch.Tensor, drafts: Sequence[int] = ()) -> torch.Tensor:
        """One token for each position: float32 logits [K, V] -> ids [K].

        The first len(drafts) positions are those that verify the drafts, in order: speculative sampling
        (arXiv 2211.17192, 2302.01318). A draft x, drawn from q in the forward before, is kept with
        probability min(1, p(x)/q(x)), else replaced by a draw from max(0, p − q): never x itself, so that
        a kept draft can be told by comparing. The distribution is that of drawing from p. A draft that was
        not drawn but looked up has q = 1 at itself.
        """
        # The warpers look at the scores alone; input_ids is part of their interface only.
        scores = self.warpers(input_ids=None, scores=logits)  # type: ignore[arg-type]
        # Where the model returned NaN any token will do, `predict` refuses the position; to draw from NaN
        # is an error here that would hit the whole batch, and on CUDA one that ends the process.
        probabilities = scores.softmax(-1).nan_to_num(1.0)
        ids = self._multinomial(probabilities)
        if drafts:
            ids[: len(drafts)] = self._verified(probabilities[: len(drafts)], drafts)
        self._probabilities = probabilities
        return ids

    def keep(self, positions: slice) -> None:
        """Remember the distributions of the last draw's positions whose tokens become the next drafts."""
        self._drafted_from = self._probabilities[positions]

    def drafts_are_certain(self) -> None:
        """The next drafts were not drawn from any distribution."""
        self._drafted_from = None

    def _verified(self, p: torch.Tensor, drafts: Sequence[int]) -> torch.Tensor:
        x = torch.tensor(drafts, device=p.device)[:, None]
        if self._drafted_from is None:
            q = torch.zeros_like(p).scatter_(1, x, 1.0)
        else:
            q = self._drafted_from[: len(drafts)]
        kept = torch.rand(x.shape, device=p.device, generator=self.generator) < p.gather(1, x) / q.gather(
            1, x
        )
        residual = (p - q).clamp(min=0)
        # p = q leaves nothing; then the draft is kept whatever is drawn here
        residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)
        return torch.where(kept[:, 0], x[:, 0], self._multinomial(residual))

    def _multinomial(self, weights: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(weights, 1, generator=self.generator)[:, 0]


def make_sampler(settings: DecodeSettings, device: torch.device) -> Sampler | None:
    """The sampler that the settings ask for; None is greedy."""
    return Sampler(settings, device) if settings.temperature > 0 else None


def predict(
    logits: torch.Tensor,
    samplers: Sequence[Sampler | None],
    suppressed: torch.Tensor,
    num_best: int,
    num_positions: Sequence[int] | None = None,
    drafts: Sequence[Sequence[int]] | None = None,
) -> list[list[Prediction]]:
    """Choose a token at every position and say how sure the model is of it.

    Args:
        logits: [R, K, V], any float type; row r's positions are in order.
        samplers: one for each row; None is greedy (argmax).
        suppressed: ids [S] that can never be chosen: ruled out before any softmax, so that confidence
            is that of what is left.
        num_best: how many of the likeliest tokens to name.
        num_positions: how many of its last positions row r uses (default: all K); the others are not
            drawn for and not returned.
        drafts: those that row r's first positions verify (only sampling needs them; default: none).

    Returns:
        for each row its predictions, in order. Read back from the device in one transfer. Where the model
        returned NaN the prediction's figures are NaN: see `check_numbers`.
    """
    # the lowest finite number, not -inf: its probability is 0 too, and 0 · -inf would be NaN in the entropy
    logits = logits.to(torch.float32, copy=True).index_fill_(-1, suppressed, _LOWEST).clamp_(min=_LOWEST)
    num_rows, num_columns, _ = logits.shape
    counts = [num_columns] * num_rows if num_positions is None else list(num_positions)
    ids = logits.argmax(-1)
    for row, sampler in enumerate(samplers):
        if sampler is not None:
            used = slice(num_columns - counts[row], None)
            ids[row, used] = sampler.draw(logits[row, used], drafts[row] if drafts else ())
    packed = _pack(logits, ids, num_best).tolist()
    return [
        [_unpack(values, num_best) for values in row[num_columns - count :]]
        for row, count in zip(packed, counts, strict=True)
    ]


def _pack(logits: torch.Tensor, ids: torch.Tensor, num_best: int) -> torch.Tensor:
    """[R, K, 4 + 2·max(num_best, 2)]: id, p(id), margin, entropy, best ids, their probabilities.

    Fewer best where the vocabulary has not as many.
    """
    probabilities = logits.softmax(-1)
    best = logits.topk(min(max(num_best, 2), logits.shape[-1]), dim=-1)
    best_probabilities = probabilities.gather(-1, best.indices)
    # H = −Σ p ln p with ln p = logit − ln Z, so that no logarithm is taken of the whole vocabulary
    log_z = best.values[..., 0] - best_probabilities[..., 0].log()
    entropy = (log_z - torch.linalg.vecdot(probabilities, logits)).clamp(min=0)
    columns = [
        ids.unsqueeze(-1).float(),
        probabilities.gather(-1, ids.unsqueeze(-1)),
        best_probabilities[..., :1] - best_probabilities[..., 1:2],
        entropy.unsqueeze(-1),
        best.indices.float(),
        best_probabilities,
    ]
    return torch.cat(columns, -1)


def _unpack(values: list[float], num_best: int) -> Prediction:
    token_id, probability, margin, entropy, *rest = values
    half = len(rest) // 2
    best = [(int(i), p) for i, p in zip(rest[:half], rest[half:], strict=True)][:num_best]
    return Prediction(int(token_id), probability, margin, entropy, tuple(best))


def check_numbers(predictions: Sequence[Prediction]) -> None:
    """Raises `ArithmeticError` where the model returned NaN: nothing may be decided from it."""
    if any(math.isnan(prediction.probability) for prediction in predictions):
        raise ArithmeticError("The model returned values that are not numbers (NaN).")


def verified_length(drafts: Sequence[int], predictions: Sequence[Prediction]) -> int:
    """How many leading drafts are what the model says where they stand.

    Example: drafts 5 7 9, predictions 5 7 8 … -> 2.
    """
    length = 0
    while length < len(drafts) and predictions[length].id == drafts[length]:
        length += 1
    return length


def accepted_length(predictions: Sequence[Prediction], live: LiveValues) -> int:
    """How many leading predictions are committed.

    The first always is (no mask lies before it, it is the AR prediction); then left to right while they
    pass; the first that does not ends it, however sure a later one may be.

    Example: probabilities 0.3, 0.95, 0.7, 0.99 at τ = 0.9 -> 2.
    """
    length = 1
    while length < len(predictions) and predictions[length].passes(live):
        length += 1
    return min(length, len(predictions))
