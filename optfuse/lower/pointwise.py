"""Pointwise ops: the short form of a rule, and the table of those that are one scalar function.

    @pointwise("aten.lerp.Scalar", operands=2)
    def lerp(a: Expr, b: Expr, weight: float) -> Expr: ...

The first ``operands`` arguments take part in ATen's type promotion and arrive as expressions in the computation dtype,
tensors and Python scalars alike; None stays None. The others arrive as they are in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from optfuse.ir.nodes import Expr, View
from optfuse.lower.builder import Builder
from optfuse.lower.expressions import HALF, call, cast, compute_dtype, const
from optfuse.lower.layout import Index
from optfuse.lower.promotion import Kind, Operand, Promotion, promote
from optfuse.lower.registry import Declined, Uniform, Value, lowers

Body = Callable[..., Expr]

#: Integers up to 256 are exact in every half type: no rounding to it is lost when they are read as float32.
_EXACT_IN_HALF = frozenset({"bool", "uint8", "int8"})


def pointwise(*targets: str, operands: int = 1, kind: Kind = "same") -> Callable[[Body], Body]:
    """Register ``body`` for overloads that compute each element of the output from the same element of the inputs."""

    def register(body: Body) -> Body:
        def rule(builder: Builder, *args: Any, **kwargs: Any) -> Value:
            return lower_pointwise(builder, body, operands, kind, args, kwargs)

        lowers(*targets)(rule)
        return body

    return register


def lower_pointwise(
    builder: Builder, body: Body, operands: int, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Value:
    """Promote, load, apply ``body``, store. An op on uniform tensors alone is computed here and now.

    Raises
    ------
    Declined
        If promotion gives another dtype than eager does.
    """
    promoted, rest = args[:operands], args[operands:]
    if not any(isinstance(v, View) for v in pytree.tree_leaves((args, kwargs))):
        return _fold(builder, args, kwargs)
    promotion = promote(kind, tuple(_operand(builder, v) for v in promoted if v is not None))
    out = builder.spec
    if promotion.result != out.dtype:
        raise Declined(f"promotion gives {promotion.result}, eager {out.dtype}")

    def at(index: Index) -> Expr:
        exprs = [None if v is None else _promoted(builder, v, index, promotion) for v in promoted]
        return cast(body(*exprs, *rest, **kwargs), compute_dtype(out.dtype))

    return builder.pointwise(at)


def _operand(builder: Builder, value: Any) -> Operand:
    if isinstance(value, View | Uniform):
        return builder.dtype(value), bool(value.shape)
    return type(value)


def _promoted(builder: Builder, value: Any, index: Index, promotion: Promotion) -> Expr:
    """An operand in the computation dtype. Wide integers are rounded to a half common dtype first, as ATen does."""
    if not isinstance(value, View | Uniform):
        return const(value, promotion.compute)
    expr = builder.load(value, index)
    integral = expr.dtype.startswith("int") and expr.dtype not in _EXACT_IN_HALF
    if promotion.common in HALF and integral and value.shape:
        expr = cast(expr, promotion.common)
    return cast(expr, promotion.compute)


def _fold(builder: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Uniform:
    """The op on uniform tensors, done by torch on one element of each."""
    spec = builder.spec

    def element(value: Any) -> Any:
        if not isinstance(value, Uniform):
            return value
        return torch.full((1,) * len(value.shape), value.value, dtype=getattr(torch, value.dtype))

    real_args, real_kwargs = pytree.tree_map((element), (args, kwargs))
    result = builder.node.target(*real_args, **real_kwargs)
    return Uniform(result.item(), spec.dtype, spec.shape, builder.node.name, spec.device)


_UNARY: dict[Kind, str] = {"same": "abs neg", "float": "exp erf"}

for _kind, _names in _UNARY.items():
    for _name in _names.split():
        pointwise(f"aten.{_name}.default", kind=_kind)(lambda x, _name=_name: call(_name, x))


@pointwise("aten.add.Tensor", "aten.add.Scalar", operands=2)
def add(a: Expr, b: Expr, alpha: float = 1) -> Expr:
    """a + alpha * b; of bools, or."""
    if a.dtype == "bool":
        return call("bitwise_or", a, b)
    return call("add", a, b if alpha == 1 else call("mul", b, const(alpha, b.dtype)))
