"""Batch norm inside of a convolution's weights and bias (``optfuse.compiler.ops.convolution``): a nest each."""

from __future__ import annotations

from optfuse.compiler.ir.nodes import Expr, View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, like
from optfuse.compiler.lower.layout import Index
from optfuse.compiler.lower.registry import Uniform, Value, lowers

Tensor = View | Uniform


def _scale(builder: Builder, weight: Tensor | None, variance: Tensor, eps: float, channel: Index) -> Expr:
    spread = cast(builder.load(variance, channel), "float32")
    scale = call("rsqrt", call("add", spread, like(eps, spread)))
    return scale if weight is None else call("mul", scale, cast(builder.load(weight, channel), "float32"))


@lowers("optfuse.norm_weight.default")
def lower_norm_weight(builder: Builder, kernel: Tensor, weight: Tensor | None, variance: Tensor, eps: float) -> Value:
    """The weights times each channel's scale."""

    def at(index: Index) -> Expr:
        return call(
            "mul", cast(builder.load(kernel, index), "float32"), _scale(builder, weight, variance, eps, index[:1])
        )

    return builder.pointwise(at)


@lowers("optfuse.norm_shift.default")
def lower_norm_shift(
    builder: Builder,
    _kernel: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    inner: Tensor | None,
    beside: Tensor | None,
) -> Value:
    """What remains of batch norm for the bias, and what is added beside."""

    def at(index: Index) -> Expr:
        average = cast(builder.load(mean, index), "float32")
        own = like(0, average) if inner is None else cast(builder.load(inner, index), "float32")
        value = call("mul", call("sub", own, average), _scale(builder, weight, variance, eps, index))
        for part in (bias, beside):
            value = value if part is None else call("add", value, cast(builder.load(part, index), "float32"))
        return value

    return builder.pointwise(at)
