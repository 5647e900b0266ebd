"""Small statistics, without a library for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log, sqrt
from statistics import fmean, median


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean of positive numbers; None of none."""
    logs = [log(value) for value in values if value > 0]
    return exp(fmean(logs)) if logs else None


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Rank correlation; ties share their mean rank. None where either side does not vary."""
    return _pearson(_ranks(xs), _ranks(ys))


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """|predicted - measured| / measured, where something was measured."""
    return [abs(p - m) / m for p, m in zip(predicted, measured, strict=True) if m > 0]


def median_or_none(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return median(values) if values else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda k: values[k])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for k in order[start : end + 1]:
            ranks[k] = (start + end) / 2
        start = end + 1
    return ranks


def _pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    if len(xs) < 2:
        return None
    a, b = fmean(xs), fmean(ys)
    spread = sqrt(sum((x - a) ** 2 for x in xs)) * sqrt(sum((y - b) ** 2 for y in ys))
    return sum((x - a) * (y - b) for x, y in zip(xs, ys, strict=True)) / spread if spread else None
