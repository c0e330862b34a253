"""Medians, spreads and percentiles of what was measured."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """The middle of several rounds, and how far the rounds went apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        return cls(median(samples), min(samples), max(samples))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest sample that `share` of all samples do not exceed; samples in ascending order."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latencies_us(samples_ns: Sequence[int]) -> dict[str, float]:
    """The usual percentiles of latencies, in microseconds."""
    ordered = sorted(samples_ns)
    return {
        "p50_us": percentile(ordered, 0.5) / 1000,
        "p99_us": percentile(ordered, 0.99) / 1000,
        "p999_us": percentile(ordered, 0.999) / 1000,
        "samples": len(ordered),
    }
