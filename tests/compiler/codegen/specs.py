"""Kernel specs written by hand: the patterns that code generation must get right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.kernel_spec import KernelSpec, Member, Space, rdigit, xdigit
from optfuse.compiler.ir.nodes import (
    Buffer,
    BufferKind,
    Call,
    Const,
    Expr,
    Guard,
    Iota,
    Load,
    LoopNest,
    Origin,
    Reduction,
    Result,
    Scan,
    Store,
    ivar,
    rvar,
    tvar,
)

F32 = "float32"
HALF = ("float16", "bfloat16")


def call(function: str, *args: Expr, dtype: str | None = None) -> Call:
    """A call of a function whose result has the last operand's dtype, unless said."""
    return Call(function, args, dtype or args[-1].dtype)


def const(value: float, dtype: str = F32) -> Const:
    return Const(value, dtype)


@dataclass
class Kernel:
    """A spec under construction over a space; every member names its variables in the space's digits."""

    x: tuple[int, ...]
    r: tuple[int, ...] = ()
    name: str = "k0"
    buffers: dict[str, Buffer] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)

    def buffer(
        self, name: str, *shape: int, dtype: str = F32, kind: BufferKind = "temporary", stride: Sequence[int] = ()
    ) -> Buffer:
        made = Buffer(name, dtype, shape, tuple(stride) or row_major(shape), kind)
        self.buffers[name] = made
        return made

    def input(self, name: str, *shape: int, dtype: str = F32, stride: Sequence[int] = ()) -> Buffer:
        return self.buffer(name, *shape, dtype=dtype, kind="input", stride=stride)

    def load(self, name: str, *index: sympy.Expr) -> Expr:
        """An element by its position in each dimension; half types as float32."""
        b = self.buffers[name]
        loaded = Load(name, sympy.Add(*(s * i for s, i in zip(b.stride, index, strict=True))), b.dtype)
        return call("cast", loaded, dtype=F32) if b.dtype in HALF else loaded

    def pointwise(self, out: str, value: Expr, full: bool = True, sizes: Sequence[int] = (), **more: object) -> None:
        """A member over all digits (or those of x) that stores ``value`` in row-major order, or as ``stride`` says."""
        digits = (*self.x, *(self.r if full else ()))
        symbols = [*map(xdigit, range(len(self.x))), *(map(rdigit, range(len(self.r))) if full else ())]
        if out not in self.buffers:
            self.buffer(out, *digits, **{"dtype": value.dtype, **more})  # type: ignore[arg-type]
        target = self.buffers[out]
        index = sympy.Add(*(s * ivar(k) for k, s in enumerate(target.stride)))
        nest = LoopNest(out, digits, (), (), (Store(out, index, value),), Origin(out, "aten.test.default"))
        self.members.append(Member(nest, tuple(symbols), (), full))

    def reduce(self, kind: str, operand: Expr, *stores: tuple[str, Expr], dtype: str = "") -> None:
        """A member that folds over all of r; by default it stores its one result to a buffer named like the kind."""
        dtype = dtype or ("int64" if kind.startswith("arg") else operand.dtype)
        stores = stores or ((kind, Result(0, dtype)),)
        for out, value in stores:
            if out not in self.buffers:
                self.buffer(out, *self.x, dtype=value.dtype)
        index = sympy.Add(*(s * ivar(k) for k, s in enumerate(row_major(self.x))))
        nest = LoopNest(
            stores[0][0],
            self.x,
            self.r,
            (Reduction(kind, operand),),  # type: ignore[arg-type]
            tuple(Store(out, index, value) for out, value in stores),
            Origin(stores[0][0], f"aten.{kind}.default", "block.norm", "model.py:7, y = norm(x)"),
        )
        ivars, rvars = tuple(map(xdigit, range(len(self.x)))), tuple(map(rdigit, range(len(self.r))))
        self.members.append(Member(nest, ivars, rvars, full=False))

    def scan(self, out: str, scan: Scan, value: Expr) -> None:
        """A member that scans r and stores ``value``, an expression of what it has, in the buffer's order."""
        if out not in self.buffers:
            self.buffer(out, *self.x, *self.r, dtype=value.dtype)
        symbols = [*map(ivar, range(len(self.x))), rvar(0)]
        index = sympy.Add(*(s * i for s, i in zip(self.buffers[out].stride, symbols, strict=True)))
        nest = LoopNest(out, self.x, self.r, (), (Store(out, index, value),), Origin(out, "aten.scan.default"), scan)
        self.members.append(Member(nest, tuple(map(xdigit, range(len(self.x)))), (rdigit(0),), full=True))

    def update(self, out: str, index: sympy.Expr, value: Expr, *indirect: Expr, adds: bool = False) -> None:
        """A member over all digits that stores to places of an input that data tell, or adds to them."""
        digits = (*map(xdigit, range(len(self.x))), *map(rdigit, range(len(self.r))))
        store = Store(out, index, value, indirect, adds)
        nest = LoopNest(out, (*self.x, *self.r), (), (), (store,), Origin(out, "aten.test.default"))
        self.members.append(Member(nest, digits, (), bool(self.r)))

    def spec(self, *stores: str, memory: Sequence[str] = ()) -> KernelSpec:
        """Whatever a member makes and another reads passes in registers, except ``memory``."""
        made = {store.buffer for member in self.members for store in member.nest.stores}
        return KernelSpec(self.name, Space(self.x, self.r), tuple(self.members), frozenset(made) - set(memory), stores)


