"""Lowering rules of arithmetic: first the ops that are one expression, then those that need a function."""

from __future__ import annotations

from typing import Any

from optfuse.compiler.ir.dtypes import FLOATING
from optfuse.compiler.ir.nodes import Const, Expr
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, like, truth
from optfuse.compiler.lower.pointwise import lower_pointwise, pointwise
from optfuse.compiler.lower.promotion import Kind
from optfuse.compiler.lower.registry import Value, lowers

_FLOAT_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh erf erfc erfinv sin cos tan asin acos atan "
    "sinh cosh asinh acosh atanh lgamma"
)
_ROUNDING = "floor ceil trunc round"
_COMPARISONS = "eq ne lt le gt ge"

for _name in _FLOAT_UNARY.split():
    pointwise(f"aten.{_name}.default", kind="float")(lambda x, _name=_name: call(_name, x))

for _name in _ROUNDING.split():
    pointwise(f"aten.{_name}.default")(lambda x, _name=_name: call(_name, x) if x.dtype in FLOATING else x)

for _name in ("isnan", "isinf"):
    pointwise(f"aten.{_name}.default", kind="bool")(
        lambda x, _name=_name: call(_name, x) if x.dtype in FLOATING else Const(False, "bool")
    )

for _name in ("fmax", "fmin", "maximum", "minimum"):
    pointwise(f"aten.{_name}.default", promoted=(0, 1))(lambda a, b, _name=_name: _of_numbers(_name, a, b))

for _name, _targets in {
    "atan2": ("aten.atan2.default",),
    "copysign": ("aten.copysign.Tensor", "aten.copysign.Scalar"),
}.items():
    pointwise(*_targets, promoted=(0, 1), kind="float")(lambda a, b, _name=_name: call(_name, a, b))

pointwise("aten.hypot.default", promoted=(0, 1))(lambda a, b: call("hypot", a, b))
pointwise("aten.bitwise_not.default")(lambda x: call("bitwise_not", x))
pointwise("aten.neg.default")(lambda x: call("neg", x))
pointwise("aten.frac.default")(lambda x: call("sub", x, call("trunc", x)))
pointwise("aten.sub.Tensor", "aten.sub.Scalar", promoted=(0, 1))(lambda a, b, alpha=1: call("sub", a, scale(b, alpha)))
pointwise("aten.rsub.Tensor", "aten.rsub.Scalar", promoted=(0, 1))(
    lambda a, b, alpha=1: call("sub", b, scale(a, alpha))
)
pointwise("aten.div.Tensor", "aten.div.Scalar", promoted=(0, 1), kind="float")(lambda a, b: call("div", a, b))
pointwise("aten.floor_divide.default", "aten.floor_divide.Scalar", promoted=(0, 1))(
    lambda a, b: _rounded_quotient(a, b, rounding_mode="floor")
)
pointwise("aten.clamp_min.default", "aten.clamp_min.Tensor", promoted=(0, 1))(lambda x, low: clamp(x, low))
pointwise("aten.clamp_max.default", "aten.clamp_max.Tensor", promoted=(0, 1))(lambda x, high: clamp(x, None, high))
pointwise("aten.where.self", promoted=(1, 2))(lambda condition, a, b: call("where", truth(condition), a, b))
pointwise("aten.addcmul.default", promoted=(0, 1, 2))(
    lambda a, b, c, *, value=1: call("add", a, call("mul", scale(b, value), c))
)
#: As Dynamo writes ``addcmul_`` and ``addcdiv_`` with a value, and ``add_`` with a tensor's multiple.
pointwise("prims.fma.default", promoted=(0, 1, 2))(lambda a, b, c: call("add", call("mul", a, b), c))
pointwise("aten.addcdiv.default", promoted=(0, 1, 2))(
    lambda a, b, c, *, value=1: call("add", a, call("div", scale(b, value), c))
)

for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    pointwise(*(f"aten.{_name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")), promoted=(0, 1))(
        lambda a, b, _name=_name: call(_name, a, b)
    )

for _name, _function in {"bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift"}.items():
    pointwise(*(f"aten.{_name}.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")), promoted=(0, 1))(
        lambda a, b, _function=_function: call(_function, a, b)
    )

for _name in _COMPARISONS.split():
    pointwise(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", promoted=(0, 1), kind="bool")(
        lambda a, b, _name=_name: _of_numbers(_name, a, b)
    )

for _name in ("and", "or", "xor"):
    pointwise(f"aten.logical_{_name}.default", promoted=(0, 1), kind="bool")(
        lambda a, b, _name=_name: call(f"bitwise_{_name}", truth(a), truth(b))
    )

pointwise("aten.logical_not.default", kind="bool")(lambda x: call("bitwise_not", truth(x)))

for _name, _targets in {
    "fmod": ("aten.fmod.Tensor", "aten.fmod.Scalar"),
    "remainder": ("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"),
}.items():
    pointwise(*_targets, promoted=(0, 1))(lambda a, b, _name=_name: call(_name, a, b))


def _number(x: Expr) -> Expr:
    """The operand as an integer if it is a bool, for functions that are not defined on bools."""
    return cast(x, "int32") if x.dtype == "bool" else x


def _of_numbers(function: str, a: Expr, b: Expr) -> Expr:
    return call(function, _number(a), _number(b))


