"""The closed table of scalar functions of the loop IR, with their arities and dtype rules.

``same``: result and operands share one dtype (never a half type). ``bool``: operands share one dtype, the result is
bool. ``cast``: any to any. ``where``: (bool, T, T) to T. ``lone_mul`` is a product that is never contracted with an
addition to one rounding, as a plain product may be. ``position`` is its first operand, an index that lies between 0 and
the second, a size: an access at another one is an error. Integer division and remainder follow Python (floor) or C
(trunc) as named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rule = Literal["same", "bool", "cast", "where", "random"]


@dataclass(frozen=True, slots=True)
class Function:
    """Arity, dtype rule, and whether the special-function units compute it."""

    arity: int
    rule: Rule = "same"
    special: bool = False


_SAME_1 = "neg abs floor ceil trunc round sign relu bitwise_not"
_SPECIAL_1 = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh erf erfc erfinv sin cos tan asin acos atan "
    "sinh cosh asinh acosh atanh lgamma"
)
_SAME_2 = (
    "add sub mul lone_mul maximum minimum fmax fmin floordiv truncdiv remainder fmod bitwise_and bitwise_or "
    "bitwise_xor lshift rshift copysign position"
)
_SPECIAL_2 = "div pow atan2 hypot"
_BOOL_2 = "eq ne lt le gt ge"
_BOOL_1 = "isnan isinf"

FUNCTIONS: dict[str, Function] = {
    **{name: Function(1) for name in _SAME_1.split()},
    **{name: Function(1, special=True) for name in _SPECIAL_1.split()},
    **{name: Function(2) for name in _SAME_2.split()},
    **{name: Function(2, special=True) for name in _SPECIAL_2.split()},
    **{name: Function(2, "bool") for name in _BOOL_2.split()},
    **{name: Function(1, "bool") for name in _BOOL_1.split()},
    "cast": Function(1, "cast"),
    "where": Function(3, "where"),
    # rand(seed, offset): a float32 in [0, 1) from Philox, a pure function of both int64 operands (offset >= 0)
    "rand": Function(2, "random"),
    "randn": Function(2, "random"),
}

#: Functions that are no work: conversions, and what an index must be.
FREE = frozenset({"cast", "position"})
