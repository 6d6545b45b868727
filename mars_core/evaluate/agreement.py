"""Does a way of decoding say what one-token decoding (AR) says, and how likely is what it says instead?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median

from tqdm import tqdm

from ..bench.ties import first_difference
from ..costs import known_costs
from ..engine import Engine
from ..loaded import LoadedModel
from ..row import Request
from ..settings import DecodeSettings
from .answers import Answer, Generation, answers
from .intervals import Interval, ratio_interval, wilson
from .scoring import behind, score


@dataclass(frozen=True)
class Agreement:
    """Of a way of decoding with AR, over some prompts, both greedy.

    Attributes:
        num_prompts: how many.
        num_equal: whose answers are AR's, token for token.
        equal_interval: 95 % (Wilson) of that share.
        first_differences: for the other answers, how many leading tokens are AR's.
        nll, ar_nll: −ln p a token, under the model one token at a time, of the answers and of AR's; means
            over prompts.
        nll_difference: 95 % (paired bootstrap over prompts) of `nll` less `ar_nll`.
        generation, ar_generation: what the answers took.
    """

    num_prompts: int
    num_equal: int
    equal_interval: Interval
    first_differences: tuple[int, ...]
    nll: float
    ar_nll: float
    nll_difference: Interval
    generation: Generation
    ar_generation: Generation

    @property
    def median_first_difference(self) -> float | None:
        """None where all answers are equal."""
        return median(self.first_differences) if self.first_differences else None


def agreement(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], settings: DecodeSettings, batch_size: int
) -> Agreement:
    """Answer all prompts both ways and compare.

    Args:
        prompts: ids of each, ready for the answer.
        settings: the way of decoding; AR has the same limits.
        batch_size: prompts answered at once.
    """
    engine = Engine(loaded, costs=partial(known_costs, loaded))
    ar_settings = dataclasses.replace(settings, mode="ar", verify=False, proposer="masks")
    ar = _answer(engine, prompts, ar_settings, batch_size, "One token a forward")
    ours = _answer(engine, prompts, settings, batch_size, "Decoding to compare")
    places = [first_difference(a.ids, b.ids) for a, b in zip(ours, ar, strict=True) if a.ids != b.ids]
    num_equal = len(prompts) - len(places)
    nll, ar_nll = _nll(loaded, prompts, ours, ar)
    differences = [a - b for a, b in zip(nll, ar_nll, strict=True)]
    return Agreement(
        num_prompts=len(prompts),
        num_equal=num_equal,
        equal_interval=wilson(num_equal, len(prompts)),
        first_differences=tuple(places),
        nll=mean(nll),
        ar_nll=mean(ar_nll),
        nll_difference=ratio_interval(differences, [1.0] * len(prompts)),
        generation=Generation.of(ours),
        ar_generation=Generation.of(ar),
    )


def _answer(
    engine: Engine, prompts: Sequence[Sequence[int]], settings: DecodeSettings, batch_size: int, title: str
) -> list[Answer]:
    found: dict[int, Answer] = {}
    requests = (Request(ids, settings) for ids in prompts)
    with tqdm(total=len(prompts), desc=title, unit="prompt", dynamic_ncols=True) as bar:
        for number, answer in answers(engine, requests, batch_size):
            found[number] = answer
            bar.update()
    return [found[number] for number in range(len(prompts))]


def _nll(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], *given: Sequence[Answer]
) -> list[list[float]]:
    """−ln p a token of each answer, for each way of answering; a text that two ways gave is scored once."""
    texts = [[behind(ids, answer.ids) for ids, answer in zip(prompts, way, strict=True)] for way in given]
    distinct = list(dict.fromkeys(text for way in texts for text in way))
    found = dict(zip(distinct, score(loaded, distinct), strict=True))
    return [[-mean(found[text].log_probabilities) for text in way] for way in texts]
