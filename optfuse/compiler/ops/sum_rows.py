"""Sums of rows by index: the gradient of an embedding table.

GPU libraries sort the indices first, in some thirty launches. Atomic additions need one, in no fixed order.
"""

from __future__ import annotations

import torch


def sum_rows(rows: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Row v of the result, (count, D), is the sum of those of ``rows``, (n, D), whose place is v. ``places``: int64."""
    sums = rows.new_zeros((count, rows.shape[1]))
    return sums.scatter_add_(0, places.unsqueeze(1).expand_as(rows), rows)
