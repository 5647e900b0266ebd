"""Ops that move or convert elements: casts, clones, copies."""

from __future__ import annotations

from typing import Any

from optfuse.compiler.ir.nodes import View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.creation import uniform
from optfuse.compiler.lower.expressions import cast, compute_dtype
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers


def converted(builder: Builder, source: View | Uniform) -> Value:
    """``source`` broadcast to the node's shape and converted to its dtype, in a buffer of its own."""
    if isinstance(source, Uniform):
        return uniform(builder, source.value, source.dtype)
    dtype = builder.spec.dtype
    if builder.dtype(source) == dtype:
        return builder.copy(source)
    return builder.pointwise(lambda index: cast(builder.load(source, index), compute_dtype(dtype)))


@lowers(
    "aten._to_copy.default",
    "aten.clone.default",
    "aten.lift_fresh_copy.default",
    "optfuse.padded_rows.default",
    "prims.convert_element_type.default",
)
def lower_convert(builder: Builder, source: View | Uniform, *_: Any, pin_memory: bool = False, **__: Any) -> Value:
    """A copy, in the dtype and memory format that the node's fake tensor has."""
    if pin_memory:
        raise Declined("pinned memory")
    return converted(builder, source)


@lowers("aten.copy.default", "aten.fill.Tensor")
def lower_copy(builder: Builder, _target: Any, source: View | Uniform, _non_blocking: bool = False) -> Value:
    """The second tensor, broadcast and converted to the first one's shape and dtype."""
    return converted(builder, source)
