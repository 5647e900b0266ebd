"""Lower ``histc``: each bin counts the elements in it, a sum without atomics that is the same at each run."""

from __future__ import annotations

from math import prod

import sympy

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.dtypes import FLOATING
from optfuse.compiler.ir.nodes import Expr, Iota, Reduction, View
from optfuse.compiler.ir.sizes import hint
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, compute_dtype, like
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index

#: The most comparisons, one for each element and bin; beyond, a library counts faster.
MOST_COMPARISONS = 1 << 22


@lowers("aten.histc.default")
def lower_histc(builder: Builder, x: View | Uniform, bins: int = 100, low: float = 0, high: float = 0) -> Value:
    """How many elements lie in each of ``bins`` equal parts of ``low`` to ``high``; both ends belong to a part."""
    if low >= high:
        raise Declined("bounds that are found in the data")
    if hint(prod(x.shape)) * bins > MOST_COMPARISONS:
        raise Declined("many elements and bins")
    dtype = builder.dtype(x)
    computed = compute_dtype(dtype) if dtype in FLOATING else "int64"

    def fold(index: Index) -> tuple[Reduction, ...]:
        element = cast(builder.load(x, index[1:]), computed)
        hit = call("bitwise_and", _in_bin(element, index[0], bins, low, high), _between(element, low, high))
        return (Reduction("sum", cast(hit, "int32")),)

    stride = x.stride if isinstance(x, View) else row_major(x.shape)
    outs = builder.reduction(
        (bins, *x.shape),
        (0, *stride),
        range(1, len(x.shape) + 1),
        fold,
        lambda counts, _: (cast(counts[0], compute_dtype(dtype)),),
    )
    return outs[0]


def _between(element: Expr, low: float, high: float) -> Expr:
    return call("bitwise_and", call("ge", element, like(low, element)), call("le", element, like(high, element)))


def _in_bin(element: Expr, number: sympy.Expr, bins: int, low: float, high: float) -> Expr:
    """Whether an element within the bounds is in a bin; the last one takes the upper bound, too. As ATen rounds."""
    above = call("mul", call("sub", element, like(low, element)), like(bins, element))
    width = call("sub", like(high, element), like(low, element))
    place = call("truncdiv", above, width)
    last = like(bins - 1, element)
    return call("eq", call("minimum", place, last), Iota(number, element.dtype))
