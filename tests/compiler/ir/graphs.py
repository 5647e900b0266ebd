"""Loop graphs for tests: a few written by hand, and a hypothesis generator of valid ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy
import torch
from hypothesis import strategies as st

from optfuse.compiler.ir.nodes import (
    Buffer,
    BufferKind,
    Call,
    Const,
    Expr,
    Guard,
    Iota,
    LibraryCall,
    Load,
    LoopGraph,
    LoopNest,
    Op,
    Origin,
    Reduction,
    Result,
    Scan,
    Store,
    TorchValue,
    View,
    ivar,
    rvar,
    tvar,
)

i0, i1, r0, t0 = ivar(0), ivar(1), rvar(0), tvar(0)
F32 = "float32"


def buffer(name: str, *shape: int, dtype: str = F32, kind: BufferKind = "temporary") -> Buffer:
    """A contiguous buffer."""
    stride = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    return Buffer(name, dtype, shape, stride, kind)


def whole(b: Buffer) -> View:
    """A view of all of a buffer."""
    return View(b.name, b.shape, b.stride)


def nest(
    name: str,
    sizes: Sequence[int],
    *stores: Store,
    rsizes: Sequence[int] = (),
    reductions: Sequence[Reduction] = (),
    target: str = "",
    scan: Scan | None = None,
) -> LoopNest:
    """A nest with an origin of its own name."""
    return LoopNest(name, tuple(sizes), tuple(rsizes), tuple(reductions), stores, Origin(name, target), scan)


def graph(buffers: Sequence[Buffer], ops: Sequence[Op], outputs: Sequence[View]) -> LoopGraph:
    """A graph whose inputs and constants are the buffers marked so."""
    inputs = tuple(b.name for b in buffers if b.kind == "input")
    constants = tuple(b.name for b in buffers if b.kind == "constant")
    return LoopGraph("example", tuple(buffers), inputs, constants, tuple(ops), tuple(outputs))


def load(b: Buffer, index: sympy.Expr | int) -> Load:
    """An unconditional load."""
    return Load(b.name, sympy.sympify(index), b.dtype)


def softmax_graph(rows: int = 7, columns: int = 5) -> LoopGraph:
    """Softmax over the last dimension of a bfloat16 tensor, in three nests."""
    x = buffer("x", rows, columns, dtype="bfloat16", kind="input")
    top, total, out = buffer("top", rows), buffer("total", rows), buffer("out", rows, columns, dtype="bfloat16")

    def shifted(column: sympy.Symbol) -> Expr:
        value = Call("cast", (load(x, columns * i0 + column),), F32)
        return Call("exp", (Call("sub", (value, load(top, i0)), F32),), F32)

    maximum = Reduction("max", Call("cast", (load(x, columns * i0 + r0),), F32))
    ops = (
        nest("top", (rows,), Store("top", i0, Result(0, F32)), rsizes=(columns,), reductions=(maximum,), target="amax"),
        nest(
            "total",
            (rows,),
            Store("total", i0, Result(0, F32)),
            rsizes=(columns,),
            reductions=(Reduction("sum", shifted(r0)),),
        ),
        nest(
            "out",
            (rows, columns),
            Store("out", columns * i0 + i1, Call("div", (shifted(i1), load(total, i0)), F32)),
        ),
    )
    return graph((x, top, total, out), ops, (whole(out),))


def gather_graph() -> LoopGraph:
    """Padding by a guard, an embedding with negative ids, and a library call in between."""
    table = buffer("table", 4, 3, kind="constant")
    ids = buffer("ids", 5, dtype="int64", kind="input")
    rows, padded, copied = buffer("rows", 5, 3), buffer("padded", 7, 3), Buffer("copied", F32, (7, 3), (1, 7))
    one = load(ids, i0)
    wrapped = Call(
        "where",
        (Call("lt", (one, Const(0, "int64")), "bool"), Call("add", (one, Const(4, "int64")), "int64"), one),
        "int64",
    )
    taken = Load("table", 3 * t0 + i1, F32, indirect=(wrapped,))
    inside = Guard(i0 - 1, 0, 5)
    shown = Load("rows", 3 * (i0 - 1) + i1, F32, (inside,), Const(-math.inf, F32))
    call = LibraryCall(
        "copied",
        "aten.clone.default",
        (whole(padded),),
        (("memory_format", TorchValue("memory_format", "contiguous_format")),),
        ("copied",),
        Origin("clone", "aten.clone.default", "model.pad", "model.py:3"),
    )
    ops = (
        nest("rows", (5, 3), Store("rows", 3 * i0 + i1, taken), target="aten.embedding.default"),
        nest("padded", (7, 3), Store("padded", 3 * i0 + i1, shown)),
        call,
    )
    return graph((table, ids, rows, padded, copied), ops, (whole(copied), View("padded", (3,), (1,), 3)))


def scan_graph(rows: int = 3, columns: int = 5) -> LoopGraph:
    """h = a * h + 1 along the rows of a tensor, and where the product of the a is largest."""
    a = buffer("a", rows, columns, kind="input")
    out, place = buffer("out", rows, columns), buffer("place", rows, columns, dtype="int64")
    before, last, factor, step = (Result(k, F32) for k in range(4))
    value = Call("add", (Call("mul", (factor, last), F32), step), F32)
    recurrence = Scan((load(a, columns * i0 + r0), Const(1.0, F32)), (Call("mul", (before, factor), F32), value))
    best, at, new, here = Result(0, F32), Result(1, "int64"), Result(2, F32), Result(3, "int64")
    wins = Call("ge", (new, best), "bool")
    largest = Scan(
        (load(out, columns * i0 + r0), Iota(r0, "int64")),
        (Call("where", (wins, new, best), F32), Call("where", (wins, here, at), "int64")),
    )
    index = columns * i0 + r0
    ops = (
        nest("out", (rows,), Store("out", index, Result(1, F32)), rsizes=(columns,), scan=recurrence, target="scan"),
        nest("place", (rows,), Store("place", index, Result(1, "int64")), rsizes=(columns,), scan=largest),
    )
    return graph((a, out, place), ops, (whole(out), whole(place)))


@st.composite
def loop_graphs(draw: st.DrawFn) -> LoopGraph:
    """Valid graphs of pointwise nests, reductions and scans of float32 buffers of one shape, some transposed."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    buffers = [buffer("in0", rows, columns, kind="input"), buffer("in1", rows, columns, kind="constant")]
    ops: list[Op] = []
    for k in range(draw(st.integers(1, 4))):
        name = f"b{k}"
        order = (columns, 1) if draw(st.booleans()) else (1, rows)
        form = draw(st.sampled_from(["pointwise", "pointwise", "reduction", "scan"]))
        if form == "scan" and columns > 1:
            buffers.append(Buffer(name, F32, (rows, columns), order))
            operand = draw(_expressions(tuple(buffers[:-1]), i0, r0))
            combine = Call(draw(st.sampled_from(["add", "maximum"])), (Result(0, F32), Result(1, F32)), F32)
            store = Store(name, order[0] * i0 + order[1] * r0, Call("tanh", (Result(0, F32),), F32))
            ops.append(nest(name, (rows,), store, rsizes=(columns,), scan=Scan((operand,), (combine,))))
        elif form != "reduction":
            value = draw(_expressions(tuple(buffers), i0, i1))
            buffers.append(Buffer(name, F32, (rows, columns), order))
            ops.append(nest(name, (rows, columns), Store(name, order[0] * i0 + order[1] * i1, value)))
        else:
            kind = draw(st.sampled_from(["sum", "max", "min", "prod"]))
            operand = draw(_expressions(tuple(buffers), i0, r0))
            buffers.append(Buffer(name, F32, (rows,), (1,)))
            value = Call("tanh", (Result(0, F32),), F32)
            fold = Reduction(kind, operand)
            ops.append(nest(name, (rows,), Store(name, i0, value), rsizes=(columns,), reductions=(fold,)))
    return graph(buffers, ops, [whole(b) for b in buffers if b.kind == "temporary"])


