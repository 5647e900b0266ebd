import pytest
import torch

from optfuse.compiler.ir.nodes import LibraryCall
from tests.compiler.lower.eager import lowered
from tests.compiler.lower.test_random import N, run


def library(function, *inputs):
    graph, _ = lowered(function, *inputs)
    return [op.target for op in graph.ops if isinstance(op, LibraryCall) and op.name != "random_seed"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
@pytest.mark.parametrize(("low", "high"), [(0, 10), (3, 5), (7, 8)])
def test_integers_of_a_range_are_equally_frequent(low, high, dtype):
    (out,) = run(lambda x: torch.randint(low, high, (N,), dtype=dtype), torch.empty(1))
    assert out.dtype == dtype
    counts = torch.bincount(out.long(), minlength=high)
    assert counts[:low].sum() == 0
    assert len(counts) == high
    share = N / (high - low)
    assert (counts[low:] - share).abs().max() < 6 * share**0.5


def test_integers_of_wide_ranges():
    wide = run(lambda x: torch.randint_like(x, -(1 << 31), 1 << 31), torch.empty(N, dtype=torch.int64))[0]
    assert wide.min() < -(2**31) * 0.99
    assert wide.max() > 2**31 * 0.99
    assert wide.unique().numel() > N - 20
    odd = (wide & 1).float().mean()
    assert abs(odd - 0.5) < 0.05
    assert library(lambda x: torch.randint_like(x, 1 << 40), torch.empty(4, dtype=torch.int64)) != []


def test_two_tensors_of_one_graph_differ():
    first, second = run(lambda x: (torch.randint_like(x, 1000), torch.randint_like(x, 1000)), torch.empty(N))
    assert (first == second).float().mean() < 0.01


def test_normal_numbers_around_tensors():
    mean, std = torch.linspace(-5, 5, N), torch.full((N,), 0.5)
    found = run(lambda m, s: (torch.normal(m, 0.5), torch.normal(m, s), torch.normal(2.0, s)), mean, std)
    for out, center in zip(found, (mean, mean, 2.0), strict=True):
        off = (out - center) / 0.5
        assert abs(off.mean()) < 0.06
        assert abs(off.std() - 1) < 0.05
    (plain,) = run(lambda x: torch.normal(1.0, 3.0, (N,)), torch.empty(1))
    assert abs(plain.mean() - 1) < 0.2
    assert abs(plain.std() - 3) < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_choices_are_as_frequent_as_their_weights(dtype):
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0], dtype=dtype)
    (out,) = run(lambda w: torch.multinomial(w, 1), weights.expand(N, 5).clone())
    assert out.shape == (N, 1)
    assert out.dtype == torch.int64
    shares = torch.bincount(out[:, 0], minlength=5) / N
    assert shares[0] == shares[3] == 0
    torch.testing.assert_close(shares, weights.float() / 8, rtol=0, atol=0.04)


def test_several_choices_are_a_library_call():
    weights = torch.ones(3, 5)
    assert library(lambda w: torch.multinomial(w, 2), weights) == ["aten.multinomial.default"]
    assert library(lambda w: torch.multinomial(w[0], 1, True) + torch.randint(3, ()), weights) == []