def scale(x: Expr, factor: float) -> Expr:
    """x * factor; x itself for a factor of 1."""
    return x if factor == 1 else call("mul", x, like(factor, x))


@pointwise("aten.abs.default")
def absolute(x: Expr) -> Expr:
    """|x|."""
    return x if x.dtype in ("bool", "uint8") else call("abs", x)


@pointwise("aten.sign.default", "aten.sgn.default")
def sign(x: Expr) -> Expr:
    """-1, 0 or 1."""
    return x if x.dtype == "bool" else call("sign", x)


@pointwise("aten.add.Tensor", "aten.add.Scalar", promoted=(0, 1))
def add(a: Expr, b: Expr, alpha: float = 1) -> Expr:
    """a + alpha * b; of bools, or."""
    return call("bitwise_or", a, b) if a.dtype == "bool" else call("add", a, scale(b, alpha))


@pointwise("aten.mul.Tensor", "aten.mul.Scalar", promoted=(0, 1))
def multiply(a: Expr, b: Expr) -> Expr:
    """a * b; of bools, and."""
    return call("bitwise_and" if a.dtype == "bool" else "mul", a, b)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def lower_div_mode(builder: Builder, a: Any, b: Any, *, rounding_mode: str | None) -> Value:
    """a / b rounded as said; only an unrounded quotient of integers is a float."""
    kind: Kind = "float" if rounding_mode is None else "same"
    return lower_pointwise(builder, _rounded_quotient, (0, 1), kind, (a, b), {"rounding_mode": rounding_mode})


def _rounded_quotient(a: Expr, b: Expr, *, rounding_mode: str | None) -> Expr:
    if rounding_mode is None:
        return call("div", a, b)
    a, b = _number(a), _number(b)
    if a.dtype not in FLOATING:
        return call("floordiv" if rounding_mode == "floor" else "truncdiv", a, b)
    if rounding_mode == "trunc":
        return call("trunc", call("div", a, b))
    return _floor_quotient(a, b)


def _floor_quotient(a: Expr, b: Expr) -> Expr:
    """Python's a // b of floats: the remainder is subtracted first, so that a quotient that was rounded up is exact."""
    zero, half, one = like(0, a), like(0.5, a), like(1, a)
    remainder = call("fmod", a, b)
    quotient = call("div", call("sub", a, remainder), b)
    uneven = call("bitwise_and", truth(remainder), call("ne", call("lt", b, zero), call("lt", remainder, zero)))
    quotient = call("where", uneven, call("sub", quotient, one), quotient)
    floor = call("floor", quotient)
    nearest = call("where", call("gt", call("sub", quotient, floor), half), call("add", floor, one), floor)
    signed_zero = call("copysign", zero, call("div", a, b))
    result = call("where", call("eq", quotient, zero), signed_zero, nearest)
    return call("where", call("eq", b, zero), call("div", a, b), result)


@pointwise("aten.signbit.default", kind="bool")
def signbit(x: Expr) -> Expr:
    """Whether the sign is set: that of minus zero and of nan counts, too."""
    if x.dtype == "bool":
        return like(False, x)
    signed = call("copysign", like(1, x), x) if x.dtype in FLOATING else x
    return call("lt", signed, like(0, x))


@pointwise("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar", promoted=(0, 1), kind="long")
def power(a: Expr, b: Expr) -> Expr:
    """a ** b; the exponents that ATen computes without a logarithm are computed so here."""
    if not isinstance(b, Const):
        return call("pow", a, b)
    if b.value == 0:
        return like(1, a)
    if b.value == 1:
        return a
    if b.value == 2:
        return call("mul", a, a)
    if b.value == 3:
        return call("mul", call("mul", a, a), a)
    if a.dtype in FLOATING:
        if b.value == 0.5:
            return call("sqrt", a)
        if b.value == -0.5:
            return call("rsqrt", a)
        if b.value == -1:
            return call("reciprocal", a)
        if b.value == -2:
            return call("reciprocal", call("mul", a, a))
    return call("pow", a, b)


@pointwise("aten.clamp.default", "aten.clamp.Tensor", promoted=(0, 1, 2))
def clamp(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    """min(max(x, low), high), where each may be missing; nan stays nan."""
    x = x if low is None else _of_numbers("maximum", x, low)
    return x if high is None else _of_numbers("minimum", x, high)


@pointwise("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(x: Expr, mask: Expr, value: Any) -> Expr:
    """x, but ``value`` where the mask holds."""
    filler = cast(value, x.dtype) if isinstance(value, Expr) else like(value, x)
    return call("where", truth(mask), filler, x)


@pointwise("aten.lerp.Scalar", "aten.lerp.Tensor", promoted=(0, 1))
def lerp(a: Expr, b: Expr, weight: Any) -> Expr:
    """a + weight * (b - a), from the nearer end, so that both ends are exact."""
    w = cast(weight, a.dtype) if isinstance(weight, Expr) else like(weight, a)
    difference = call("sub", b, a)
    low = call("add", a, call("mul", w, difference))
    high = call("sub", b, call("mul", difference, call("sub", like(1, w), w)))
    return call("where", call("lt", call("abs", w), like(0.5, w)), low, high)
