"""How sure a figure is: intervals that cover the true value in 95 of 100 such samples."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

Interval = tuple[float, float]
LEVEL = 0.95
ROUNDS = 10_000
_MOST_DRAWN = 2_000_000  # indices at once


def wilson(successes: int, trials: int) -> Interval:
    """Of a share; sound for few trials and for shares near 0 and 1 (Wilson 1927).

    Example: 8 of 10 -> (0.490, 0.943).
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = successes / trials
    shrink = 1 / (1 + z * z / trials)
    centre = shrink * (share + z * z / (2 * trials))
    half = shrink * z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], rounds: int = ROUNDS, seed: int = 0
) -> Interval:
    """Of Σ numerators / Σ denominators: percentile bootstrap over the examples that the pairs belong to.

    With ones below it is a mean's interval; with differences of two methods above, that of a paired
    comparison.

    Args:
        numerators, denominators: one of each an example; denominators above 0.
        rounds: resamples.
        seed: of the resampling.
    """
    pairs = np.array([numerators, denominators], dtype=np.float64)
    num_examples = pairs.shape[1]
    generator = np.random.default_rng(seed)
    at_once = max(1, _MOST_DRAWN // num_examples)
    ratios = []
    for first in range(0, rounds, at_once):
        drawn = generator.integers(num_examples, size=(min(at_once, rounds - first), num_examples))
        above, below = pairs[:, drawn].sum(-1)
        ratios.append(above / below)
    low, high = np.quantile(np.concatenate(ratios), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
