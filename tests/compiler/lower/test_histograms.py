import math

import pytest
import torch

from optfuse.compiler.lower.histograms import MOST_COMPARISONS
from tests.compiler.lower.eager import check
from tests.compiler.lower.tensors import EXACT

ODD = [0.0, 7.0, -0.0, 3.5, 6.999999, 7.0000005, -1e-9, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("bins", "low", "high"), [(8, 0, 7), (1, -1, 1), (10, -2.5, 2.5), (3, 0, 1e-3)])
def test_counts_in_bins(bins, low, high, dtype):
    odd = torch.tensor(ODD, dtype=dtype)
    noise = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=dtype) * 2
    for x in (odd, noise, torch.cat([odd, noise]).reshape(3, 20).t(), torch.empty(0, 3, dtype=dtype)):
        check(lambda x: torch.histc(x, bins, low, high), x, **EXACT)


def test_tokens_of_each_expert():
    ids = torch.randint(0, 8, (64,), generator=torch.Generator().manual_seed(1)).float()
    graph = check(lambda ids: torch.histc(ids, 8, 0, 7).cumsum(0).int(), ids, **EXACT)
    assert len(graph.ops) == 3


@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 0), (MOST_COMPARISONS, 0, 1)])
def test_other_histograms_are_library_calls(bins, low, high):
    check(lambda x: torch.histc(x, bins, low, high), torch.arange(12.0), library=("aten.histc.default",))
