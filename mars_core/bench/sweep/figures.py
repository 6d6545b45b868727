"""From answers to figures: one row for each point of the grid, every ratio taken prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...evaluate.intervals import Interval, ratio_interval, wilson
from ..figures import Spread, spread
from ..ties import first_difference
from .answers import SweepAnswer
from .grid import GridPoint

ROUNDS = 2000  # of the bootstrap: a page draws these anew after every prompt
DEFINITIONS = {
    "agreement": "share of a text up to where it first differs from AR's (100 % is the same text), mean over "
    "prompts; where one of the two is longer, of the longer one",
    "ar_choices": "share of a text's tokens that AR would have chosen behind the same text: one difference "
    "costs one token, not all that follow it",
    "log_likelihood": "mean ln p a token of the text, in nats, under the same model one token at a time; a "
    "text that repeats itself is likely too",
    "tokens_per_forward": "committed tokens, end-of-sequence token included, over forwards, the prefill "
    "being one",
    "speedup": "decode tok/s over AR's for the same prompt in the same run, median over prompts with "
    "quartiles; forwards shared with other requests do not count",
}

ByPrompt = Mapping[int, SweepAnswer]


@dataclass(frozen=True)
class PointFigures:
    """One point of the grid. Intervals are 95 %; figures are None where there is nothing to take them from.

    Attributes:
        point: the setting.
        num_prompts, num_tokens, num_forwards: what it answered, and what that took.
        num_shared: forwards shared with other requests, which no speed here counts.
        tokens_per_forward: with a bootstrap over prompts, as the shares and the likelihood have.
        tokens_per_s: decode speed, median and quartiles over prompts.
        speedup: over AR, prompt by prompt, median and quartiles.
        same_text: prompts whose text is AR's, token for token; the interval is Wilson's.
        agreement, ar_choices, log_likelihood: see `DEFINITIONS`.
    """

    point: GridPoint
    num_prompts: int
    num_tokens: int
    num_forwards: int
    num_shared: int
    tokens_per_forward: float
    tokens_per_forward_interval: Interval
    tokens_per_s: Spread | None
    speedup: Spread | None
    same_text: int | None
    same_text_interval: Interval | None
    agreement: float | None
    agreement_interval: Interval | None
    ar_choices: float
    ar_choices_interval: Interval
    log_likelihood: float
    log_likelihood_interval: Interval


def figures_of(points: Sequence[GridPoint], answers: Sequence[SweepAnswer]) -> list[PointFigures]:
    """Of the points that have answered, in the grid's order.

    Only prompts that all points have answered count, so that every row is of the same ones; before there is
    one of those, each row is of what its point has answered.
    """
    counted = complete(len(points), answers) or {answer.prompt for answer in answers}
    by_point: dict[int, dict[int, SweepAnswer]] = {}
    for answer in answers:
        if answer.prompt in counted:
            by_point.setdefault(answer.point, {})[answer.prompt] = answer
    ar = by_point.get(_ar_number(points), {})
    return [_of_point(point, by_point[n], ar) for n, point in enumerate(points) if n in by_point]


def complete(num_points: int, answers: Sequence[SweepAnswer]) -> set[int]:
    """The prompts that all points have answered."""
    points: dict[int, set[int]] = {}
    for answer in answers:
        points.setdefault(answer.prompt, set()).add(answer.point)
    return {prompt for prompt, answered in points.items() if len(answered) == num_points}


def leading_share(one: Sequence[int], other: Sequence[int]) -> float:
    """Tokens before the first difference over the longer length. Example: 5 7 9, 5 7 8 4 -> 0.5."""
    return first_difference(one, other) / max(len(one), len(other))


def _ar_number(points: Sequence[GridPoint]) -> int:
    return next((number for number, point in enumerate(points) if point.is_ar), -1)


def _of_point(point: GridPoint, answers: ByPrompt, ar: ByPrompt) -> PointFigures:
    own = list(answers.values())
    tokens, forwards = [len(a.ids) for a in own], [a.num_forwards for a in own]
    pairs = [(answers[prompt], ar[prompt]) for prompt in answers if prompt in ar]
    shares = [leading_share(a.ids, b.ids) for a, b in pairs]
    num_same = sum(a.ids == b.ids for a, b in pairs)
    choices, likelihoods = [sum(a.ar_choices) for a in own], [a.log_likelihood for a in own]
    return PointFigures(
        point=point,
        num_prompts=len(own),
        num_tokens=sum(tokens),
        num_forwards=sum(forwards),
        num_shared=sum(a.num_shared for a in own),
        tokens_per_forward=sum(tokens) / sum(forwards),
        tokens_per_forward_interval=_interval(tokens, forwards),
        tokens_per_s=spread(a.tokens_per_s for a in own),
        speedup=spread(_ratio(a.tokens_per_s, b.tokens_per_s) for a, b in pairs),
        same_text=num_same if pairs else None,
        same_text_interval=wilson(num_same, len(pairs)) if pairs else None,
        agreement=sum(shares) / len(shares) if shares else None,
        agreement_interval=_interval(shares, [1] * len(shares)) if shares else None,
        ar_choices=sum(choices) / sum(tokens),
        ar_choices_interval=_interval(choices, tokens),
        log_likelihood=sum(likelihoods) / sum(tokens),
        log_likelihood_interval=_interval(likelihoods, tokens),
    )


def _interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    return ratio_interval(numerators, denominators, rounds=ROUNDS)


def _ratio(own: float | None, other: float | None) -> float | None:
    return own / other if own and other else None
