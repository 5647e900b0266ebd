import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan_op

import optfuse
from optfuse.compiler.ir.nodes import LoopNest
from tests.oracle.judging import OPTIONS, Function, check
from tests.programs import randn


def recurrence(a, b, c, d):
    """h = c * h + d after h = a * h + b."""
    return a * c, c * b + d


def scanned(combine, *xs, keep=-1):
    return associative_scan_op(combine, list(xs), ())[keep]


def library_of(function, *args):
    return optfuse.optimize(Function(function), args, options=OPTIONS).library_ops


CASES = {
    "pairs": (lambda x, y: scanned(recurrence, x.sigmoid(), y) * 2, (6, 3, 5), (6, 3, 5)),
    "one row": (lambda x, y: scanned(recurrence, x, y, keep=0) + x, (40,), (40,)),
    "one element": (lambda x, y: scanned(recurrence, x, y), (1, 4), (1, 4)),
    "both results": (lambda x, y: tuple(associative_scan_op(recurrence, [x, y], ())), (7, 2), (7, 2)),
    "one tensor twice": (lambda x, y: scanned(recurrence, x, x) * y, (7, 2), (7, 2)),
    "another layout": (lambda x, y: scanned(torch.maximum, (x + y).t()), (3, 9), (3, 9)),
    "minima and constants": (lambda x, y: scanned(lambda a, b: torch.where(a < b, a, b * 1.0), x) - y, (8, 3), (8, 3)),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pointwise_combinations_are_loops(name, dtype):
    function, *shapes = CASES[name]
    args = [randn(*shape, dtype=dtype) for shape in shapes]
    check(function, *args)
    assert library_of(function, *args) == ()


def test_what_surrounds_a_scan_is_in_its_kernel():
    function, *shapes = CASES["pairs"]
    schedule = optfuse.optimize(Function(function), tuple(randn(*shape) for shape in shapes), options=OPTIONS)
    assert [len(kernel.ops) for kernel in schedule.result.solution.kernels] == [3]
    (scan,) = (op.scan for op in schedule.graph.ops if isinstance(op, LoopNest) and op.scan)
    assert len(scan.operands) == 2


def test_integers_are_exact():
    x = torch.arange(12).reshape(6, 2) % 5
    check(lambda x: scanned(lambda a, b: a * 3 % 7 + b - a * 3 % 7 + a, x), x)


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "combine",
    [lambda a, b: a + b.flip(0), lambda a, b: a + b + torch.arange(4), lambda a, b: a @ b],
    ids=["mixes elements", "uses positions", "multiplies matrices"],
)
def test_other_combinations_are_library_calls(combine):
    x = randn(3, 4, 4)
    assert any("associative_scan" in name for name in library_of(lambda x: scanned(combine, x) * 2, x))
