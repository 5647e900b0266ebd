"""Rows added up by the place that each belongs to, as the gradient of a table needs it.

GPU libraries sort the places first, in some thirty launches. Additions in place need one, in no determined order.
"""

from __future__ import annotations

import torch


def sum_rows(rows: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Row v of the result, (count, D), is the sum of those of ``rows``, (n, D), whose place is v. ``places``: int64."""
    sums = rows.new_zeros((count, rows.shape[1]))
    return sums.scatter_add_(0, places.unsqueeze(1).expand_as(rows), rows)
