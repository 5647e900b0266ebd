"""Random integers, normal numbers around tensors, and one choice from each row of weights.

As the tensors of ``compiler.lower.random``: the numbers differ from eager's, but have the same distribution.
"""

from __future__ import annotations

from math import prod
from typing import Any

import sympy

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.nodes import Expr, Iota, Reduction, View
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, compute_dtype, const, like
from optfuse.compiler.lower.random import exponential_number, number_at, only_default, random_tensor, seed, uniform_at
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index

Tensor = View | Uniform

#: Bits of a uniform number in float32.
_BITS = 24
#: The widest range of integers: two uniform numbers have 2 ** 16 values for each.
_WIDEST = 1 << 32


@lowers("aten.randint.default", "aten.randint_like.default")
def lower_randint(builder: Builder, *args: Any, **_: Any) -> Value:
    """Integers from 0 to ``high`` - 1."""
    return _integers(builder, 0, args[1] if str(builder.node.target).startswith("aten.randint_like") else args[0])


@lowers("aten.randint.low", "aten.randint_like.low_dtype")
def lower_randint_from(builder: Builder, *args: Any, **_: Any) -> Value:
    """Integers from ``low`` to ``high`` - 1."""
    low, high = args[1:3] if str(builder.node.target).startswith("aten.randint_like") else args[:2]
    return _integers(builder, low, high)


def _integers(builder: Builder, low: int, high: int) -> Value:
    """The node's tensor of integers from ``low`` to ``high`` - 1, each by 48 random bits modulo their count."""
    spec = builder.spec
    if isinstance(low, Size) or isinstance(high, Size) or not 0 < high - low <= _WIDEST or spec.dtype == "bool":
        raise Declined("integers of a range that is wide, or known only when the graph runs")
    start = seed(builder)

    def bits(position: sympy.Expr) -> Expr:
        number = call("rand", start, Iota(position, "int64"))
        return cast(call("mul", number, like(1 << _BITS, number)), "int64")

    def at(index: Index) -> Expr:
        flat = sympy.Add(*(i * s for i, s in zip(index, row_major(spec.shape), strict=True)))
        both = call("add", call("mul", bits(flat), const(1 << _BITS, "int64")), bits(flat + prod(spec.shape)))
        found = call("add", call("remainder", both, const(high - low, "int64")), const(low, "int64"))
        return cast(found, compute_dtype(spec.dtype))

    return builder.pointwise(at)


@lowers("aten.normal.float_float")
def lower_normal_numbers(
    builder: Builder, mean: float, std: float, _size: Any, *, generator: Any = None, **_: Any
) -> Value:
    """Normal, of the given mean and deviation."""
    only_default(generator)
    return random_tensor(builder, "randn", mean, std)


@lowers("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def lower_normal_around(
    builder: Builder, mean: Tensor | float, std: Tensor | float = 1.0, *, generator: Any = None
) -> Value:
    """Normal, each number of its own mean and deviation."""
    only_default(generator)
    spec, start = builder.spec, seed(builder)
    dtype = compute_dtype(spec.dtype)

    def at(index: Index) -> Expr:
        number = cast(number_at("randn", start, index, spec.shape), dtype)

        def element(x: Tensor | float) -> Expr:
            return cast(builder.load(x, index), dtype) if isinstance(x, View | Uniform) else like(x, number)

        return call("add", call("mul", number, element(std)), element(mean))

    return builder.pointwise(at)


@lowers("aten.multinomial.default")
def lower_multinomial(
    builder: Builder, weights: Tensor, samples: int, _replacement: bool = False, *, generator: Any = None
) -> Value:
    """One position of each row, with a probability in proportion to its weight: the first of a race of exponentials."""
    only_default(generator)
    if samples != 1:
        raise Declined("several choices of a row")
    shape = tuple(weights.shape)
    start = seed(builder)

    def fold(index: Index) -> tuple[Reduction, ...]:
        weight = builder.load(weights, index)
        weight = cast(weight, compute_dtype(weight.dtype))
        time = exponential_number(cast(uniform_at(start, index, shape), weight.dtype))
        return (Reduction("argmax", call("div", weight, time)),)

    stride = weights.stride if isinstance(weights, View) else row_major(shape)
    outs = builder.reduction(shape, stride, (len(shape) - 1,), fold, lambda results, _: results, ordered=True)
    return outs[0]
