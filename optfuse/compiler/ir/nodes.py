"""The loop IR on one page.

A LoopGraph is a list of ops over named buffers, in program order. An op is a LoopNest (loops that we generate code for)
or a LibraryCall (an ATen operator that we call). Ops correspond one to one to nodes of the ATen graph; views are no ops
but become part of the index expressions of the ops that read through them. All sizes are fixed integers.

Iteration variables of a nest are the symbols i0, i1, ... (parallel) and r0, r1, ... (reduced or scanned). An index is a
sympy expression in them: the element offset into the buffer's storage. Symbols t0, t1, ... in an index stand for the
values of the access's ``indirect`` expressions (gathers).

Numbers: a floating-point value of fewer than 32 bits is never computed with. A Load yields the buffer's dtype, a "cast"
Call brings it to float32, and a Store rounds to the buffer's dtype. Every other Call has operands of the dtypes that
``optfuse.compiler.ir.scalar_functions`` lists, cast explicitly as ATen promotes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import sympy

BufferKind = Literal["input", "constant", "temporary"]
#: Anything else (complex, float8 of other kinds, ...) may name a buffer that only library calls touch.
DType = Literal[
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip
ReductionKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory, with the strides (in elements) that eager execution would give it.

    ``device`` is text as torch prints it ("cuda:0"), without meaning for the loops. ``base`` names the buffer that this
    one aliases: the result of a library call that returns a view (bytes seen as another dtype, a complex number as two
    real ones, the tensor of a collective that has ended).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    kind: BufferKind = "temporary"
    device: str = "cpu"
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """``lower <= expr < upper``: outside of it a guarded load yields ``other`` and touches no memory."""

    expr: sympy.Expr
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Const:
    """A scalar. ``value`` may be inf or nan."""

    value: bool | int | float
    dtype: str


@dataclass(frozen=True, slots=True)
class Load:
    """One element of ``buffer`` at ``index``. All guards must hold, else the value is ``other``."""

    buffer: str
    index: sympy.Expr
    dtype: str
    guards: tuple[Guard, ...] = ()
    other: Const | None = None
    indirect: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Iota:
    """The value of an index expression (arange, masks by position)."""

    index: sympy.Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function of ``ir.scalar_functions.FUNCTIONS``; "cast" converts its one argument to ``dtype``."""

    function: str
    args: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Result:
    """The k-th result of the nest's reductions (a welford yields three: mean, sum of squared deviations, count), or of
    its scan.
    """

    k: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Dot:
    """The sum of ``left * right`` over r0 < ``terms``, in float32: an element of the product of two matrices.

    A nest of one has sizes (rows, columns) and no other r variables. ``left`` is indexed by i0 and r0, ``right`` by r0
    and i1; both load the same type of 16-bit floats, without guards and indirect indices.
    """

    left: Load
    right: Load
    terms: int
    dtype: str = "float32"


Expr = Const | Load | Iota | Call | Result | Dot


@dataclass(frozen=True, slots=True)
class Reduction:
    """Fold ``operand`` over all r variables, in ``operand``'s dtype (already cast to the accumulation dtype).

    max and min propagate nan, as ATen does; argmax and argmin yield the int64 position in the row-major order of the r
    variables, the first one among equals, nan counting as the largest (smallest). welford yields mean, m2 and count.
    """

    kind: ReductionKind
    operand: Expr


