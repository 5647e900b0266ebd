"""Strides of a reshaped window whose sizes are formulas.

Torch finds them by comparing sums and products of symbols as long as all that was done to a size before: minutes for a
model that pads, rolls and partitions images of any height and width. Here sizes have canonical formulas.
"""

from __future__ import annotations

from collections.abc import Sequence


def reshaped_strides(shape: Sequence[int], stride: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides under which a window of shape ``wanted`` has the elements of another one in their order.

    None where no strides do: a dimension would go along two that are not one after the other in memory.

    >>> reshaped_strides((2, 3, 4), (100, 4, 1), (2, 12)), reshaped_strides((3, 4), (1, 3), (12,))
    ((100, 1), None)
    """
    runs = _runs(shape, stride)
    length, step = runs.pop()
    covered, found = 1, []
    for size in reversed(wanted):
        if size != 1 and covered == length:
            if not runs:
                return None
            (length, step), covered = runs.pop(), 1
        found.append(covered * step)
        covered = covered * size
        if covered > length:
            return None
    return tuple(reversed(found)) if covered == length and not runs else None


def _runs(shape: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring dimensions that are one after the other in memory, as (elements, step), outermost first."""
    runs: list[tuple[int, int]] = []
    for size, step in zip(shape, stride, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * step:
            runs[-1] = (runs[-1][0] * size, step)
        else:
            runs.append((size, step))
    return runs or [(1, 1)]
