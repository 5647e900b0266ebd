"""Tensors from nothing: those of one value are inlined wherever they are read; arange is an index as a value."""

from __future__ import annotations

from typing import Any

import sympy

from optfuse.ir.nodes import Const, Iota, View
from optfuse.lower.builder import Builder
from optfuse.lower.expressions import FLOATING, call, cast, compute_dtype, const
from optfuse.lower.layout import Index
from optfuse.lower.registry import Declined, Uniform, Value, lowers


def uniform(builder: Builder, value: bool | int | float) -> Value:
    """The node's tensor, with ``value`` (converted to its dtype) everywhere."""
    spec = builder.spec
    if spec.dtype not in FLOATING:
        value = const(value, spec.dtype).value
    tensor = Uniform(value, spec.dtype, spec.shape, builder.node.name, spec.device)
    return builder.in_memory(tensor) if builder.node in builder.written else tensor


@lowers("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def lower_full(builder: Builder, _like: Any, value: Any, *_: Any, **__: Any) -> Value:
    """``value`` is the second argument, or the third of new_full."""
    if str(builder.node.target) == "aten.new_full.default":
        value = builder.node.args[2]
    return _filled(builder, value)
