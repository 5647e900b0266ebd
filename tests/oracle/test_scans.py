"""Scans with what surrounds them: which kernels they share, and that values and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import reduce
from operator import add
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.runtime.environment import mode
from tests.oracle.judging import OPTIONS, Function, check
from tests.programs import made, randn

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


def kernels_of(function: Callable[..., Any], *args: Tensor) -> list[set[str]]:
    """The names of the ops of each kernel."""
    schedule = optfuse.optimize(Function(function), args, options=OPTIONS)
    assert schedule.library_ops == ()
    return [{schedule.instance.ops[k].name for k in kernel.ops} for kernel in schedule.result.solution.kernels]


def nucleus(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the sorted tokens are kept by top-p sampling, and their probabilities."""
    probabilities = logits.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    return before < 0.9, probabilities.masked_fill(before >= 0.9, 0.0)


def position_ids(mask: Tensor) -> Tensor:
    """Positions of OPT: those of masked tokens are -1."""
    return mask.cumsum(1) * mask - 1


def roberta_ids(tokens: Tensor) -> Tensor:
    mask = tokens.ne(1).int()
    return (mask.cumsum(1).type_as(mask) * mask).long() + 1


@pytest.mark.spread(4, 3)
@pytest.mark.parametrize("shape", [(4, 50), (2, 3, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nucleus_sampling_is_one_kernel(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits = randn(*shape, dtype=dtype).sort(-1, descending=True).values * 3
    program = made(nucleus, logits.float())
    for got, wanted in zip(program(logits.float()), nucleus(logits.float()), strict=True):
        torch.testing.assert_close(got, wanted)
    check(lambda x: nucleus(x)[1], logits)
    assert len(kernels_of(nucleus, logits)) == 1


def test_position_ids_are_exact_and_one_kernel() -> None:
    mask = (randn(3, 33) > -1).long()
    assert torch.equal(made(position_ids, mask)(mask), position_ids(mask))
    assert len(kernels_of(position_ids, mask)) == 1
    tokens = torch.randint(0, 4, (3, 33), generator=torch.Generator().manual_seed(0))
    assert torch.equal(made(roberta_ids, tokens)(tokens), roberta_ids(tokens))
    assert len(kernels_of(roberta_ids, tokens)) == 1


def test_scans_of_one_dimension_share_a_kernel_and_of_two_do_not() -> None:
    x = randn(12, 400)
    along = lambda x: (x.exp().cumsum(1) * 2, x.cummax(1), x.logcumsumexp(1))  # noqa: E731
    check(along, x)
    assert len(kernels_of(along, x)) == 1
    across = lambda x: x.cumsum(0).cumsum(1)  # noqa: E731
    check(across, x)
    assert len(kernels_of(across, x)) == 2


def test_a_sum_of_running_sums_and_running_sums_of_a_sum() -> None:
    def work(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        running = x.cumsum(-1)
        return running / running.sum(-1, keepdim=True), (x / x.exp().sum(-1, keepdim=True)).cumsum(-1) + y

    x, y = randn(17, 65), randn(65)
    check(work, x.exp(), y)
    assert len(kernels_of(work, x, y)) == 1


@pytest.mark.slow
def test_long_rows_carry_from_block_to_block() -> None:
    check(lambda x: (x.cumsum(1) * 2, x.softmax(1).cumsum(1)), randn(256, 8200))


def test_scans_of_views_and_in_other_orders() -> None:
    def work(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        turned = x.t().cumsum(0)
        return turned + y, turned.t().contiguous() * y.t(), x[:, ::2].cumsum(1), x.cumsum(0).flatten().cumsum(0)

    check(work, randn(6, 10), randn(10, 6))
    check(lambda x: x.view(2, 3, 4, 5).permute(2, 0, 3, 1).cumsum(2).cumprod(0) + 1, randn(2, 60))


def test_scans_of_what_is_padded_concatenated_and_gathered() -> None:
    def work(x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        ends = F.pad(x.exp().cumsum(1), (1, 0))
        return ends[:, 1:] - ends[:, :-1], torch.cat([x, x + 1], 1).cumsum(1), x[at].cumsum(0), x.cumsum(0)[at]

    check(work, randn(5, 9), torch.tensor([0, 3, 3, 1]))


def test_scans_in_place() -> None:
    def work(x: Tensor, y: Tensor) -> Tensor:
        x.cumsum_(1)
        y.add_(1).cumprod_(0)
        return x + y

    check(work, randn(5, 9), randn(5, 9) * 0.1)


SCANS: dict[str, Callable[[Tensor], Tensor]] = {
    "sums": lambda y: y.cumsum(0).tanh() + y.logcumsumexp(1),
    "products": lambda y: (y * 0.3 + 1).cumprod(1) + y.cummax(1).values,
}


class Scans(nn.Module):
    """Scans of a product with weights."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.weight, self.scans = nn.Parameter(randn(11)), [SCANS[name] for name in names]

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        return reduce(add, [scans(y) for scans in self.scans]).square().mean()


@pytest.mark.parametrize(
    "names", [("sums",), ("products",), pytest.param(tuple(SCANS), marks=pytest.mark.slow)], ids="+".join
)
def test_gradients(names: Collection[str]) -> None:
    check(Scans(names), randn(6, 11), train=True)


def test_tokens_of_each_expert_end_where_those_of_the_next_begin() -> None:
    def ends(ids: Tensor) -> Tensor:
        return torch.histc(ids, 8, 0, 7).cumsum(0)

    check(ends, torch.randint(0, 8, (50,), generator=torch.Generator().manual_seed(1)).float())
