"""Matmuls by classes of rows write what one matmul would have written, every element of it."""

from __future__ import annotations

import pytest
import torch

from optfuse.compiler.codegen.host_program import MemoryLayout
from optfuse.compiler.codegen.module import emit_module
from optfuse.compiler.codegen.unaligned_matmul import DEFINITION, NAME, by_rows
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, Origin, View
from optfuse.compiler.ir.verify_graph import verify
from optfuse.runtime.program import Program


def function():
    names = {"torch": torch}
    exec(DEFINITION, names)
    return names[NAME]


@pytest.fixture
def tf32():
    """TF32 is allowed, as far as matmuls ask: the CPU has none."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.spread(5)
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("bias", [False, True], ids=["mm", "addmm"])
@pytest.mark.parametrize("columns", [16, 17, 18, 20, 23, 1003])
@pytest.mark.parametrize("rows", [1, 5, 24])
def test_every_element_is_written(rows, columns, bias):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(rows, 32, generator=generator), torch.randn(columns, 32, generator=generator).t()
    added = torch.randn(columns, generator=generator) if bias else None
    out = torch.full((rows, columns), float("nan"))
    function()(a, b, out, added)
    torch.testing.assert_close(out, a @ b + (0 if added is None else added))


@pytest.mark.parametrize("bias", [False, True], ids=["mm", "addmm"])
def test_without_tf32_it_is_one_matmul(bias):
    a, b, added = torch.randn(24, 32), torch.randn(1003, 32).t(), torch.randn(1003) if bias else None
    out = torch.full((24, 1003), float("nan"))
    function()(a, b, out, added)
    assert torch.equal(out, a @ b if added is None else torch.addmm(added, a, b))


def linear(rows, terms, columns, *, dtype="bfloat16", stride=None, weight=None, bias=False):
    """A product of (rows, terms) and a transposed weight, viewed with one more dimension and returned."""
    x = Buffer("x", dtype, (rows, terms), (terms, 1), "input")
    w = Buffer("w", dtype, (columns, terms), (terms, 1), "input")
    v = Buffer("v", dtype, (columns,), (1,), "input")
    y = Buffer("y", dtype, (rows, columns), stride or (columns, 1))
    args = [View("x", x.shape, x.stride), View("w", (terms, columns), weight or (1, terms))]
    target = "aten.addmm.default" if bias else "aten.mm.default"
    if bias:
        args.insert(0, View("v", v.shape, v.stride))
    call = LibraryCall("mm", target, tuple(args), (), ("y",), Origin("mm", target))
    inputs = ("x", "w", "v") if bias else ("x", "w")
    given = (x, w, v) if bias else (x, w)
    view = View("y", (2, rows // 2, columns), (rows // 2 * y.stride[0], y.stride[0], 1))
    graph = LoopGraph("linear", (*given, y), inputs, (), (call,), (view,))
    verify(graph)
    return graph


@pytest.mark.spread(2)
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bias", [False, True], ids=["mm", "addmm"])
def test_a_program_returns_it_without_gaps(bias, dtype, tmp_path):
    graph = linear(1024, 1024, 1026, bias=bias, dtype=str(dtype).removeprefix("torch."))
    source = emit_module(graph, graph.ops, MemoryLayout())
    assert source.count(f"{NAME}(") == 2
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(b.shape, generator=generator).to(dtype) for b in graph.buffers if b.kind == "input"]
    (got,) = Program(source, folder=tmp_path).run(tensors)
    assert got.is_contiguous()
    assert got.untyped_storage().nbytes() == 1024 * 1026 * dtype.itemsize
    x, w, *v = (t.double() for t in tensors)
    wanted = (x @ w.t() + (v[0] if bias else 0)).view(2, 512, 1026)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "graph",
    [
        linear(1024, 1024, 1032),  # rows of whole vectors
        linear(1024, 1024, 1026, stride=(1032, 1)),  # gaps
        linear(1024, 1024, 1026, weight=(1026, 1)),  # a weight whose own rows start anywhere
        linear(1024, 1028, 1026),
        linear(1024, 1024, 1026, dtype="float64"),
        linear(1024, 1024, 1028, dtype="float32"),
        linear(512, 512, 1026),  # little work
        linear(32, 8192, 8193),  # few rows
    ],
)
def test_others_are_not(graph):
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    assert by_rows(graph.ops[0], buffers) is None
    assert NAME not in emit_module(graph, graph.ops, MemoryLayout())