i0, i1, i2, r0, r1 = ivar(0), ivar(1), ivar(2), rvar(0), rvar(1)


def softmax(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """amax, sub, exp, sum, div over the rows."""
    k = Kernel((rows,), (columns,), name="softmax")
    k.input("scores", rows, columns, dtype=dtype)
    for name in ("sub", "exp", "probabilities"):
        k.buffer(name, rows, columns, dtype=dtype)
    k.buffer("total", rows)
    k.reduce("max", k.load("scores", i0, r0), ("amax", Result(0, F32)))
    k.pointwise("sub", call("sub", k.load("scores", i0, i1), k.load("amax", i0)))
    k.pointwise("exp", call("exp", k.load("sub", i0, i1)))
    k.reduce("sum", k.load("exp", i0, r0), ("total", Result(0, F32)))
    k.pointwise("probabilities", call("div", k.load("exp", i0, i1), k.load("total", i0)))
    return k.spec("probabilities"), k.buffers


def channel_softmax(pixels: int, channels: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """The softmax of an image's channels, whose values lie apart in memory: amax, sub, exp, sum, div."""
    k = Kernel((pixels,), (channels,), name="channel_softmax")
    k.input("scores", channels, pixels, dtype=dtype)
    for name in ("sub", "exp", "probabilities"):
        k.buffer(name, pixels, channels, dtype=dtype, stride=(1, pixels))
    k.buffer("total", pixels)
    k.reduce("max", k.load("scores", r0, i0), ("amax", Result(0, F32)))
    k.pointwise("sub", call("sub", k.load("scores", i1, i0), k.load("amax", i0)))
    k.pointwise("exp", call("exp", k.load("sub", i0, i1)))
    k.reduce("sum", k.load("exp", i0, r0), ("total", Result(0, F32)))
    k.pointwise("probabilities", call("div", k.load("exp", i0, i1), k.load("total", i0)))
    return k.spec("probabilities"), k.buffers


def row_sum(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """The sum of each row."""
    k = Kernel((rows,), (columns,), name="row_sum")
    k.input("values", rows, columns, dtype=dtype)
    k.buffer("total", rows, dtype=dtype)
    k.reduce("sum", k.load("values", i0, r0), ("total", Result(0, F32)))
    return k.spec("total"), k.buffers


def layer_norm(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """Mean and variance by welford, normalise, scale and shift; mean and rstd are kept for a backward pass."""
    k = Kernel((rows,), (columns,), name="layer_norm")
    k.input("hidden", rows, columns, dtype=dtype)
    k.input("weight", columns, dtype=dtype)
    k.input("bias", columns, dtype=dtype)
    k.buffer("normed", rows, columns, dtype=dtype)
    variance = call("div", Result(1, F32), const(float(columns)))
    k.reduce("welford", k.load("hidden", i0, r0), ("mean", Result(0, F32)), ("var", variance))
    k.pointwise("rstd", call("rsqrt", call("add", k.load("var", i0), const(1e-5))), full=False)
    centered = call("sub", k.load("hidden", i0, i1), k.load("mean", i0))
    scaled = call("mul", call("mul", centered, k.load("rstd", i0)), k.load("weight", i1))
    k.pointwise("normed", call("add", scaled, k.load("bias", i1)))
    return k.spec("normed", "mean", "rstd"), k.buffers


def column_sum(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """The gradient of a bias (a sum down the columns), beside the product that it is taken of."""
    k = Kernel((columns,), (rows,), name="column_sum")
    k.input("grad", rows, columns, dtype=dtype)
    k.input("gate", rows, columns, dtype=dtype)
    k.buffer("product", columns, rows, dtype=dtype, stride=(1, columns))
    k.buffer("bias_grad", columns, dtype=dtype)
    k.pointwise("product", call("mul", k.load("grad", i1, i0), k.load("gate", i1, i0)))
    k.reduce("sum", k.load("product", i0, r0), ("bias_grad", Result(0, F32)))
    return k.spec("product", "bias_grad"), k.buffers


def transposed_copy(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """out[b, c, r] = silu(x[b, r, c]) for two b."""
    k = Kernel((2, columns, rows), name="transposed_copy")
    k.input("x", 2, rows, columns, dtype=dtype)
    k.buffer("out", 2, columns, rows, dtype=dtype)
    value = k.load("x", i0, i2, i1)
    k.pointwise("out", call("mul", value, call("sigmoid", value)))
    return k.spec("out"), k.buffers


def batch_norm(images: int, channels: int, pixels: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """Statistics over images and pixels, an update of the running mean in place, and the normalised images."""
    k = Kernel((channels,), (images, pixels), name="batch_norm")
    stride = (channels * pixels, pixels, 1)
    k.input("x", images, channels, pixels, dtype=dtype)
    k.input("running_mean", channels)
    k.buffer("y", channels, images, pixels, dtype=dtype, stride=(stride[1], stride[0], stride[2]))
    inner = k.load("x", r0, i0, r1)
    variance = call("div", Result(1, F32), const(float(images * pixels)))
    k.reduce("welford", inner, ("mean", Result(0, F32)), ("var", variance))
    moved = call("mul", call("sub", k.load("mean", i0), k.load("running_mean", i0)), const(0.1))
    k.pointwise("running_mean", call("add", k.load("running_mean", i0), moved), full=False)
    rstd = call("rsqrt", call("add", k.load("var", i0), const(1e-5)))
    k.pointwise("y", call("mul", call("sub", k.load("x", i1, i0, i2), k.load("mean", i0)), rstd))
    return k.spec("y", "mean", "running_mean", memory=["running_mean"]), k.buffers


def padded_and_gathered(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """An embedding by ids, plus positions that a border of one row surrounds (which holds -2)."""
    k = Kernel((rows, columns), name="gather")
    k.input("ids", rows, dtype="int64")
    k.input("table", 5, columns, dtype=dtype)
    k.input("positions", rows, columns, dtype=dtype)
    k.buffer("out", rows, columns, dtype=dtype)
    place = call("position", Load("ids", i0, "int64"), Const(5, "int64"))
    taken = Load("table", columns * tvar(0) + i1, dtype, indirect=(place,))
    shifted = Load("positions", columns * (i0 - 1) + i1, dtype, (Guard(i0 - 1, 0, rows),), Const(-2.0, dtype))
    wide = [call("cast", e, dtype=F32) if dtype in HALF else e for e in (taken, shifted)]
    k.pointwise("out", call("add", *wide))
    return k.spec("out"), k.buffers


def updated_rows(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """Rows written to some rows of a cache, each after its sum; and the rows themselves."""
    k = Kernel((rows,), (columns,), name="updated_rows")
    k.input("ids", rows, dtype="int64")
    k.input("new", rows, columns, dtype=dtype)
    k.input("cache", 2 * rows, columns, dtype=dtype)
    k.buffer("doubled", rows, columns, dtype=dtype)
    k.reduce("sum", k.load("new", i0, r0), ("total", Result(0, F32)))
    k.pointwise("doubled", call("mul", k.load("new", i0, i1), const(2.0)))
    place = call("add", Load("ids", i0, "int64"), Iota(2 * i0, "int64"))
    k.update("cache", columns * tvar(0) + i1, call("add", k.load("doubled", i0, i1), k.load("total", i0)), place)
    return k.spec("doubled", "cache", memory=["cache"]), k.buffers


def rows_from_place_to_place(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """Rows of a table added to rows of another, as a graph network sends them along its edges."""
    k = Kernel((rows, columns), name="sent")
    k.input("sources", rows, dtype="int64")
    k.input("targets", rows, dtype="int64")
    k.input("table", 5, columns, dtype=dtype)
    k.input("sums", 5, columns)
    taken = Load("table", columns * tvar(0) + i1, dtype, indirect=(Load("sources", i0, "int64"),))
    value = call("cast", taken, dtype=F32) if dtype in HALF else taken
    k.update("sums", columns * tvar(0) + i1, value, Load("targets", i0, "int64"), adds=True)
    return k.spec("sums", memory=["sums"]), k.buffers


def added_rows(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """Rows added to the rows of a table, their elements counted, and their sums added up."""
    k = Kernel((rows,), (columns,), name="added_rows")
    k.input("ids", rows, dtype="int64")
    k.input("rows", rows, columns, dtype=dtype)
    k.input("table", 3, columns)
    k.input("met", 3, dtype="int32")
    k.input("all", 3)
    place = Load("ids", i0, "int64")
    k.update("table", columns * tvar(0) + i1, call("exp", k.load("rows", i0, i1)), place, adds=True)
    k.update("met", tvar(0), const(1, "int32"), place, adds=True)
    k.reduce("sum", k.load("rows", i0, r0), ("total", Result(0, F32)))
    added = LoopNest(
        "all", (rows,), (), (), (Store("all", tvar(0), k.load("total", i0), (place,), True),), Origin("", "")
    )
    k.members.append(Member(added, (xdigit(0),), (), full=False))
    return k.spec("table", "met", "all", memory=["table", "met", "all"]), k.buffers


def concatenation(rows: int, columns: int, dtype: str) -> tuple[KernelSpec, dict[str, Buffer]]:
    """Two halves beside each other, as guarded loads chosen by position."""
    k = Kernel((rows, 2 * columns), name="cat")
    k.input("left", rows, columns, dtype=dtype)
    k.input("right", rows, columns, dtype=dtype)
    k.buffer("out", rows, 2 * columns, dtype=dtype)
    left = Load("left", columns * i0 + i1, dtype, (Guard(i1, 0, columns),), Const(0.0, dtype))
    right = Load("right", columns * i0 + i1 - columns, dtype, (Guard(i1, columns, 2 * columns),), Const(0.0, dtype))
    first = call("lt", Iota(i1, "int64"), Const(columns, "int64"), dtype="bool")
    wide = [call("cast", e, dtype=F32) if dtype in HALF else e for e in (left, right)]
    k.pointwise("out", call("where", first, *wide))
    return k.spec("out"), k.buffers


PATTERNS = {
    "softmax": softmax,
    "layer_norm": layer_norm,
    "column_sum": column_sum,
    "transposed_copy": transposed_copy,
    "padded_and_gathered": padded_and_gathered,
    "concatenation": concatenation,
    "updated_rows": updated_rows,
    "added_rows": added_rows,
}