def _expressions(buffers: tuple[Buffer, ...], row: sympy.Symbol, column: sympy.Symbol) -> st.SearchStrategy[Expr]:
    indices = {b.name: sum(s * v for s, v in zip(b.stride, (row, column), strict=False)) for b in buffers}
    loads = st.sampled_from(buffers).map(lambda b: load(b, indices[b.name]))
    guarded = st.sampled_from(buffers).map(
        lambda b: Load(b.name, indices[b.name], F32, (Guard(row, 0, 1),), Const(2.0, F32))
    )
    consts = st.sampled_from([0.5, -1.0, math.inf, 0.0]).map(lambda v: Const(v, F32))
    leaves = st.one_of(loads, loads, guarded, consts, st.just(Iota(2 * row + column, F32)))

    def combine(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        one = st.tuples(st.sampled_from(["neg", "exp", "tanh", "relu"]), children)
        two = st.tuples(st.sampled_from(["add", "mul", "sub", "maximum"]), children, children)
        choice = st.tuples(children, children).map(lambda p: Call("where", (Call("lt", p, "bool"), *p), F32))
        return st.one_of(one, two).map(lambda c: Call(c[0], tuple(c[1:]), F32)) | choice

    return st.recursive(leaves, combine, max_leaves=6)


def random_inputs(g: LoopGraph, seed: int = 0) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Normal values for the inputs and constants of a float32 graph."""
    generator = torch.Generator().manual_seed(seed)
    by_name = {b.name: b for b in g.buffers}

    def make(name: str) -> torch.Tensor:
        return torch.randn(*map(int, by_name[name].shape), generator=generator)

    return [make(name) for name in g.inputs], {name: make(name) for name in g.constants}


def update_graph() -> LoopGraph:
    """Rows read from a cache, written to it at places that an input holds, and added to another; both read again."""
    cache, sums = buffer("cache", 6, 3, kind="input"), buffer("sums", 6, 3, kind="input")
    new, places = buffer("new", 2, 3, kind="input"), buffer("places", 2, dtype="int64", kind="input")
    before, after = buffer("before", 6, 3), buffer("after", 6, 3)
    place = (load(places, i0),)
    both = Call("add", (load(cache, 3 * i0 + i1), load(sums, 3 * i0 + i1)), F32)
    ops = (
        nest("before", (6, 3), Store("before", 3 * i0 + i1, both)),
        nest("written", (2, 3), Store("cache", 3 * t0 + i1, load(new, 3 * i0 + i1), place)),
        nest("added", (2, 3), Store("sums", 3 * t0 + i1, load(new, 3 * i0 + i1), place, adds=True)),
        nest("after", (6, 3), Store("after", 3 * i0 + i1, both)),
    )
    return graph((cache, sums, new, places, before, after), ops, (whole(before), whole(after)))
