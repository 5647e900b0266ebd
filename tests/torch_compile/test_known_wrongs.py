"""Programs that a compiler of torch's got wrong once, by the issue of PyTorch that tells of it: eager's results here.

Results, gradients and written arguments are compared, with dtypes, strides of results, and which of them are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]


def wave(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.arange(float(torch.Size(shape).numel())) * 1.7).sin().reshape(shape).to(dtype)


def put_then_turn(x: Tensor) -> Tensor:
    x.index_put_((torch.arange(x.size(0)),), x * 2.0)
    x.add_(x.flip(0))
    return x


def copy_then_shift(x: Tensor) -> Tensor:
    x.index_copy_(0, torch.arange(x.size(0)), x * 2.0)
    x[1:] = x[:-1].clone()
    return x


def scatter_then_zero(x: Tensor) -> Tensor:
    y = torch.slice_scatter(x, -x[:2], 0, 1, 3)
    x.zero_()
    return y


def same_diagonal_then_fill(x: Tensor) -> Tensor:
    y = torch.diagonal_scatter(x, x.diagonal())
    x.fill_(2)
    return y


def clone_between_writes(x: Tensor) -> Tensor:
    x.index_fill_(0, torch.tensor([1]), 9.0)
    y = x.clone()
    x.clamp_(-0.1, 0.1)
    return y


def copy_then_add(x: Tensor, y: Tensor) -> Tensor:
    x[0:, :] = y[0:, :]
    y.add_(1)
    return y


def other_bits_then_write(x: Tensor) -> Tensor:
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y.view(torch.int64)


def put_in_one_place(x: Tensor) -> Tensor:
    places = torch.as_strided(torch.arange(5), (5,), (0,))
    x.index_put_((places,), x[places] + 1.0)
    return x


def result_of_its_own(x: Tensor) -> Tensor:
    y = x * 2
    x.copy_(y)
    return y.clone()


def write_what_is_repeated(x: Tensor) -> list[Tensor]:
    found = []
    for k in range(2):
        repeated = x[k].expand((2,))
        repeated[-1] = 3
        found.append(repeated)
    return found


def put_at_negative_places(x: Tensor, y: Tensor) -> Tensor:
    x = x + 10
    y[x] += y[x]
    return y


def add_to_a_turned_view(x: Tensor) -> Tensor:
    y = x.permute(1, 0)
    y.index_add_(0, torch.tensor([0, 4, 2]), torch.arange(9.0).view(3, 3))
    return y


def given_strides(x: Tensor) -> Tensor:
    y = torch.empty_strided((4, 3), (6, 1))
    y[:] = x[:, :3] + 1
    return y


def any_of_bytes(x: Tensor) -> tuple[Tensor, ...]:
    return x.any(), x.any(0), x.all(), x.any() * 200 + 100


def bytes_wrap(x: Tensor) -> tuple[Tensor, ...]:
    y = -x.abs()
    return torch.cat([y, y]).sum(), (x + x).to(torch.int16), torch.lt(-x, torch.tensor(4, dtype=torch.uint8))


def words_wrap(x: Tensor) -> tuple[Tensor, ...]:
    return (x + 1).long(), (x * 2).long(), (-x).long(), x.abs().long()


def large_products() -> Tensor:
    return torch.arange(11, dtype=torch.int64) * torch.tensor([1_500_000_000])


def nothing_at_all(x: Tensor) -> Any:
    return torch.var_mean(x, correction=0), torch.std_mean(x, correction=1), torch.bartlett_window(0).clone()


def scans_of_one() -> tuple[Tensor, ...]:
    return torch.tensor(5.0).cumsum(0), torch.tensor(True).cumsum(-1), torch.full((), 2.0).cumprod(0)


def no_numbers() -> Tensor:
    ones = torch.ones(2, 2)
    return torch.softmax(torch.arccosh(torch.log2(torch.atan2(ones, ones))), -1)


def negative_zero(x: Tensor) -> Tensor:
    return torch.ops.aten.copysign(x, -0.0)


def pools_past_the_end(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.avg_pool2d(x, 3, 2, ceil_mode=True), F.avg_pool1d(x[0], 4, 3, 1, ceil_mode=True, count_include_pad=False)


def scatters_that_are_summed(x: Tensor) -> tuple[Tensor, ...]:
    part, diagonal = torch.slice_scatter(x, x[:2] * 2, 0, 1, 3), torch.diagonal_scatter(x, x[0, :4] * 3)
    return part.sum(0), part.sum(), diagonal.sum()


def choices_of_pooled(x: Tensor) -> Tensor:
    y = F.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)[:, :, 1:7, 1:8]
    pooled = F.max_pool2d(y, 3, 1, 1)
    return torch.where(y.detach() > pooled.detach().mean((2, 3), keepdim=True), y, pooled)


def abs_written_inside_of_a_gradient(x: Tensor) -> Tensor:
    def total(x: Tensor) -> Tensor:
        y = torch.clone(x)
        y[:, 0] += x[:, 2].abs()
        return y.sum()

    return torch.func.grad(total)(x)


CASES: list[tuple[int, Callable[..., Any], tuple[Tensor, ...]]] = [
    (198270, put_then_turn, (wave(4, 8),)),
    (198270, copy_then_shift, (wave(4, 8),)),
    (198094, scatter_then_zero, (wave(4, 6),)),
    (198096, same_diagonal_then_fill, (wave(4, 4),)),
    (198096, clone_between_writes, (wave(4, 4),)),
    (198131, copy_then_add, (torch.zeros(3, 4), wave(3, 4))),
    (198101, other_bits_then_write, (torch.arange(-12, 12).reshape(4, 6),)),
    (175903, put_in_one_place, (torch.zeros(5),)),
    (195451, result_of_its_own, (wave(3, 4),)),
    (152425, write_what_is_repeated, (torch.arange(2),)),
    (138908, put_at_negative_places, (torch.tensor([[-10, -10]]), wave(2, 8))),
    (111133, add_to_a_turned_view, (torch.ones(3, 5),)),
    (130394, given_strides, (wave(4, 6),)),
    (198081, any_of_bytes, (torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8),)),
    (187018, bytes_wrap, (torch.tensor([200, 200, 6, 128], dtype=torch.uint8),)),
    (190764, words_wrap, (torch.tensor([2**31 - 1, -(2**31), 7], dtype=torch.int32),)),
    (183901, large_products, ()),
    (197108, nothing_at_all, (torch.zeros(0),)),
    (193265, scans_of_one, ()),
    (188225, no_numbers, ()),
    (174172, negative_zero, (wave(6),)),
    (198119, pools_past_the_end, (wave(1, 2, 9, 8).requires_grad_(),)),
    (180164, scatters_that_are_summed, (wave(4, 6).requires_grad_(),)),
    (185509, choices_of_pooled, (wave(2, 3, 6, 7).requires_grad_(),)),
    (136662, abs_written_inside_of_a_gradient, (wave(2, 3),)),
]


def outcome(call: Callable[..., Any], given: tuple[Tensor, ...]) -> dict[str, Any]:
    """The results with their strides, which of them are arguments' memory, the arguments afterwards, and gradients."""
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
    results = pytree.tree_leaves(call(*inputs))
    memory = [x.untyped_storage().data_ptr() for x in inputs if x.numel()]
    differentiable = [x for x in results if x.requires_grad]
    total = sum((x.sin().sum() for x in differentiable), torch.tensor(0.0))
    gradients = torch.autograd.grad(total, inputs) if differentiable else ()
    return {
        "results": [x.detach() for x in results],
        "strides": [x.stride() for x in results],
        "are arguments": [x.untyped_storage().data_ptr() in memory for x in results],
        "arguments": [x.detach() for x in inputs],
        "gradients": list(gradients),
    }


@pytest.mark.spread(4, 1)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dynamic", [None, True], ids=["", "dynamic"])
@pytest.mark.parametrize(("issue", "program", "given"), CASES, ids=[f"{n}-{p.__name__}" for n, p, _ in CASES])
def test_is_as_in_eager_execution(
    compiled: Compiler, issue: int, program: Callable[..., Any], given: tuple[Tensor, ...], dynamic: bool | None
) -> None:
    found, wanted = outcome(compiled(program, dynamic=dynamic), given), outcome(program, given)
    for part in wanted:
        if part in ("strides", "are arguments"):
            assert found[part] == wanted[part], f"{part}; pytorch/pytorch#{issue}"
        else:
            torch.testing.assert_close(found[part], wanted[part], equal_nan=True, msg=lambda text: f"#{issue}: {text}")
