"""Bounds of indices that come from data: one that is known to be in range needs no check in the kernel."""

from __future__ import annotations

from collections.abc import Callable

from optfuse.compiler.ir.nodes import Call, Const, Expr, Iota, Load
from optfuse.compiler.ir.sizes import Size

Interval = tuple[int, int]

#: The bounds of a place, or of a value that another member has computed; None if they are not known.
BoundsOf = Callable[[Iota | Load], Interval | None]

#: Expressions that are nested deeper are not looked at: shared parts are looked at once for each use.
DEPTH = 10


def checked_position(expr: Expr) -> tuple[Expr, int] | None:
    """The index and the size that it must be less than, of an indirect index that has to be inside of a dimension."""
    match expr:
        case Call("position", (index, Const(int(size)))):
            return index, size
        case _:
            return None


def is_inside(index: Expr, size: int, bounds_of: BoundsOf) -> bool:
    """Whether an index is known to be in ``range(size)``: a place of ``arange``, or what wraps or clamps an index."""
    found = interval(index, bounds_of)
    return found is not None and not isinstance(size, Size) and found[0] >= 0 and found[1] < size


def interval(expr: Expr, bounds_of: BoundsOf, depth: int = DEPTH) -> Interval | None:
    """The least and the greatest value that an integer expression can have; None if that is not known."""

    def inside(part: Expr) -> Interval | None:
        return interval(part, bounds_of, depth - 1)

    if not depth or expr.dtype not in ("int32", "int64"):  # narrower ones wrap around
        return None
    match expr:
        case Const(int(value)) if not isinstance(value, Size):
            return value, value
        case Iota() | Load():
            found = bounds_of(expr)
            return None if found is None or any(isinstance(end, Size) for end in found) else found
        case Call("cast", (inner,)):
            return inside(inner)
        case Call("where", (Call("lt", (index, Const(0))), _, right)) if (inside(index) or (-1,))[0] >= 0:
            return inside(right)
        case Call("where", (_, left, right)):
            return _combined("where", inside(left), inside(right))
        case Call("remainder", (_, Const(int(value)))) if value > 0 and not isinstance(value, Size):
            return 0, value - 1
        case Call("minimum" | "maximum" | "add" | "sub", (left, right)):
            return _combined(expr.function, inside(left), inside(right))
        case _:
            return None


def _combined(function: str, one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return None
    (a, b), (c, d) = one, other
    return {
        "where": (min(a, c), max(b, d)),
        "minimum": (min(a, c), min(b, d)),
        "maximum": (max(a, c), max(b, d)),
        "add": (a + c, b + d),
        "sub": (a - d, b - c),
    }[function]
