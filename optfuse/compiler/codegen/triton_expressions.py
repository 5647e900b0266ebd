"""Scalar functions of the loop IR as Triton text, without redundant parentheses.

Values of half types are held as float32, all others in their own dtype. Special functions come from libdevice, because
Triton's own ``tl.exp`` and ``tl.log`` are approximations whose error grows with the argument. Where all results are
rounded to half types, approximations are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.compiler.ir.dtypes import BITS, FLOAT8, FLOATING, HALF, integer_range
from optfuse.compiler.ir.nodes import Const
from optfuse.compiler.ir.sizes import Size

# how tightly an expression binds, as in Python
COMPARISON, BIT_OR, BIT_XOR, BIT_AND, SUM, PRODUCT, UNARY, ATOM = range(8)

_OPERATORS = {
    **{"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT)},
    **{"bitwise_and": ("&", BIT_AND), "bitwise_or": ("|", BIT_OR), "bitwise_xor": ("^", BIT_XOR)},
    **{"eq": ("==", COMPARISON), "ne": ("!=", COMPARISON), "lt": ("<", COMPARISON)},
    **{"le": ("<=", COMPARISON), "gt": (">", COMPARISON), "ge": (">=", COMPARISON)},
}

#: Functions by the Triton function that computes them, whatever the operands' dtype.
_CALLS = {
    **{name: f"libdevice.{name}" for name in "exp expm1 log log2 log10 log1p tanh erfc erfinv sin cos tan".split()},
    **{name: f"libdevice.{name}" for name in "asin acos atan sinh cosh asinh acosh atanh lgamma".split()},
    **{name: f"libdevice.{name}" for name in "trunc atan2 hypot copysign".split()},
    **{name: f"tl.{name}" for name in "abs floor ceil exp2 erf rsqrt where randn".split()},
    **{"round": "libdevice.rint", "sqrt": "square_root", "div": "divide", "sigmoid": "sigmoid", "relu": "relu"},
    "rand": "uniform_number",
    **{"sign": "sign", "fmax": "tl.maximum", "fmin": "tl.minimum"},
}

#: Approximations in float32, where a few units in the last place do not matter.
_APPROXIMATE = {
    **{
        "exp": "libdevice.fast_expf",
        "sqrt": "tl.sqrt",
        "sigmoid": "fast_sigmoid",
        "tanh": "fast_tanh",
        "erf": "fast_erf",
    }
}

#: (for floats, for integers)
_BY_KIND = {
    "maximum": ("maximum", "tl.maximum"),
    "minimum": ("minimum", "tl.minimum"),
    "pow": ("libdevice.pow", "integer_power"),
    "lone_mul": ("libdevice.mul_rn", "product"),
    "floordiv": ("float_floor_quotient", "floor_quotient"),
    "remainder": ("float_remainder", "floor_remainder"),
}


@dataclass(frozen=True, slots=True)
class Value:
    """An expression in a kernel: its text, the dtype that it is held in, and the tile axes along which it varies.

    ``tightness`` is the precedence of its outermost operator. ``literal``: a Python number, not a tensor.
    """

    text: str
    dtype: str
    axes: frozenset[str] = frozenset()
    tightness: int = ATOM
    literal: bool = False

    def within(self, tightness: int) -> str:
        """The text as an operand where this precedence is needed, in parentheses if its own is lower."""
        return self.text if self.tightness >= tightness else f"({self.text})"

    @property
    def simple(self) -> bool:
        """Whether it is a literal or a name, so that it may be written twice."""
        return self.literal or self.text.isidentifier()


def constant(value: bool | int | float, dtype: str) -> Value:
    """A literal of a dtype: "2.0" for a float even if the value is an int. A size that changes is no literal float."""
    if dtype == "bool":
        text = str(bool(value))
    elif isinstance(value, Size) and dtype in FLOATING:
        return cast(constant(value, "int32"), dtype)
    elif isinstance(value, Size):
        text = str(value)
    elif dtype in FLOATING:
        number = float(value)
        if number == 0 and math.copysign(1, number) < 0:  # Triton 3.6 makes 0.0 of the number -0.0
            return Value(f"tl.full((), -1.0, {triton_type(dtype)}) * 0.0", dtype, tightness=PRODUCT)
        text = repr(number) if math.isfinite(number) else f'float("{number}")'
    else:
        text = str(int(value))
    return Value(text, dtype, tightness=UNARY if text.startswith("-") else ATOM, literal=True)


def const(expr: Const) -> Value:
    """The literal of a constant."""
    return constant(expr.value, expr.dtype)


#: Integer dtypes that a conversion of a number out of range yields the last bits of.
_WRAPPING = frozenset({"uint8", "uint16", "uint32", "int8", "int16"})

_FLOAT8 = {"float8_e4m3fn": "e4nv", "float8_e5m2": "e5"}


def triton_type(dtype: str) -> str:
    """The dtype in a kernel's text."""
    if dtype in FLOAT8:
        return f"tl.float8{_FLOAT8[dtype]}"
    return f"tl.{'int1' if dtype == 'bool' else dtype}"


