"""New tensors: of one value (inlined wherever they are read), arange, and copies in another dtype or layout."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from optfuse.compiler.ir.nodes import Expr, Iota, View
from optfuse.compiler.ir.size_float import SizeFloat
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import DTYPES, call, cast, compute_dtype, const
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index


def uniform(builder: Builder, value: Any, dtype: str | None = None) -> Value:
    """The node's tensor with ``value`` (of ``dtype``, if it was a tensor's), converted to its dtype, everywhere.

    In memory only if some op writes to it later.
    """
    spec = builder.spec
    if not isinstance(value, bool | int | float) or spec.dtype not in DTYPES:
        raise Declined(f"{value!r} as {spec.dtype}")
    if isinstance(value, Size | SizeFloat):  # kernels convert it: where that takes one step, as it does here
        whole = isinstance(value, Size) and dtype in (None, "int64")
        if spec.dtype not in (("int64", "float32", "float64") if whole else ("float32", "float64")) or dtype not in (
            None,
            "int64" if whole else "float64",
            spec.dtype,
        ):
            raise Declined(f"{value} as {spec.dtype}")
        tensor = Uniform(value, spec.dtype, spec.shape, builder.origin, spec.device)
        return builder.in_memory(tensor) if builder.node in builder.written else tensor
    scalar = torch.full((), value, dtype=getattr(torch, dtype or spec.dtype)).to(getattr(torch, spec.dtype))
    tensor = Uniform(scalar.item(), spec.dtype, spec.shape, builder.origin, spec.device)
    return builder.in_memory(tensor) if builder.node in builder.written else tensor


@lowers("aten.scalar_tensor.default")
def lower_scalar_tensor(builder: Builder, value: Any, **_: Any) -> Value:
    """A 0-d tensor of a scalar."""
    return uniform(builder, value)


@lowers("aten.full.default", "aten.full_like.default", "aten.fill.Scalar", "aten.new_full.default")
def lower_full(builder: Builder, *args: Any, **_: Any) -> Value:
    """A tensor of one value, which is the last positional argument."""
    return uniform(builder, args[-1])


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def lower_ones(builder: Builder, *_: Any, **__: Any) -> Value:
    """Ones."""
    return uniform(builder, 1)


@lowers(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.zero.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def lower_zeros(builder: Builder, *_: Any, **__: Any) -> Value:
    """Zeros; uninitialised tensors as well, since zeros need no memory."""
    return uniform(builder, 0)


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step", "prims.iota.default")
def lower_arange(builder: Builder, *args: Any, **kwargs: Any) -> Value:
    """start + step * position, exact if both are integers."""
    if str(builder.node.target) == "prims.iota.default":
        start, step = kwargs["start"], kwargs["step"]
    else:
        start = args[0] if len(args) > 1 else 0
        step = args[2] if len(args) > 2 else 1
    dtype = compute_dtype(builder.spec.dtype)

    def at(index: Index) -> Expr:
        (position,) = index
        if isinstance(start, Size) or isinstance(step, Size):
            return cast(Iota(sympy.sympify(start) + sympy.sympify(step) * position, "int64"), dtype)
        if float(start).is_integer() and float(step).is_integer():
            return cast(Iota(sympy.Integer(int(start)) + int(step) * position, "int64"), dtype)
        scaled = call("mul", cast(Iota(position, "int64"), dtype), const(step, dtype))
        return call("add", scaled, const(start, dtype))

    return builder.pointwise(at)


def converted(builder: Builder, source: View | Uniform | float) -> Value:
    """``source`` broadcast to the node's shape and converted to its dtype, in a buffer of its own.

    A number is what a few operators take for a tensor: derivatives under ``torch.func`` make such calls.
    """
    if isinstance(source, Uniform):
        return uniform(builder, source.value, source.dtype)
    if not isinstance(source, View):
        return uniform(builder, source)
    dtype = builder.spec.dtype
    if builder.dtype(source) == dtype:
        return builder.copy(source)
    return builder.pointwise(lambda index: cast(builder.load(source, index), compute_dtype(dtype)))


@lowers(
    "aten._to_copy.default",
    "aten.clone.default",
    "aten.lift_fresh_copy.default",
    "aten.alias_copy.default",
    "optfuse.padded_rows.default",
    "prims.convert_element_type.default",
)
def lower_convert(
    builder: Builder, source: View | Uniform | float, *_: Any, pin_memory: bool = False, **__: Any
) -> Value:
    """A copy, in the dtype and memory format that the node's fake tensor has."""
    if pin_memory:
        raise Declined("pinned memory")
    return converted(builder, source)


@lowers("aten.copy.default", "aten.fill.Tensor")
def lower_copy(builder: Builder, _target: Any, source: View | Uniform | float, _non_blocking: bool = False) -> Value:
    """The second tensor, broadcast and converted to the first one's shape and dtype."""
    return converted(builder, source)
