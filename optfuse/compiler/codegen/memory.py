"""Sizes and layouts of buffers and views, for the host program."""

from __future__ import annotations

from collections.abc import Sequence

from optfuse.compiler.ir.buffer_layout import row_major, span
from optfuse.compiler.ir.nodes import Buffer, View
from optfuse.compiler.ir.sizes import same


def same_layout(view: View, buffer: Buffer) -> bool:
    """Whether a view at offset 0 covers the buffer exactly."""
    return same(view.shape, buffer.shape) and same(view.stride, buffer.stride)


def is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the strides are those of a row-major tensor."""
    return same(tuple(stride), row_major(shape))


def bytes_of(buffer: Buffer) -> int:
    """Bytes of memory that a buffer takes."""
    return span(buffer) * itemsize(buffer.dtype)


_ITEMSIZES = {"bool": 1, "complex64": 8, "complex128": 16}


def itemsize(dtype: str) -> int:
    """Bytes of an element: the number at the end of the dtype's name says bits."""
    if dtype in _ITEMSIZES:
        return _ITEMSIZES[dtype]
    if dtype.startswith("float8"):
        return 1
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8
