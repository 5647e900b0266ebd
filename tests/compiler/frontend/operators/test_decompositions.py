"""Each decomposition of our own against eager, and what the table must not contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from optfuse.compiler.frontend.operators.decompositions import DECOMPOSED, OWN, WHOLE, decompositions, stays_whole
from tests.compiler.frontend.running import assert_same

aten = torch.ops.aten


def wave(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(float(torch.tensor(shape).prod())).sin().reshape(shape).to(dtype)


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "split": (aten.split.Tensor, (wave(5, 7), 3, 1)),
    "split of nothing": (aten.split.Tensor, (wave(5, 0), 3, 1)),
    "split with sizes": (aten.split_with_sizes.default, (wave(7, 2), [1, 4, 2])),
    "unbind": (aten.unbind.int, (wave(3, 2), -1)),
    "select backward": (aten.select_backward.default, (wave(5, 4), [5, 3, 4], 1, -1)),
    "select backward, last axis": (aten.select_backward.default, (wave(5, 3), [5, 3, 4], -1, 2)),
    "slice backward": (aten.slice_backward.default, (wave(5, 2), [5, 6], 1, 3, 5, 1)),
    "slice backward, negative": (aten.slice_backward.default, (wave(5, 2), [5, 6], -1, -3, -1, 1)),
    "slice backward to the end": (aten.slice_backward.default, (wave(5, 4), [5, 6], 1, 2, 2**63 - 1, 1)),
    "slice backward, step": (aten.slice_backward.default, (wave(3, 2), [5, 2], 0, 0, 5, 2)),
    "slice backward, one place of each step": (aten.slice_backward.default, (wave(5, 2, 3), [5, 6, 3], 1, 1, 6, 3)),
    "slice backward, steps from the end": (aten.slice_backward.default, (wave(5, 3), [5, 6], -1, -5, 2**63 - 1, 2)),
    "slice backward, steps that begin late": (aten.slice_backward.default, (wave(5, 2), [5, 6], -1, 2, 6, 2)),
    "copy": (aten.copy.default, (wave(2, 3, dtype=torch.float64), wave(3))),
    "full like": (aten.full_like.default, (wave(2, 3, dtype=torch.bfloat16), 2.5)),
    "convolution": (
        aten.convolution.default,
        (wave(2, 4, 7, 6), wave(6, 2, 3, 2), wave(6), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    ),
    "convolution, transposed": (
        aten.convolution.default,
        (wave(2, 4, 7), wave(4, 3, 3), wave(3), [2], [1], [1], True, [1], 1),
    ),
    "convolution backward": (
        aten.convolution_backward.default,
        (
            wave(2, 6, 5, 4),
            wave(2, 4, 7, 6),
            wave(6, 4, 3, 3),
            [6],
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [True] * 3,
        ),
    ),
    "average pool, one dimension": (aten.avg_pool1d.default, (wave(2, 4, 9), [3], [2], [1], True, False)),
    "average pool of one series": (aten.avg_pool1d.default, (wave(4, 9), [3])),
    "average pool, large tiles": (aten.avg_pool2d.default, (wave(2, 4, 14, 16), [7, 8])),
    "average pool, large tiles, channels last": (
        aten.avg_pool2d.default,
        (wave(2, 4, 14, 16).to(memory_format=torch.channels_last), [7, 8]),
    ),
    "adaptive average pool": (aten._adaptive_avg_pool2d.default, (wave(2, 4, 12, 6), [4, 3])),  # noqa: SLF001
    "adaptive average pool, large": (aten._adaptive_avg_pool2d.default, (wave(2, 4, 14, 14), [2, 1])),  # noqa: SLF001
    "adaptive average pool backward": (
        aten._adaptive_avg_pool2d_backward.default,  # noqa: SLF001
        (wave(2, 4, 4, 3), wave(2, 4, 12, 6)),
    ),
    "average pool, large blocks": (aten.avg_pool3d.default, (wave(2, 3, 4, 10, 8), [2, 5, 4])),
    "average pool, one large block": (aten.avg_pool3d.default, (wave(2, 4, 4, 8), [4], [4, 4, 4])),
    "adaptive average pool of blocks": (
        aten._adaptive_avg_pool3d.default,  # noqa: SLF001
        (wave(2, 3, 4, 6, 6), [2, 3, 2]),
    ),
    "adaptive average pool of large blocks": (
        aten._adaptive_avg_pool3d.default,  # noqa: SLF001
        (wave(3, 4, 10, 8), [2, 2, 1]),
    ),
    "adaptive average pool backward, blocks": (
        aten._adaptive_avg_pool3d_backward.default,  # noqa: SLF001
        (wave(2, 3, 2, 3, 2), wave(2, 3, 4, 6, 6)),
    ),
    "diagonal scatter": (aten.diagonal_scatter.default, (wave(4, 6), wave(4))),
    "diagonal scatter above": (aten.diagonal_scatter.default, (wave(4, 6).bfloat16(), wave(3).bfloat16(), 3)),
    "diagonal scatter below, transposed": (aten.diagonal_scatter.default, (wave(6, 4).t(), wave(2), -2)),
    "diagonal scatter, turned": (aten.diagonal_scatter.default, (wave(5, 2, 4), wave(2, 3), -1, 2, 0)),
    "diagonal scatter beside the matrix": (aten.diagonal_scatter.default, (wave(3, 4), wave(0), 4)),
    "replication backward": (aten.replication_pad1d_backward.default, (wave(2, 3, 8), wave(2, 3, 5), [1, 2])),
    "replication backward, two dimensions": (
        aten.replication_pad2d_backward.default,
        (wave(2, 3, 7, 9), wave(2, 3, 4, 6), [3, 0, 1, 2]),
    ),
    "replication backward of one image": (
        aten.replication_pad2d_backward.default,
        (wave(3, 5, 3), wave(3, 1, 1), [1, 1, 2, 2]),
    ),
    "replication backward, three dimensions": (
        aten.replication_pad3d_backward.default,
        (wave(1, 2, 4, 5, 6), wave(1, 2, 2, 2, 3), [1, 2, 0, 3, 2, 0]),
    ),
    "scatter over everything": (aten.as_strided_scatter.default, (wave(6), wave(3, 2).t().t() * 2, [3, 2], [2, 1], 0)),
}


PLACES = torch.tensor([[0, 2, 0], [2, 2, 2], [0, 0, 2]])


@pytest.mark.parametrize("name", CASES)
def test_own_decomposition_like_eager(name: str) -> None:
    target, args = CASES[name]
    assert_same(_listed(OWN[target](*args)), _listed(target(*args)))


def _listed(value: object) -> object:
    return list(value) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten._adaptive_avg_pool2d.default, (wave(2, 4, 12, 6), [5, 3])),  # noqa: SLF001
        (aten._adaptive_avg_pool2d_backward.default, (wave(2, 4, 5, 3), wave(2, 4, 12, 6))),  # noqa: SLF001
        (aten.avg_pool2d.default, (wave(2, 4, 14, 16), [7, 8], [7, 7])),
        (aten.avg_pool2d.default, (wave(2, 4, 14, 16), [2, 2])),
        (aten._adaptive_avg_pool3d.default, (wave(2, 3, 4, 6, 6), [3, 3, 2])),  # noqa: SLF001
        (aten._adaptive_avg_pool3d_backward.default, (wave(3, 3, 3, 2), wave(3, 4, 6, 6))),  # noqa: SLF001
        (aten.avg_pool3d.default, (wave(2, 3, 4, 10, 8), [2, 5, 4], [2, 5, 3])),
        (aten.avg_pool3d.default, (wave(2, 3, 4, 10, 8), [2, 5, 2])),
        (aten.avg_pool3d.default, (wave(2, 3, 4, 10, 8), [2, 5, 4], [], [0], False, True, 7)),
    ],
)
def test_pools_whose_windows_differ_or_that_loops_take_stay(target: Any, args: tuple[Any, ...]) -> None:
    assert OWN[target](*args) is NotImplemented


def test_means_of_large_blocks_are_laid_out_like_atens() -> None:
    x = wave(2, 3, 4, 10, 16).to(memory_format=torch.channels_last_3d)
    means, expected = (pool(x, [2, 5, 8]) for pool in (OWN[aten.avg_pool3d.default], aten.avg_pool3d))
    assert_same(means, expected)
    assert means.stride() == expected.stride()


def test_convolution_backward_of_the_bias_alone_is_a_sum() -> None:
    grad = wave(2, 6, 5)
    rest = (wave(2, 4, 7), wave(6, 4, 3), [6], [1], [0], [1], False, [0], 1, [False, False, True])
    images, weights, bias = OWN[aten.convolution_backward.default](grad, *rest)
    assert images is weights is None
    assert_same(bias, grad.sum((0, 2)))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3, 2), (5,)])
def test_nll_loss_backward(reduction: str, weighted: bool, shape: tuple[int, ...]) -> None:
    classes = shape[0] if len(shape) == 1 else shape[1]
    x = wave(*shape).requires_grad_()
    rest = shape[1:] if len(shape) == 1 else (shape[0], *shape[2:])
    target = (torch.arange(max(1, int(torch.tensor(rest).prod()))) % classes).reshape(rest)
    weight = wave(classes).abs() + 0.5 if weighted else None
    output = F.nll_loss(x, target, weight=weight, reduction=reduction, ignore_index=1)
    grad_output = torch.ones_like(output) * 1.5
    (expected,) = torch.autograd.grad(output, x, grad_output)
    total = (weight if weight is not None else torch.ones(classes))[target][target != 1].sum()
    code = {"none": 0, "mean": 1, "sum": 2}[reduction]
    operator = aten.nll_loss2d_backward.default if len(shape) == 4 else aten.nll_loss_backward.default
    assert_same(OWN[operator](grad_output, x.detach(), target, weight, code, 1, total), expected)


def test_bernoulli_has_its_rate() -> None:
    torch.manual_seed(0)
    draws = OWN[aten.bernoulli.p](torch.empty(10000, dtype=torch.bfloat16), 0.3)
    assert draws.dtype == torch.bfloat16
    assert 0.27 < draws.float().mean() < 0.33
    assert set(draws.unique().tolist()) == {0.0, 1.0}


def test_libraries_and_attention_never_come_apart() -> None:
    table = decompositions()
    assert not [op for op in table if stays_whole(op) and op not in OWN]
    for name in dir(aten):
        if "scaled_dot_product" in name or name.endswith("attention"):
            packet = getattr(aten, name)
            assert not [o for o in packet.overloads() if getattr(packet, o) in table]
    apart = (aten.convolution.default, aten.convolution_backward.default)  # from their bias only
    small = (aten.embedding_dense_backward.default, aten.index_put.default)  # products where tables are small
    pools = {op for op in OWN if "avg_pool" in str(op)}  # windows that are all alike
    sums = (aten.scatter_reduce.two,)  # and means, but no maxima
    checked = (aten.slice_scatter.default, aten.select_scatter.default)  # whether shapes agree, which torch does not
    assert not [op for op in OWN if stays_whole(op) and op not in (*apart, *small, *sums, *pools, *checked)]
    assert OWN[checked[0]](wave(5, 3), wave(2, 3), 0, 1, 3) is NotImplemented
    assert OWN[checked[1]](wave(5, 3), wave(3), 0, 1) is NotImplemented
    assert not WHOLE & set(DECOMPOSED)


@pytest.mark.spread(7)
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(8), (3, 8)),
        (nn.GroupNorm(2, 4), (2, 4, 5)),
        (nn.BatchNorm1d(4), (6, 4)),
        (nn.RMSNorm(8), (3, 8)),
        (nn.Softmax(-1), (3, 8)),
        (nn.LogSoftmax(0), (3, 8)),
        (nn.GELU(), (3, 8)),
        (nn.GELU("tanh"), (3, 8)),
        (nn.SiLU(), (3, 8)),
        (nn.Hardswish(), (3, 8)),
        (nn.ReLU6(), (3, 8)),
        (nn.Mish(), (3, 8)),
        (nn.GLU(), (3, 8)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_half_precision_is_computed_in_float32(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Captured in bfloat16: no worse than eager bfloat16, both measured against float64; likewise for gradients."""
    from optfuse.compiler.frontend import train_module
    from tests.compiler.frontend.running import copied, run_graph

    def run(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        leaf = x.detach().to(dtype).requires_grad_()
        y = function(leaf)
        (grad,) = torch.autograd.grad(y, leaf, wave(*y.shape, dtype=torch.bfloat16).to(dtype))
        return [y.detach().double(), grad.double()]

    x = (wave(*shape) * 3 + 0.5).bfloat16()
    module = module.train()
    half = copied(module).bfloat16()
    exact = run(copied(module).double(), torch.float64)
    eager = run(copied(half), torch.bfloat16)
    ours = run(train_module(half, (x.detach().requires_grad_(),), {}, run_graph), torch.bfloat16)
    for value, reference, truth in zip(ours, eager, exact, strict=True):
        assert (value - truth).norm() <= 1.5 * (reference - truth).norm() + 1e-3 * truth.norm()


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_scattered_sums_and_means_like_eager(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    own, operator = OWN[aten.scatter_reduce.two], aten.scatter_reduce.two
    for x, dim in ((wave(4, 3) * 9, 0), (wave(3, 5).t() * 9, -2), (wave(3, 4) * 9, 1)):
        args = x.to(dtype), dim, PLACES, (wave(3, 4) * 7).to(dtype), reduce
        found = own(*args, include_self=include_self)
        if reduce == "mean" and dtype == torch.int64:
            assert found is NotImplemented
        else:
            assert_same([found], [operator(*args, include_self=include_self)])


def test_other_scattered_reductions_stay() -> None:
    x, own = wave(4, 3), OWN[aten.scatter_reduce.two]
    assert own(x, 0, PLACES, x, "amax") is NotImplemented
    assert own(x[0, 0], 0, PLACES[0, :1], x[0, :1], "sum") is NotImplemented


def test_sums_of_a_replicated_edge_are_not_rounded_in_between() -> None:
    grad, image = torch.randn(2, 300).bfloat16(), torch.zeros(2, 1).bfloat16()
    found = OWN[aten.replication_pad1d_backward.default](grad, image, [99, 200])
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, grad.double().sum(-1, keepdim=True).bfloat16())
