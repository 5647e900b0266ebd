"""Gradients of embedding tables: rows of one index are summed without a sort, which costs libraries thirty launches.

Where many rows meet in few places, the sums are a product with a matrix of zeros and ones: exact but for the order of
terms, which are added in float32; what is not finite in one row spoils its column (0 times infinity is no number), so
that a gradient that has overflowed is seen all the same. Elsewhere rows are added in place, in float32 and in no
determined order. A table much larger than its gradient's rows is not filled for that: the rows of one place are added
up at the position of one of them, and the table's gradient is a gather from there, which loops may fuse.
"""

from __future__ import annotations

import torch
from torch import Tensor

from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of, is_symbolic
from optfuse.compiler.ops import registered

aten = torch.ops.aten

#: Products serve tables of up to so many rows,
MOST_ROWS = 512
#: in whose places so many rows meet, or more: additions in place would wait for each other.
MEETING = 16
#: Elements of the matrix of zeros and ones, which is written and read.
MOST_ELEMENTS = 1 << 24
#: Up to so many elements, filling a table costs less than going round it.
SMALL_TABLE = 1 << 20

_PLACES = (torch.int64, torch.int32)


def embedding_gradient(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """``embedding_dense_backward``: (*places, D) summed into (V, D); the row of ``padding_idx`` stays zero."""
    if scale_grad_by_freq or not _can_sum(indices, grad_output):
        return NotImplemented
    sums = sum_rows(grad_output, indices, num_weights)
    return sums if padding_idx < 0 else torch.where(_rows(sums) == padding_idx, 0, sums)


def add_at_places(self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """``index_put`` that adds whole rows: negative places count from the end."""
    places = indices[0]
    if not accumulate or places is None or any(other is not None for other in indices[1:]):
        return NotImplemented
    if self.dim() == 0 or not _can_sum(places, self):
        return NotImplemented
    values = aten.expand.default(values, [*places.shape, *self.shape[1:]])
    places = torch.where(places < 0, places + self.shape[0], places)
    return self + sum_rows(values, places, self.shape[0]).view(self.shape)


def sum_rows(values: Tensor, places: Tensor, count: int) -> Tensor:
    """Row v of (count, D) is the sum of those rows of ``values``, (*places, D), whose place is v; D is what is left."""
    number = places.numel()
    rows, places = values.reshape(number, -1), places.reshape(number)
    # a product with a table whose size changes would grow with its square
    meeting = not is_symbolic(count) and count <= MOST_ROWS and hint_of(number) >= MEETING * count
    if meeting and hint_of(number) * count <= MOST_ELEMENTS:
        return _by_product(rows, places, count)
    wide = TO_COPY(rows, dtype=torch.promote_types(rows.dtype, torch.float32))
    places = TO_COPY(places, dtype=torch.int64)
    if hint_of(count) <= hint_of(number) or hint_of(count) * hint_of(rows.shape[1]) <= SMALL_TABLE:
        sums = registered.sum_rows(wide, places, count)
    else:
        sums = _by_last(wide, places, count)
    return TO_COPY(sums, dtype=rows.dtype)


def _by_product(rows: Tensor, places: Tensor, count: int) -> Tensor:
    targets = torch.arange(count, device=places.device, dtype=places.dtype).unsqueeze(1)
    chosen = targets == places.unsqueeze(0)
    return aten.mm.default(TO_COPY(chosen, dtype=rows.dtype), rows)


def _by_last(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Add up all rows of one index in the last of them, which then stands for the index."""
    number = rows.shape[0]
    nowhere = aten.full.default([count], -1, dtype=torch.int64, device=rows.device, pin_memory=False)
    order = torch.arange(number, device=rows.device)
    last = aten.index_put.default(nowhere, [places], order)
    sums = registered.sum_rows(rows, aten.index.Tensor(last, [places]), number)
    found = aten.embedding.default(sums, last.clamp(min=0))
    return torch.where((last >= 0).unsqueeze(1), found, 0)


def _rows(table: Tensor) -> Tensor:
    return torch.arange(table.shape[0], device=table.device).unsqueeze(1)


def _can_sum(places: Tensor, values: Tensor) -> bool:
    """Whether we do it: a torch that must be deterministic sorts, and places may be on the CPU where values are not."""
    if torch.are_deterministic_algorithms_enabled() or 0 in (*places.shape, *values.shape):
        return False
    if places.device != values.device:
        return False
    return places.dtype in _PLACES and values.dtype.is_floating_point
