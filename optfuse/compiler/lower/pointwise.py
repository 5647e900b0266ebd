"""Lower pointwise ops, and register their rules in a short form:

    @pointwise("aten.addcmul.default", promoted=(0, 1, 2))
    def addcmul(a: Expr, b: Expr, c: Expr, *, value: float = 1) -> Expr: ...

The arguments at the positions ``promoted`` take part in ATen's type promotion and arrive as expressions of the
computation dtype, tensors and Python scalars alike. Other tensors arrive as expressions of their own dtype (float32 for
half types), all other arguments as in the graph. The result is cast to the output's dtype. Rules are in
``arithmetic`` and ``activations``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul, sub
from typing import Any

import torch
from torch.utils import _pytree as pytree

from optfuse.compiler.ir.dtypes import LIMITED, NARROW
from optfuse.compiler.ir.nodes import Expr, View
from optfuse.compiler.ir.size_float import SizeFloat
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.creation import uniform
from optfuse.compiler.lower.expressions import cast, computable, compute_dtype, scalar
from optfuse.compiler.lower.limited_dtypes import computes_in
from optfuse.compiler.lower.promotion import Kind, Operand, Promotion, promote
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index

Body = Callable[..., Expr]

#: The overloads that have a rule of the short form.
POINTWISE: set[str] = set()

#: Every value of these is exact in every half type.
_EXACT_IN_HALF = frozenset({"bool", "uint8", "int8"})

#: Operators that round a Python number to the tensor's half type first, as comparisons do; others take it as float32.
_ROUND_SCALARS = frozenset({"aten.fmod.Scalar", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"})

#: Operators that take a number in the host's memory as float32 beside half tensors on a GPU, as they do Python's.
TAKE_NUMBERS_WIDE = frozenset({f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")})

#: Arguments that concern the placement of a tensor, not its values.
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "non_blocking", "memory_format"})


def pointwise(*targets: str, promoted: tuple[int, ...] = (0,), kind: Kind = "same") -> Callable[[Body], Body]:
    """Register ``body`` for overloads that compute each element of the output from one element of each input."""

    def register(body: Body) -> Body:
        def rule(builder: Builder, *args: Any, **kwargs: Any) -> Value:
            return lower_pointwise(builder, body, promoted, kind, args, kwargs)

        lowers(*targets)(rule)
        POINTWISE.update(targets)
        return body

    return register


def lower_pointwise(
    builder: Builder, body: Body, promoted: tuple[int, ...], kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Value:
    """Promote, load, apply ``body``, store. An op on uniform tensors alone is evaluated at once.

    Raises:
        Declined: If promotion gives another dtype than eager does, or one that the operator is not known to have.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    if not any(isinstance(v, View) for v in leaves):
        if not any(isinstance(v.value if isinstance(v, Uniform) else v, Size | SizeFloat) for v in leaves):
            return _fold(builder, args, kwargs)
        if not kwargs and (size := _size(builder, args)) is not None:
            return uniform(builder, size)
    operands = (args[k] for k in promoted if k < len(args) and args[k] is not None)
    promotion = promote(kind, tuple(_operand(builder, v) for v in operands))
    dtype = builder.spec.dtype
    if promotion.common in LIMITED and not computes_in(str(builder.node.target), promotion.common):
        raise Declined(f"an operator that eager has not for {promotion.common}")
    if promotion.result != dtype:
        raise Declined(f"promotion gives {promotion.result}, eager {dtype}")

    def at(index: Index) -> Expr:
        exprs = [
            _promoted(builder, value, index, promotion) if k in promoted else _as_it_is(builder, value, index)
            for k, value in enumerate(args)
        ]
        others = {key: _as_it_is(builder, value, index) for key, value in kwargs.items()}
        return cast(body(*exprs, **others), compute_dtype(dtype))

    return builder.pointwise(at)


def _operand(builder: Builder, value: Any) -> Operand:
    if isinstance(value, View | Uniform):
        return builder.dtype(value), bool(value.shape)
    return int if isinstance(value, Size) else float if isinstance(value, SizeFloat) else type(value)


def _promoted(builder: Builder, value: Any, index: Index, promotion: Promotion) -> Expr | None:
    """An operand in the computation dtype. A wider tensor is rounded to a half common dtype first, as ATen does."""
    if value is None:
        return None
    if not isinstance(value, View | Uniform):
        given = scalar(value, promotion.compute)
        rounds = promotion.result == "bool" or str(builder.node.target) in _ROUND_SCALARS
        narrow = rounds and promotion.common in NARROW
        return cast(cast(given, promotion.common), promotion.compute) if narrow else given
    expr = builder.load(value, index)
    elsewhere = builder.device(value) != builder.main and not value.shape
    if elsewhere and str(builder.node.target) in TAKE_NUMBERS_WIDE:
        return cast(expr, promotion.compute)
    if promotion.common in NARROW and (expr.dtype not in _EXACT_IN_HALF or promotion.common in LIMITED):
        expr = cast(expr, promotion.common)
    return cast(expr, promotion.compute)


def _as_it_is(builder: Builder, value: Any, index: Index) -> Any:
    return computable(builder.load(value, index)) if isinstance(value, View | Uniform) else value


def _size(builder: Builder, args: tuple[Any, ...]) -> int | None:
    """The size that a sum or product of sizes is, where all are int64; None where it is none."""
    values = [arg.value if isinstance(arg, Uniform) else arg for arg in args]
    whole = [value for value in values if isinstance(value, int)]
    operator = {"aten.add.Tensor": add, "aten.sub.Tensor": sub, "aten.mul.Tensor": mul}.get(str(builder.node.target))
    if operator is None or builder.spec.dtype != "int64" or len(whole) != len(values) or len(whole) != 2:
        return None
    return operator(*whole)


def _fold(builder: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """The result of an op on uniform tensors, evaluated by torch on one element of each."""

    def element(value: Any) -> Any:
        if not isinstance(value, Uniform):
            return value
        return torch.full((1,) * len(value.shape), value.value, dtype=getattr(torch, value.dtype))

    here = {key: value for key, value in kwargs.items() if key not in _PLACEMENT}
    real_args, real_kwargs = pytree.tree_map(element, (args, here))
    target: Any = builder.node.target
    spec = builder.spec
    result = Uniform(target(*real_args, **real_kwargs).item(), spec.dtype, spec.shape, builder.origin, spec.device)
    return builder.in_memory(result) if builder.node in builder.written else result
