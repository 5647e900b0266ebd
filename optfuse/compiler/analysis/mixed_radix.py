"""Mixed-radix layouts: an index space of n points as digits (size, stride), and the common refinement of two.

A set of digits *covers* n points when, sorted by stride, each stride is the product of the sizes below it. Two covers
of the same n have a common refinement when their cut points (the strides) form one chain of divisors; then every digit
of either is a run of refined digits, and an index that was affine in the old digits is affine in the new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter

from optfuse.compiler.ir.sizes import divides, equal, hint


@dataclass(frozen=True, slots=True, order=True)
class Digit:
    """A digit of ``size`` values, each worth ``stride`` points."""

    size: int
    stride: int


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether (sizes, strides) is a bijection onto [0, prod(sizes)); size-1 dimensions are ignored."""
    step = 1
    for size, stride in sorted(((s, t) for s, t in zip(sizes, strides, strict=True) if s > 1), key=itemgetter(1)):
        if stride != step:
            return False
        step *= size
    return True


def coalesce(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """The digits sorted by stride, major first, without those of one value, and with contiguous neighbours joined."""
    joined: list[Digit] = []
    for digit in sorted((d for d in digits if d.size > 1), key=lambda d: -d.stride):
        if joined and equal(joined[-1].stride, digit.stride * digit.size):
            joined[-1] = Digit(joined[-1].size * digit.size, digit.stride)
        else:
            joined.append(digit)
    return tuple(joined)


def point_count(digits: Iterable[Digit]) -> int:
    """The number of points that the digits enumerate."""
    return prod(d.size for d in digits)


def cuts(digits: Iterable[Digit]) -> frozenset[int]:
    """The cut points of a cover of n: every stride, and every stride times size."""
    return frozenset(cut for d in digits if d.size > 1 for cut in (d.stride, d.stride * d.size))


def is_chain(points: Iterable[int]) -> bool:
    """Whether each cut point divides the next larger one, so that a refinement exists."""
    ordered = sorted(points, key=hint)
    return all(divides(a, b) for a, b in itertools.pairwise(ordered))


def refine(digit: Digit, points: Iterable[int]) -> tuple[Digit, ...]:
    """A digit split at the cut points inside it, major first. The points and the digit's ends must form a chain."""
    low, high = digit.stride, digit.stride * digit.size
    ordered = [low, *sorted(p for p in set(points) if low < p < high), high]
    return tuple(Digit(b // a, a) for a, b in reversed(list(itertools.pairwise(ordered))))
