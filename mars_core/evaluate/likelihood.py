"""Held-out likelihood: how well a model, one token at a time, foretells answers it was not trained on.

The clean stream of training is this very thing: no mask in sight. What is measured is the sum over answer
tokens (each answer's end of turn included) of −ln p, by the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from ..errors import MarsError
from ..loaded import LoadedModel
from ..train.data import DataSettings, load_data
from ..train.examples import Example
from .intervals import Interval, ratio_interval
from .scoring import TOKENS_PER_BATCH, Scored, score


@dataclass(frozen=True)
class Likelihood:
    """Of one model.

    Attributes:
        examples: the names of the conversations.
        nll: −Σ ln p of each one's answer tokens.
        num_tokens: how many those are.
    """

    examples: tuple[str, ...]
    nll: tuple[float, ...]
    num_tokens: tuple[int, ...]

    @property
    def per_token(self) -> float:
        """Nats a token, over all examples together."""
        return sum(self.nll) / sum(self.num_tokens)

    @property
    def perplexity(self) -> float:
        """e to that."""
        return exp(self.per_token)

    def interval(self) -> Interval:
        """95 %, of `per_token`: bootstrap over examples."""
        return ratio_interval(self.nll, self.num_tokens)


@dataclass(frozen=True)
class Comparison:
    """By how much one model's negative log-likelihood is above another's, relative to the other's.

    Attributes:
        difference: 0.01 is 1 % worse; below 0 is better.
        interval: 95 %: paired bootstrap over examples.
    """

    difference: float
    interval: Interval


def held_out_examples(loaded: LoadedModel, settings: DataSettings) -> tuple[list[Example], dict[str, int]]:
    """Examples to measure on, and counts of what was read and left out.

    With ``held_out`` above 0, those that training with the same files, number and seed sets aside; else all.

    Raises:
        MarsError: the files cannot be read, or hold nothing to measure on.
    """
    assert loaded.tokenizer is not None
    data = load_data(settings, loaded.tokenizer, loaded.stop_token_ids)
    examples = data.held_out if settings.held_out else data.train
    if not examples:
        raise MarsError("No held-out example is left. Give more data, or a greater --max-length.")
    return examples, data.counts


def likelihood(
    loaded: LoadedModel, examples: Sequence[Example], tokens_per_batch: int = TOKENS_PER_BATCH
) -> Likelihood:
    """Score the answers of `examples`."""
    texts = [Scored(example.input_ids, example.loss_mask) for example in examples]
    scores = [s.log_probabilities for s in score(loaded, texts, tokens_per_batch)]
    return Likelihood(
        examples=tuple(example.name for example in examples),
        nll=tuple(-sum(of_one) for of_one in scores),
        num_tokens=tuple(len(of_one) for of_one in scores),
    )


def comparable(ours: Likelihood, base: Likelihood) -> bool:
    """The same examples, cut into as many tokens each: else a token of one is not a token of the other."""
    return (ours.examples, ours.num_tokens) == (base.examples, base.num_tokens)


def compare(ours: Likelihood, base: Likelihood) -> Comparison:
    """How much worse `ours` is than `base` on the same examples.

    Raises:
        MarsError: they are not `comparable`.
    """
    if not comparable(ours, base):
        raise MarsError(
            "The two models do not cut the examples into the same tokens, so their likelihoods a token "
            "cannot be compared. Compare models of one tokenizer and chat template."
        )
    low, high = ratio_interval(ours.nll, base.nll)
    return Comparison(sum(ours.nll) / sum(base.nll) - 1, (low - 1, high - 1))
