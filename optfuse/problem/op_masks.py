"""Sets of ops as bitmasks: Python ints in which bit ``i`` stands for op ``i``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def mask_of(ops: Iterable[int]) -> int:
    """The bitmask of some ops."""
    mask = 0
    for op in ops:
        mask |= 1 << op
    return mask


def bits(mask: int) -> Iterator[int]:
    """The ops of a bitmask, ascending. Time grows with the number of ops, not with their ids."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def union(masks: Iterable[int]) -> int:
    """The ops of any of some bitmasks."""
    total = 0
    for mask in masks:
        total |= mask
    return total


def common(masks: Iterable[int]) -> int:
    """The ops of all of some bitmasks; none if there is no bitmask."""
    shared = -1
    for mask in masks:
        shared &= mask
    return max(0, shared)