def pointer_type(dtype: str) -> str:
    """The type of a pointer to elements, as Triton's signatures name it."""
    short = {"bool": "i1", "bfloat16": "bf16", **{name: f"fp8{kind}" for name, kind in _FLOAT8.items()}}.get(dtype)
    if short is None:
        short = dtype.replace("uint", "u").replace("int", "i").replace("float", "fp")
    return f"*{short}"


def tensor(value: Value) -> Value:
    """The value as a tensor: a literal alone would take the dtype of its neighbour, so it becomes ``tl.full``."""
    if not value.literal:
        return value
    return Value(f"tl.full((), {value.text}, {triton_type(value.dtype)})", value.dtype)


def cast(value: Value, dtype: str) -> Value:
    """Convert as C does (and to bool by comparison with zero)."""
    if value.dtype == dtype:
        return value
    if dtype == "bool":
        zero = "0.0" if value.dtype in FLOATING else "0"
        return Value(f"{tensor(value).within(SUM)} != {zero}", "bool", value.axes, COMPARISON)
    if dtype in FLOAT8:  # a GPU's conversion yields the largest number where ATen's may yield nan or infinity
        return Value(f"to_{dtype}({tensor(cast(value, 'float32')).text})", dtype, value.axes)
    steps = [triton_type(dtype)]
    if (dtype in HALF or value.dtype in FLOAT8) and "float32" not in (dtype, value.dtype):
        steps.insert(0, "tl.float32")
    if dtype in _WRAPPING and value.dtype in FLOATING:
        # out of range, ATen wraps around
        steps.insert(-1, "tl.int64" if dtype.startswith("uint") else "tl.int32")
    text = tensor(value).within(ATOM) + "".join(f".to({step})" for step in steps)
    return Value(text, dtype, value.axes)


def call(function: str, args: Sequence[Value], dtype: str, *, approximate: bool = False) -> Value:
    """The text of a scalar function (``ir.scalar_functions.FUNCTIONS``) of values held in the dtypes that it takes.

    ``approximate``: a few units in float32's last place do not matter.
    """
    if function == "cast":
        return cast(args[0], dtype)
    if function == "position":
        return args[0]
    same = args[1:] if function == "where" else args
    if all(arg.literal for arg in same):
        same = (tensor(same[0]), *same[1:])
    args = (tensor(args[0]), *same) if function == "where" else tuple(same)
    axes = frozenset[str]().union(*(arg.axes for arg in args))
    if function in _OPERATORS:
        symbol, tightness = _OPERATORS[function]
        # comparisons do not chain, and a - (b - c) is not a - b - c
        left = args[0].within(tightness + (tightness == COMPARISON))
        return Value(f"{left} {symbol} {args[1].within(tightness + 1)}", dtype, axes, tightness)
    if approximate and dtype == "float32":
        fast = _approximation(function, args, axes)
        if fast is not None:
            return fast
    return _special_form(function, args, dtype, axes) or _plain_call(function, args, dtype, axes)


