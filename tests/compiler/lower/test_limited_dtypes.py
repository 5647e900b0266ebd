"""float8, uint16, uint32 and uint64: loops load, store, convert, compare and move them; other operators stay ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from optfuse.compiler.analysis.op_work import ITEM_BYTES
from optfuse.compiler.codegen.memory import itemsize
from optfuse.compiler.ir.dtypes import BITS, LIMITED
from optfuse.compiler.ir.graph_json import graph_from_json, graph_to_json
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LibraryCall
from tests.compiler.lower.eager import lowered

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def numbers(dtype: torch.dtype, *values: float) -> Tensor:
    return torch.tensor(values or (1, 2, 3, 0, 5, 200), dtype=torch.float32).view(2, -1).to(dtype)


def check(function: Any, *inputs: Tensor, library: tuple[str, ...] = ()) -> None:
    """What the loop graph gives is what the function gives; it calls just this of ATen, and outlives its file."""
    graph, constants = lowered(function, *inputs)
    assert tuple(op.target for op in graph.ops if isinstance(op, LibraryCall)) == library
    graph = graph_from_json(graph_to_json(graph))
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, value in zip(interpret(graph, list(inputs), constants), wanted, strict=True):
        assert isinstance(got, Tensor)
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        torch.testing.assert_close(got.double(), value.double(), rtol=1e-6, atol=0, equal_nan=True)


def test_every_limited_dtype_has_its_size_everywhere() -> None:
    for name in BITS:
        assert ITEM_BYTES[name] == itemsize(name) == getattr(torch, name).itemsize == BITS[name] // 8
    assert {getattr(torch, name) for name in LIMITED} == {*UNSIGNED, *FLOAT8}


@pytest.mark.parametrize("dtype", [*UNSIGNED, *FLOAT8])
def test_moved_compared_and_converted_in_loops(dtype: torch.dtype) -> None:
    x, y = numbers(dtype), numbers(dtype, 2, 2, 1, 1, 5, 7)
    places = torch.tensor([1, 0, 1])
    check(lambda x: (x.clone(), x.t().contiguous(), F.pad(x, [1, 1], value=1)), x)
    check(lambda x, y: (torch.cat([x, y]), torch.stack([x, y]), torch.where(x == y, x, y)), x, y)
    check(lambda x, places: (x[places], x.index_select(0, places), torch.full_like(x, 3)), x, places)
    check(lambda x, y: (torch.slice_scatter(x, y[:1], 0, 0, 1), torch.select_scatter(x, y[0], 0, 0)), x, y)
    check(lambda x, y: (x == y, x != y, x == 1, x.isnan(), x.to(torch.bool)), x, y)
    check(lambda x: (x.float() + 1, x.bfloat16(), x.int(), x.double() * 0.1, x.any(0)), x)
    check(lambda x: x.sum(0, dtype=torch.float32), x)
    check(lambda x: (x.to(dtype), (x * 1.5).to(dtype)), torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_bits_in_loops(dtype: torch.dtype) -> None:
    x, y = numbers(dtype, 0, 1, 2, 3, 65535, 40000), numbers(dtype, 7, 1, 65535, 40000, 3, 9)
    check(lambda x, y: (x & y, x | y, x ^ y, x & 3, x | 0x8000), x, y)
    check(lambda x: (x + 1.5, x / 2, x.exp(), x < 2.5, x.sum()), x)


def test_what_eager_has_no_loops_for_stays_a_library_call() -> None:
    check(lambda x: x.cumsum(0), numbers(torch.uint16), library=("aten.cumsum.default",))
    check(lambda x: x.to(torch.float8_e4m3fnuz), numbers(torch.float32), library=("aten._to_copy.default",))
    for function, target in ((torch.add, "aten.add.Tensor"), (torch.maximum, "aten.maximum.default")):
        x = numbers(torch.uint32)
        graph, _ = lowered(lambda x, function=function: function(x, x), x)
        assert [op.target for op in graph.ops if isinstance(op, LibraryCall)] == [target]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_what_is_compared_with_float8_is_rounded(dtype: torch.dtype) -> None:
    x = torch.tensor([0.3, 0.6, 1.0]).to(dtype)
    check(lambda x: (x == 0.3, x != 0.6, x == 1), x)
