"""Sizes and layouts of buffers and of windows of them."""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.compiler.codegen.python_text import tuple_text
from optfuse.compiler.ir.buffer_layout import span
from optfuse.compiler.ir.nodes import Buffer, View


def same_layout(view: View, buffer: Buffer) -> bool:
    return tuple(view.shape) == tuple(buffer.shape) and tuple(view.stride) == tuple(buffer.stride)


def is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if step != expected:
            return False
        expected *= max(1, int(size))
    return True


def numel(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total


def bytes_of(buffer: Buffer) -> int:
    return span(buffer) * itemsize(buffer.dtype)


def sizes_text(values: Sequence[int]) -> str:
    return tuple_text([int(value) for value in values])


def aligned(size: int, to: int = 128) -> int:
    return -(-size // to) * to


_ITEMSIZES = {"bool": 1, "complex64": 8, "complex128": 16}


def itemsize(dtype: str) -> int:
    """Bytes of an element: the number at the end of the dtype's name says bits."""
    if dtype in _ITEMSIZES:
        return _ITEMSIZES[dtype]
    if dtype.startswith("float8"):
        return 1
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8