def _approximation(function: str, args: Sequence[Value], axes: frozenset[str]) -> Value | None:
    """The fast float32 form of a function, if it has one."""
    match function:
        case "div":
            left = tensor(args[0]) if args[1].literal else args[0]
            return Value(f"{left.within(PRODUCT)} / {args[1].within(PRODUCT + 1)}", "float32", axes, PRODUCT)
        case "reciprocal":
            return Value(f"1.0 / {args[0].within(PRODUCT + 1)}", "float32", axes, PRODUCT)
        case _ if function in _APPROXIMATE:
            return Value(f"{_APPROXIMATE[function]}({tensor(args[0]).text})", "float32", axes)
        case _:
            return None


def _special_form(function: str, args: Sequence[Value], dtype: str, axes: frozenset[str]) -> Value | None:
    """The text of functions that Triton has an operator or a composed form for; None for others."""
    first = args[0]
    match function:
        case "neg" if dtype in FLOATING and not first.literal:  # Triton's minus is 0 - x, which makes 0.0 of 0.0
            return Value(f"{first.within(PRODUCT)} * -1.0", dtype, axes, PRODUCT)
        case "neg":
            return Value(f"-{first.within(UNARY + 1)}", dtype, axes, UNARY)
        case "bitwise_not" if dtype.startswith("uint"):
            return Value(f"{first.within(BIT_XOR)} ^ {integer_range(dtype)[1]}", dtype, axes, BIT_XOR)
        case "bitwise_not":
            return Value(f"~{first.within(UNARY + 1)}", dtype, axes, UNARY)
        case "isnan":
            return Value(f"{first.within(SUM)} != {first.within(SUM)}", dtype, axes, COMPARISON)
        case "isinf":
            return Value(f'tl.abs({first.text}) == float("inf")', dtype, axes, COMPARISON)
        case "reciprocal":
            return Value(f"divide({tensor(constant(1, dtype)).text}, {first.text})", dtype, axes)
        case "lshift" | "rshift":
            name = "shift_left" if function == "lshift" else "shift_right"
            shift = tensor(args[1])
            return Value(f"{name}({tensor(first).text}, {shift.text}, {BITS[dtype]})", dtype, axes)
        case "truncdiv":
            if dtype in FLOATING:
                return Value(f"libdevice.trunc(divide({tensor(first).text}, {args[1].text}))", dtype, axes)
            return Value(f"{first.within(PRODUCT)} // {args[1].within(UNARY)}", dtype, axes, PRODUCT)
        case "fmod" if dtype not in FLOATING:
            return Value(f"{first.within(PRODUCT)} % {args[1].within(UNARY)}", dtype, axes, PRODUCT)
        case _:
            return None


#: Functions whose operands may be Python numbers beside tensors.
_TAKES_NUMBERS = frozenset({"where", "maximum", "minimum", "fmax", "fmin"})


def _plain_call(function: str, args: Sequence[Value], dtype: str, axes: frozenset[str]) -> Value:
    if function in _BY_KIND:
        name = _BY_KIND[function][0 if dtype in FLOATING else 1]
    else:
        name = {"fmod": "libdevice.fmod"}.get(function) or _CALLS[function]
    if function == "div" and dtype != "float64":
        args = (tensor(args[0]), args[1])
    elif function not in _TAKES_NUMBERS or dtype == "float64" or dtype.startswith("uint"):
        # a number is taken as float32 or int32 beside other operands
        args = tuple(map(tensor, args))
    return Value(f"{name}({', '.join(arg.text for arg in args)})", dtype, axes)
