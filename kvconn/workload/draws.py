"""Random draws that are the same in every Python version.

Python promises the sequence of ``Random(seed).random()`` and nothing about the methods built on
it, so every draw here inverts a distribution function on that sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import cos, exp, log, log1p, pi, sqrt
from typing import TYPE_CHECKING

from kvconn.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random


def exponential(random: Random, mean: float) -> float:
    """A waiting time of a Poisson process, in the unit of ``mean``."""
    return -mean * log1p(-random.random())


def geometric(random: Random, mean: float) -> int:
    """A count of at least 1 in which each one more is equally likely; ``mean`` >= 1."""
    if mean == 1:
        return 1
    return 1 + int(log1p(-random.random()) / log1p(-1 / mean))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Token counts whose logarithm is normal: half lie below ``median``, few lie far above."""

    median: float
    """Tokens, at least 1."""
    sigma: float
    """Standard deviation of the natural logarithm; 0 always draws the median."""

    def __post_init__(self) -> None:
        if not (self.median >= 1 and 0 <= self.sigma < float("inf")):
            msg = f"{self} cannot be drawn from: give a median >= 1 and a finite sigma >= 0"
            raise ConfigurationError(msg)

    def draw(self, random: Random) -> int:
        """At least one token."""
        radius = sqrt(-2 * log(1 - random.random()))  # Box and Muller 1958
        return max(1, round(self.median * exp(self.sigma * radius * cos(2 * pi * random.random()))))


def zipf_cumulative(count: int, exponent: float) -> list[float]:
    """Cumulative weights of ranks 0 to ``count`` - 1, rank r being drawn like (r + 1)^-exponent."""
    return list(accumulate((rank + 1) ** -exponent for rank in range(count)))


def rank(random: Random, cumulative: Sequence[float]) -> int:
    """A rank drawn with the weights of :func:`zipf_cumulative`."""
    # The product may round up to the total, which lies beyond the last rank.
    return min(bisect_right(cumulative, random.random() * cumulative[-1]), len(cumulative) - 1)
