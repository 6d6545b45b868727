"""From what was run to what is reported: medians, quartiles, ratios group by group."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .measure import Measured
from .methods import OUR_AR, TRANSFORMERS_AR, Method
from .outcome import Outcome
from .places import Places, PlaceShare, shares
from .ties import Difference, differences

ByGroup = Mapping[int, Outcome]


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    first: float
    third: float


@dataclass(frozen=True)
class Ratios:
    """Speed-up over another method: of each group, then the median. None without the other or a speed."""

    decode: Spread | None
    whole: Spread | None


@dataclass(frozen=True)
class Figures:
    """One method at one batch size.

    Attributes:
        num_groups, num_prompts, num_tokens: what it answered, and how long the answers are together.
        tokens_per_forward: all tokens over the forwards that their rows took part in, prefills as one each.
        prefill_s, ms_per_forward, forwards_per_s, decode_tokens_per_s, whole_tokens_per_s: of each group,
            then the median; see `Outcome`.
        over_transformers_ar, over_our_ar: speed-ups.
        text_of: the method whose text is compared; `same_text` is the share of prompts that have the same.
        exact: it claims to give that text in fp32; then `differences` names each first difference, and
            `largest_gap` is the largest logit gap among them.
        outside_model: median share of the decoding time spent outside the model.
        weight_bytes_per_s: bytes of weights a forward reads, times forwards a second; `share_of_copy_rate`
            is that over the rate of a large copy.
        drafts_verified: by draft, from 1. predictions_accepted: by offset, from 2.
        decode_tokens_per_s_by_group: what the medians are of.
    """

    method: str
    num_groups: int
    num_prompts: int
    num_tokens: int
    tokens_per_forward: float | None
    prefill_s: float
    ms_per_forward: float | None
    forwards_per_s: float | None
    decode_tokens_per_s: Spread | None
    whole_tokens_per_s: Spread | None
    over_transformers_ar: Ratios
    over_our_ar: Ratios
    text_of: str
    same_text: float | None
    exact: bool
    differences: list[Difference]
    largest_gap: float | None
    outside_model: float | None
    weight_bytes_per_s: float | None
    share_of_copy_rate: float | None
    drafts_verified: list[PlaceShare]
    predictions_accepted: list[PlaceShare]
    decode_tokens_per_s_by_group: list[float | None]


def figures_of(
    method: Method, measured: Measured, weight_bytes: int, bytes_per_s: float | None
) -> Figures | None:
    """One method's figures; None if it has answered nothing.

    Args:
        weight_bytes: what a forward of this method reads.
        bytes_per_s: of a large copy; None where that was not measured.
    """
    of = measured.outcomes
    ran, our_ar, reference = of[method.name], of.get(OUR_AR, {}), of.get(method.text_of, {})
    if not ran:
        return None
    outcomes = [ran[group] for group in sorted(ran)]
    s_per_forward = _median(outcome.s_per_forward for outcome in outcomes)
    forwards_per_s = 1 / s_per_forward if s_per_forward else None
    read = weight_bytes * forwards_per_s if forwards_per_s else None
    found = differences(dict(ran), dict(reference), dict(our_ar)) if method.exact else []
    places = Places().merge(outcome.places for outcome in outcomes)
    return Figures(
        method=method.name,
        num_groups=len(outcomes),
        num_prompts=sum(len(outcome.tokens) for outcome in outcomes),
        num_tokens=sum(outcome.num_tokens for outcome in outcomes),
        tokens_per_forward=tokens_per_forward(outcomes),
        prefill_s=statistics.median(outcome.prefill_s for outcome in outcomes),
        ms_per_forward=1000 * s_per_forward if s_per_forward else None,
        forwards_per_s=forwards_per_s,
        decode_tokens_per_s=spread(outcome.decode_tokens_per_s for outcome in outcomes),
        whole_tokens_per_s=spread(outcome.whole_tokens_per_s for outcome in outcomes),
        over_transformers_ar=ratios(ran, of.get(TRANSFORMERS_AR, {})),
        over_our_ar=ratios(ran, our_ar),
        text_of=method.text_of,
        same_text=_same_text(ran, reference),
        exact=method.exact,
        differences=found,
        largest_gap=max((item.gap for item in found if item.gap is not None), default=None),
        outside_model=_median(outcome.outside_model for outcome in outcomes),
        weight_bytes_per_s=read,
        share_of_copy_rate=read / bytes_per_s if read and bytes_per_s else None,
        drafts_verified=shares(places.drafts_fed, places.drafts_verified),
        predictions_accepted=shares(places.predicted, places.accepted),
        decode_tokens_per_s_by_group=[outcome.decode_tokens_per_s for outcome in outcomes],
    )


def tokens_per_forward(outcomes: Iterable[Outcome]) -> float | None:
    """All tokens over all forwards of their rows; None if the forwards of one are not known."""
    num_tokens, num_forwards = 0, 0
    for outcome in outcomes:
        if outcome.num_row_forwards is None:
            return None
        num_tokens += outcome.num_tokens
        num_forwards += outcome.num_row_forwards
    return num_tokens / num_forwards if num_forwards else None


def ratios(ran: ByGroup, base: ByGroup) -> Ratios:
    """Speeds over another method's on the same group."""
    return Ratios(
        decode=spread(_ratio_of(ran, base, lambda outcome: outcome.decode_tokens_per_s)),
        whole=spread(_ratio_of(ran, base, lambda outcome: outcome.whole_tokens_per_s)),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median and quartiles of what is not None."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Spread(known[0], known[0], known[0])
    first, median, third = statistics.quantiles(known, n=4, method="inclusive")
    return Spread(median, first, third)


def _ratio_of(
    ran: ByGroup, base: ByGroup, speed: Callable[[Outcome], float | None]
) -> Sequence[float | None]:
    pairs = [(speed(ran[group]), speed(base[group])) for group in sorted(ran.keys() & base.keys())]
    return [own / other if own and other else None for own, other in pairs]


def _median(values: Iterable[float | None]) -> float | None:
    found = spread(values)
    return found.median if found else None


def _same_text(ran: ByGroup, reference: ByGroup) -> float | None:
    """Share of prompts whose tokens are the reference's."""
    pairs = [
        pair
        for group in ran.keys() & reference.keys()
        for pair in zip(ran[group].tokens, reference[group].tokens, strict=True)
    ]
    return sum(got == expected for got, expected in pairs) / len(pairs) if pairs else None
