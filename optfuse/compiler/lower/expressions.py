"""Constructors of scalar expressions, so that rules read like formulas. They check dtypes and never simplify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import sympy
import torch

from optfuse.compiler.ir.dtypes import FLOATING, NARROW, integer_range
from optfuse.compiler.ir.nodes import Call, Const, DType, Expr, tvar
from optfuse.compiler.ir.scalar_functions import FUNCTIONS
from optfuse.compiler.ir.size_float import SizeFloat
from optfuse.compiler.ir.sizes import Size

DTYPES: frozenset[str] = frozenset(get_args(DType))


def compute_dtype(dtype: str) -> str:
    """The dtype in which values of ``dtype`` are computed: float32 for narrow types, else itself."""
    return "float32" if dtype in NARROW else dtype


def const(value: bool | int | float, dtype: str) -> Const:
    """A scalar of ``dtype``: half types become float32, and an integer out of range wraps around, as ATen's does."""
    dtype = compute_dtype(dtype)
    if dtype == "bool":
        return Const(bool(value), dtype)
    if dtype not in FLOATING and isinstance(value, Size) and -(2**31) <= value < 2**31:  # kernels take sizes of 32 bits
        return Const(value, dtype)
    if dtype in FLOATING:
        return Const(float(value), dtype)
    low, high = integer_range(dtype)
    return Const((int(value) - low) % (high - low + 1) + low, dtype)


def scalar(value: int | float, dtype: str) -> Expr:
    """A scalar that may be a size, as ``const``: where sizes change it is converted in the kernel."""
    dtype = compute_dtype(dtype)
    if dtype in FLOATING and isinstance(value, Size) and -(2**31) <= value < 2**31:
        return Call("cast", (Const(value, "int32"),), dtype)
    if isinstance(value, SizeFloat):
        return cast(Call(value.operator, tuple(scalar(part, "float64") for part in value.parts), "float64"), dtype)
    return const(value, dtype)


def cast(expr: Expr, dtype: str) -> Expr:
    """``expr`` in ``dtype``; nothing is added when it has that dtype already. Constants are converted here."""
    if expr.dtype == dtype:
        return expr
    if isinstance(expr, Const) and _converts_as_python(expr, dtype):
        return Const(rounded(expr.value, dtype), dtype) if dtype in NARROW else const(expr.value, dtype)
    if dtype == "bool":
        return truth(expr)
    return Call("cast", (expr,), dtype)


def computable(expr: Expr) -> Expr:
    """``expr`` itself, or its cast to float32 where it is of a half type."""
    return cast(expr, compute_dtype(expr.dtype))


def call(function: str, *args: Expr) -> Call:
    """Apply a function of ``FUNCTIONS`` other than "cast". Operand dtypes must agree already; half ones are refused."""
    rule = FUNCTIONS[function].rule
    operands = args[1:] if rule == "where" else args
    dtype = operands[0].dtype
    assert len(args) == FUNCTIONS[function].arity, f"{function} takes {FUNCTIONS[function].arity} operands"
    assert dtype not in NARROW, f"{function} of {dtype}: cast to float32"
    assert all(a.dtype == dtype for a in operands), f"{function} of {[a.dtype for a in args]}"
    match rule:
        case "bool":
            return Call(function, args, "bool")
        case "where":
            assert args[0].dtype == "bool", f"where: the condition is {args[0].dtype}"
            return Call(function, args, dtype)
        case "random":
            return Call(function, args, "float32")
        case _:
            return Call(function, args, dtype)


def within(shape: Sequence[int], index: Sequence[sympy.Expr], indirect: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The indirect indices of an access, each known to be a position in the dimension that it alone indexes."""
    sizes = dict(zip(index[::-1], shape[::-1], strict=False))

    def at(k: int) -> Expr:
        return placed(indirect[k], sizes[tvar(k)]) if tvar(k) in sizes else indirect[k]

    return tuple(map(at, range(len(indirect))))


def placed(index: Expr, size: int) -> Expr:
    """``index``, known to be a position in a dimension of that size: a kernel asserts it."""
    wide = cast(index, "int64")
    return call("position", wide, like(size, wide))


def rounded(value: bool | int | float, dtype: str) -> bool | int | float:
    """The value nearest to ``value`` that ``dtype`` has."""
    return torch.full((), value, dtype=getattr(torch, dtype)).item()


def truth(expr: Expr) -> Expr:
    """``expr != 0`` as a bool."""
    if expr.dtype == "bool":
        return expr
    operand = computable(expr)
    return call("ne", operand, like(0, operand))


def like(value: bool | int | float, expr: Expr) -> Const:
    """A constant of the dtype of ``expr``."""
    return const(value, expr.dtype)


def _converts_as_python(expr: Const, dtype: str) -> bool:
    """Whether Python converts as a machine does (not inf or nan to an integer, nor where integers wrap)."""
    if dtype in FLOATING or dtype == "bool":
        return True
    return isinstance(expr.value, bool | int) and 0 <= expr.value < 128
