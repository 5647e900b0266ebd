"""PyTorch's table of operators in pairs of sizes through one compiled function, whose sizes are symbols.

The second call of a pair has each size of 2 or more larger by one, in all tensors; where eager execution cannot take
that, there is no pair.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from optfuse.runtime.environment import mode
from optfuse.torch_compile.backend import backend
from tests.torch_compile.test_op_db import PARTS, as_near, direction, in_float64, samples, table, tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # what torch says of its own operators is no concern of these tests
    pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU"),
]

OPTIONS = {"time_limit": 2, "workers": 1, "cache": False}
Call = tuple[tuple[Any, ...], dict[str, Any]]


def larger(x: Any) -> Any:
    """A tensor with one more of each size of 2 or more: what it holds is repeated."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return x
    made = x.detach()
    for dim, size in enumerate(x.shape):
        if size >= 2:
            made = made.index_select(dim, torch.arange(size + 1) % size)
    return made.requires_grad_(x.requires_grad)


def results(op: Any, call: Call, function: Any) -> tuple[Any, Any]:
    """Outputs and gradients."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_(leaf.requires_grad)

    args, kwargs = pytree.tree_map(copied, call)
    torch.manual_seed(0)
    outputs = function(*args, **kwargs)
    wanted = [leaf for leaf in tensors((args, kwargs)) if leaf.requires_grad]
    given = [leaf for leaf in tensors(outputs) if leaf.requires_grad]
    if not wanted or not given:
        return outputs, None
    return outputs, torch.autograd.grad(given, wanted, [direction(x) for x in given], allow_unused=True)


def pairs(op: Any, most: int) -> Iterator[tuple[Call, Call]]:
    """Calls of an operator, each with one of larger tensors."""
    for sample in samples(op, most, "cpu"):
        call: Call = ((sample.input, *sample.args), dict(sample.kwargs))
        other = pytree.tree_map(larger, call)
        if [x.shape for x in tensors(call)] != [x.shape for x in tensors(other)]:
            yield call, other


def through(op: Any, pair: tuple[Call, Call], compiler: Any) -> list[Any]:
    """The results of both calls through one compiled function."""
    torch.compiler.reset()
    function = torch.compile(lambda *a, **k: op.op(*a, **k), backend=compiler, dynamic=True)
    return [results(op, call, function) for call in pair]


def disagreement(op: Any, pair: tuple[Call, Call], counted: Counter[str]) -> str:
    """How a pair differs from eager execution; "" where it does not, or where "aot_eager" does as well."""
    try:
        wanted = [results(op, call, op.op) for call in pair]
    except Exception:  # no pair
        return ""
    runs: list[Any] = []

    def spy(graph: Any, inputs: Any) -> Any:
        runs.append(backend(graph, inputs, options=OPTIONS))
        return runs[-1]

    counted["pairs"] += 1
    found = difference(lambda: through(op, pair, spy), wanted)
    if found.startswith("AssertionError"):
        exact = [results(op, pytree.tree_map(in_float64, call), op.op) for call in pair]
        if as_near(through(op, pair, partial(backend, options=OPTIONS)), wanted, exact):
            found = ""
    if found and difference(lambda: through(op, pair, "aot_eager"), wanted):
        counted["not by aot_eager"] += 1
        return ""
    left = [run for run in runs if run.record.unplanned]
    by_size = [run for run in runs if run.record.by_size]
    counted["traced"] += bool(left)
    counted["by size"] += bool(by_size) and not left
    counted["one trace"] += len(runs) == 1 and not left and not by_size
    counted["several traces"] += len(runs) > 1 and not left and not by_size
    name = f"{op.name}.{op.variant_test_name}".rstrip(".")
    return f"{name}{[tuple(x.shape) for x in tensors(pair[0])]}: {found}"[:400] if found else ""


def difference(call: Any, wanted: list[Any]) -> str:
    try:
        torch.testing.assert_close(call(), wanted, rtol=2e-3, atol=2e-4, equal_nan=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def differ(operators: Any, most: int, counted: Counter[str]) -> list[str]:
    logging.getLogger("optfuse").setLevel(logging.ERROR)
    try:
        found = [disagreement(op, pair, counted) for op in operators for pair in pairs(op, most)]
    finally:
        logging.getLogger("optfuse").setLevel(logging.NOTSET)
    return [line for line in found if line]


def test_a_sample_of_the_operators_in_pairs_of_sizes() -> None:
    counted: Counter[str] = Counter()
    assert differ(table()[7::100], 1, counted) == []
    assert counted["pairs"] >= 3
    assert counted["one trace"] > counted["pairs"] // 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator_in_pairs_of_sizes(part: int) -> None:
    counted: Counter[str] = Counter()
    assert differ(table()[part::PARTS], 2, counted) == []
    assert counted["one trace"] + counted["several traces"] > counted["pairs"] // 2
