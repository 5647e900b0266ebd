"""Lower sorts of short rows, and ``topk`` of many elements of them: ranks by counting.

The rank of an element is the number of elements that come before it: those that are less, and equal ones at earlier
positions. One nest counts, the next finds the element of each rank, a third gathers the values. The order is stable
whether it is asked for or not. nan is the greatest element, as in ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.dtypes import FLOATING
from optfuse.compiler.ir.nodes import Expr, Iota, Reduction, View, tvar
from optfuse.compiler.ir.sizes import Size, hint
from optfuse.compiler.lower.builder import Builder, Spec
from optfuse.compiler.lower.expressions import call, cast, const
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.scans import held_in
from optfuse.compiler.lower.strided_layout import Index

Tensor = View | Uniform

#: The longest row whose elements are compared with one another.
LONGEST_ROW = 128
#: The most comparisons, about 2 us of an H200's arithmetic; a library sorts many rows faster (4096 of 128 in 31 us).
MOST_COMPARISONS = 1 << 22


@lowers("aten.sort.default")
def lower_sort(builder: Builder, x: Tensor, dim: int = -1, descending: bool = False) -> Value:
    """The elements of each row in order, and their positions."""
    return ranked(builder, x, dim, descending=descending)


@lowers("aten.sort.stable")
def lower_stable_sort(
    builder: Builder, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Value:
    """The elements of each row in order, and their positions; equal ones keep theirs."""
    return ranked(builder, x, dim, descending=descending)


def ranked(builder: Builder, x: Tensor, dim: int, *, descending: bool) -> tuple[View, ...]:
    """Emit the nests of the node's sort, or of the first elements in order if its outputs hold fewer, and return those.

    Raises:
        Declined: If rows are long, or of a length that changes.
    """
    if not x.shape or isinstance(x.shape[dim], Size):
        raise Declined("a sort of a number, or of rows of a length that changes")
    dim %= len(x.shape)
    size = x.shape[dim]
    if not 1 <= size <= LONGEST_ROW or hint(prod(x.shape)) * size > MOST_COMPARISONS:
        raise Declined(f"a sort of {prod(x.shape) // max(1, size)} rows of {size} elements")
    held = held_in(builder.dtype(x))
    values, places = builder.specs
    builder.require_loops(values.device)
    name = builder.node.name

    def before(index: Index) -> tuple[Reduction, ...]:
        mine, other = index[dim], index[-1]
        here = cast(builder.load(x, index[:-1]), held)
        there = cast(builder.load(x, (*index[:dim], other, *index[dim + 1 : -1])), held)
        earlier = call("lt", Iota(other, "int32"), Iota(mine, "int32"))
        return (Reduction("sum", cast(_comes_before(there, here, earlier, descending=descending), "int32")),)

    counted = Spec(tuple(x.shape), row_major(x.shape), "int32", values.device)
    ranks = _over_row(builder, counted, size, before, name=f"{name}_rank")

    def found(index: Index) -> tuple[Reduction, ...]:
        there = index[-1]
        rank = builder.load(ranks, (*index[:dim], there, *index[dim + 1 : -1]))
        hit = call("eq", rank, Iota(index[dim], "int32"))
        return (Reduction("min", call("where", hit, Iota(there, "int32"), const(size - 1, "int32"))),)

    positions = _over_row(builder, places, size, found, name=f"{name}_places")

    def taken(index: Index) -> Expr:
        place = builder.load(positions, index)
        return builder.load(x, (*index[:dim], tvar(0), *index[dim + 1 :]), indirect=(place,), checked=False)

    return builder.pointwise(taken, values), positions


def _over_row(
    builder: Builder, spec: Spec, size: int, fold: Callable[[Index], tuple[Reduction, ...]], *, name: str
) -> View:
    """Emit a nest that folds over the positions of a row, the last of its indices, for each element of ``spec``."""
    (out,) = builder.reduction(
        (*spec.shape, size),
        (*spec.stride, 1),
        (len(spec.shape),),
        fold,
        lambda results, _: tuple(cast(result, spec.dtype) for result in results),
        specs=(spec,),
        name=name,
    )
    return out


def _comes_before(a: Expr, b: Expr, earlier: Expr, *, descending: bool) -> Expr:
    """Whether ``a``, which is ``earlier`` in memory or not, comes before ``b`` in the order."""
    first, second = (b, a) if descending else (a, b)
    less, equal = call("lt", first, second), call("eq", a, b)
    if a.dtype in FLOATING:
        nan, other = call("isnan", first), call("isnan", second)
        less = call("bitwise_or", less, call("bitwise_and", other, call("bitwise_not", nan)))
        equal = call("bitwise_or", equal, call("bitwise_and", nan, other))
    return call("bitwise_or", less, call("bitwise_and", equal, earlier))