@dataclass(frozen=True, slots=True)
class Scan:
    """Fold ``operands`` together along the nest's one r variable and keep every partial result: at r, those of 0 to r.

    ``combine`` has an expression for each of the n operands, of its dtype: Results 0 to n-1 in it are the fold so far,
    Results n to 2n-1 what follows. It must be associative: the order of folding is free, that of the elements is not.
    """

    operands: tuple[Expr, ...]
    combine: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """``buffer[index] = value`` for every parallel point; the value is rounded to the buffer's dtype.

    A store with ``indirect`` indices updates a buffer that exists already, at places that data tell: all other elements
    keep their values, and where points meet at one element any one of their values stays. One that ``adds`` adds the
    values of all points to what the element held, in no fixed order.
    """

    buffer: str
    index: sympy.Expr
    value: Expr
    indirect: tuple[Expr, ...] = ()
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an op: FX node name, ATen overload, module path, and source line, as far as known."""

    node: str
    target: str
    module: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class LoopNest:
    """For every parallel point: fold the reductions over ``rsizes``, then store.

    Without reductions ``rsizes`` is empty and the nest is pointwise. Stores and their indices use i variables only;
    with reductions, the stored values use i variables and Results. Sizes are at least 1: an op on an empty tensor has
    no nest, unless it is a reduction over nothing, which is a pointwise store of the identity.

    With a ``scan`` there are no reductions. Then the stored values and their indices use the r variable, too: Result k
    is what the scan has for its k-th operand at that point.
    """

    name: str
    sizes: tuple[int, ...]
    rsizes: tuple[int, ...]
    reductions: tuple[Reduction, ...]
    stores: tuple[Store, ...]
    origin: Origin
    scan: Scan | None = None

    @property
    def pointwise(self) -> bool:
        """Whether no point depends on others."""
        return not self.reductions and self.scan is None


@dataclass(frozen=True, slots=True)
class View:
    """A strided window of a buffer, in elements: an argument of a library call, or an output."""

    buffer: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TorchValue:
    """A torch object among a call's arguments, as text: ("dtype", "float32"), ("device", "cuda"), ("layout", ...);
    or a complex number by its parts: ("complex", "0.0 1.0").
    """

    kind: Literal["dtype", "device", "layout", "memory_format", "complex"]
    text: str


Arg = View | TorchValue | bool | int | float | str | None | tuple["Arg", ...]


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Call the overload ``target`` ("aten.addmm.default"). ``outputs`` has a buffer (or None) for each tensor returned.

    ``mutates`` names the buffers that the call writes in place. A call with ``random`` draws from torch's generator:
    such calls keep their program order. ``holds`` names the buffers that are in use until the call: the inputs of the
    collective that it waits for, which may be neither written nor freed before. ``ranks``: of a collective, how many
    take part, and ``group`` the name of their group; 0 where that is not known.
    """

    name: str
    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    outputs: tuple[str | None, ...]
    origin: Origin
    mutates: tuple[str, ...] = ()
    random: bool = False
    holds: tuple[str, ...] = ()
    group: str = ""
    ranks: int = 0


Op = LoopNest | LibraryCall
Output = View | bool | int | float | None


@dataclass(frozen=True, slots=True)
class LoopGraph:
    """A function: ``inputs`` (buffer names, in order) to ``outputs``; ``constants`` are buffers with known contents.

    A nest that stores into an input buffer mutates it; every reader of the old value comes before it in ``ops``. After
    a store at all places of an input nothing reads it; after an indirect one, readers get the new value.
    ``symbols``: the names of the sizes that its formulas may have, each with its hint.
    """

    name: str
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[tuple[str, int], ...] = ()


def views(call: LibraryCall) -> tuple[View, ...]:
    """All views among a call's arguments, in order."""
    return tuple(_views((*call.args, *(value for _, value in call.kwargs))))


def _views(args: Iterable[Arg]) -> Iterator[View]:
    for arg in args:
        if isinstance(arg, View):
            yield arg
        elif isinstance(arg, tuple):
            yield from _views(arg)


def memory_of(buffers: Mapping[str, Buffer], name: str) -> str:
    """The buffer that owns the memory of ``name``: itself, or the last of its chain of bases."""
    while (base := buffers[name].base) is not None:
        name = base
    return name


def ivar(k: int) -> sympy.Symbol:
    """The k-th parallel iteration variable."""
    return sympy.Symbol(f"i{k}", integer=True, nonnegative=True)


def rvar(k: int) -> sympy.Symbol:
    """The k-th reduced iteration variable."""
    return sympy.Symbol(f"r{k}", integer=True, nonnegative=True)


def tvar(k: int) -> sympy.Symbol:
    """The k-th indirect index of an access: any value that an integer tensor may hold."""
    return sympy.Symbol(f"t{k}", integer=True)
