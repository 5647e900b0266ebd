"""Sizes that torch's tracer knows by symbols, as sizes of the loop IR and back."""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import (
    BitwiseFn_bitwise_and,
    CeilDiv,
    FloatTrueDiv,
    FloorDiv,
    Identity,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
    ToFloat,
)

from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.size_float import SizeFloat
from optfuse.compiler.ir.size_formula import evaluate
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.symbols.rounded_sizes import ROUNDINGS, rounded
from optfuse.errors import CaptureError


def size_of(value: torch.SymInt, decisions: Decisions) -> int:
    """The traced size as a size of the loop IR, a plain number if its expression is one.

    Raises:
        CaptureError: An expression other than sums, products, quotients, remainders, absolute values, extrema,
            roundings, and numbers without their last bits or with those alone.
    """
    return size_of_expression(value.node.expr, known_sizes(decisions))


def known_sizes(decisions: Decisions) -> dict[sympy.Basic, int]:
    """The symbols of a build as torch's expressions, with their sizes."""
    return {traced.node.expr: Size.symbol(name, decisions) for name, traced in decisions.traced.items()}


def size_of_expression(expr: sympy.Basic, known: dict[sympy.Basic, int]) -> int:
    """An expression of torch's as a size of the loop IR; ``known`` has those of its symbols, and keeps what is found.

    Raises:
        CaptureError: An expression other than sums, products, quotients, remainders, absolute values, extrema,
            roundings, and numbers without their last bits or with those alone.
    """
    if isinstance(expr, sympy.Integer):
        return int(expr)
    found = known.get(expr)
    if found is None:
        found = known[expr] = _computed(expr, known)
    return found


def _computed(expr: sympy.Basic, known: dict[sympy.Basic, int]) -> int:
    if isinstance(expr, ROUNDINGS):
        return rounded(expr, partial(size_of_expression, known=known))
    parts = [size_of_expression(part, known) for part in expr.args]
    if isinstance(expr, Identity):
        return parts[0]
    if isinstance(expr, FloorDiv):
        return parts[0] // parts[1]
    if isinstance(expr, CeilDiv):
        return -(-parts[0] // parts[1])
    if isinstance(expr, ModularIndexing):
        return parts[0] // parts[1] % parts[2]
    if isinstance(expr, (Mod, PythonMod)):
        return parts[0] % parts[1]
    if isinstance(expr, sympy.Abs):  # its sign becomes a guard
        return abs(parts[0])
    if isinstance(expr, BitwiseFn_bitwise_and):
        return _masked(expr, parts)
    if isinstance(expr, (Max, Min, sympy.Max, sympy.Min)):  # which of them it is becomes a guard
        return (max if isinstance(expr, (Max, sympy.Max)) else min)(parts)
    if isinstance(expr, (sympy.Pow, PowByNatural)) and not isinstance(parts[1], Size) and parts[1] > 0:
        parts = parts[:1] * parts[1]
    elif not isinstance(expr, (sympy.Add, sympy.Mul)):
        raise CaptureError(f"the size {expr} is no sum, product, quotient, remainder or extremum of sizes")
    total = parts[0]
    for part in parts[1:]:
        total = total + part if isinstance(expr, sympy.Add) else total * part
    return total


def _masked(expr: sympy.Basic, parts: list[int]) -> int:
    """A size's last bits, or the size without them: ``s & 7`` and ``s & -8``."""
    size, mask = parts if isinstance(expr.args[1], sympy.Integer) else reversed(parts)
    multiple = 3 if isinstance(mask, Size) else -mask if mask < 0 else mask + 1
    if multiple & (multiple - 1):
        raise CaptureError(f"the size {expr} has some of a number's bits, which are not its last ones or all but those")
    return size % multiple if mask >= 0 else size - size % multiple


def float_of(value: torch.SymFloat, decisions: Decisions) -> float:
    """The traced float as one of sizes of the loop IR, a plain number if its expression is one.

    Raises:
        CaptureError: An expression other than sums, products and quotients of sizes and numbers.
    """
    return _float(value.node.expr, known_sizes(decisions))


def _float(expr: sympy.Basic, known: dict[sympy.Basic, int]) -> float:
    if isinstance(expr, (sympy.Integer, sympy.Float)):
        return float(expr)
    if isinstance(expr, ToFloat):
        return SizeFloat.of("mul", size_of_expression(expr.args[0], known), 1.0)
    if isinstance(expr, IntTrueDiv):
        one, other = (size_of_expression(part, known) for part in expr.args)
        return SizeFloat.of("div", one, other)
    operators = {FloatTrueDiv: "div", sympy.Add: "add", sympy.Mul: "mul"}
    operator = next((name for kind, name in operators.items() if isinstance(expr, kind)), None)
    if operator is None:
        raise CaptureError(f"the number {expr} is no sum, product or quotient of sizes")
    total, *rest = (_float(part, known) for part in expr.args)
    for part in rest:
        total = SizeFloat.of(operator, total, part)
    return total


def traced_size(value: int) -> Any:
    """A size of the loop IR as what the tracer has for it; other numbers as they are."""
    return evaluate(value.formula, value.decisions.traced) if isinstance(value, Size) else value
