"""Statistics of a bench that the standard library and pandas do not have in this form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import StatisticsError, correlation, geometric_mean, median

import pandas as pd


def geomean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of the positive values; None if there are none."""
    positive = [value for value in values if value > 0]
    return geometric_mean(positive) if positive else None


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return the rank correlation, with mean ranks for ties; None if one side is constant or there are under two."""
    try:
        return correlation(*(pd.Series(side, dtype=float).rank().tolist() for side in (xs, ys)))
    except StatisticsError:
        return None


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return |predicted - measured| / measured for each measured value above zero."""
    return [abs(p - m) / m for p, m in zip(predicted, measured, strict=True) if m > 0]


def median_or_none(values: Sequence[float]) -> float | None:
    """Return the median; None if there are no values."""
    return median(values) if values else None
