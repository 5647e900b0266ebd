"""Reductions: sum.

To add one: register its overloads with ``@lowers``, bring the operand to the accumulation dtype, and call
``Builder.reduction`` with the domain (the input's shape and strides), the dimensions to fold, ``fold`` (the reductions
at an index) and ``finish`` (an expression an output of the node, from the results). Half types accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optfuse.ir.nodes import Reduction
from optfuse.lower.builder import Builder, dtype_name
from optfuse.lower.expressions import cast, compute_dtype
from optfuse.lower.layout import contiguous_stride
from optfuse.lower.registry import Uniform, Value, View, lowers


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def lower_sum(
    builder: Builder, x: View | Uniform, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """Sum over ``dims`` (None or empty: all). The node's own dtype is the accumulation dtype."""
    accumulate = compute_dtype(builder.spec.dtype)
    operand_dtype = builder.dtype(x) if dtype is None else dtype_name(dtype)
    shape = x.shape
    stride = x.stride if isinstance(x, View) else contiguous_stride(shape)
    (out,) = builder.reduction(
        shape,
        stride,
        range(len(shape)) if not dims else dims,
        lambda index: (Reduction("sum", cast(cast(builder.load(x, index), compute_dtype(operand_dtype)), accumulate)),),
        lambda results, index: results,
    )
    return out
