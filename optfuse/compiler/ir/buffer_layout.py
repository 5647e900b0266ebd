"""Strided layouts: row-major strides, and how many elements a shape with strides spans."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from optfuse.compiler.ir.nodes import Buffer
from optfuse.compiler.ir.sizes import never_less


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides as torch gives them (a size of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a strided window, both included; 0 when it is empty."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def span(buffer: Buffer) -> int:
    """Elements of memory that a buffer takes: its extent, and the padding of the last row, which vectors reach."""
    return extent(buffer.shape, buffer.stride) + padding(buffer) if 0 not in buffer.shape else 0


def padding(buffer: Buffer) -> int:
    """Elements from the end of a row to the start of the next one."""
    pairs = ((step, size) for size, step in zip(buffer.shape, buffer.stride, strict=True) if size != 1)
    steps = sorted(pairs, key=itemgetter(0))
    if len(steps) < 2 or steps[0][0] != 1:
        return 0
    (_, row), (pitch, _) = steps[:2]
    gap = pitch - row  # known to be none or more where rows are padded up: ``max`` would ask which
    return gap if never_less(gap, 0) else max(0, gap)
