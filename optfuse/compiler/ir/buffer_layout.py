"""How much memory a buffer takes."""

from __future__ import annotations

from optfuse.compiler.ir.nodes import Buffer


def span(buffer: Buffer) -> int:
    """Elements from the first one to the end of the last row, 0 where there are none.

    The last row has its padding like the others: who reads rows in vectors reads it as well.
    """
    if 0 in buffer.shape:
        return 0
    steps = sorted((int(step), int(size)) for size, step in zip(buffer.shape, buffer.stride, strict=True) if size != 1)
    return 1 + sum((size - 1) * step for step, size in steps) + padding(buffer)


def padding(buffer: Buffer) -> int:
    """Elements from the end of a row to where the next one begins."""
    steps = sorted((int(step), int(size)) for size, step in zip(buffer.shape, buffer.stride, strict=True) if size != 1)
    if len(steps) < 2 or steps[0][0] != 1:
        return 0
    (_, row), (pitch, _) = steps[:2]
    return max(0, pitch - row)
