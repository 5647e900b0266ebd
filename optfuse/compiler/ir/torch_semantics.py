"""The semantics of the IR's scalar functions, reductions and library calls, in terms of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from optfuse.compiler.ir.nodes import Arg, LibraryCall, ReductionKind, TorchValue, View
from optfuse.compiler.ops import philox
from optfuse.errors import InvalidGraphError

Tensor = torch.Tensor


def torch_dtype(text: str) -> torch.dtype:
    """The torch dtype of that name ("float32", also "complex64" and the like)."""
    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidGraphError(f"{text} is not a dtype of torch")
    return dtype


def call_operator(
    call: LibraryCall,
    window: Callable[[View], Tensor],
    dtype: Callable[[str], torch.dtype],
    device: Callable[[str], torch.device],
) -> Sequence[Any]:
    """What the operator of a library call returns, given what its views, dtypes and devices are here."""
    overload: Any = torch.ops
    for part in call.target.split("."):
        overload = getattr(overload, part)

    def convert(arg: Arg) -> object:
        match arg:
            case View():
                return window(arg)
            case TorchValue("dtype", text):
                return dtype(text)
            case TorchValue("device", text):
                return device(text)
            case TorchValue("complex", text):
                return complex(*map(float, text.split()))
            case TorchValue():
                return getattr(torch, arg.text.removeprefix("torch."))
            case tuple():
                return [convert(item) for item in arg]
            case _:
                return arg

    returned = overload(*map(convert, call.args), **{key: convert(arg) for key, arg in call.kwargs})
    return returned if isinstance(returned, tuple | list) else [returned]


def call_function(name: str, args: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Apply a function of ``optfuse.compiler.ir.scalar_functions.FUNCTIONS``; only "cast" looks at ``dtype``."""
    if name == "cast":
        return args[0].to(dtype)
    if name in ("rand", "randn"):
        return _random(name, args).to(dtype)
    if name in _INTEGER_DIVISIONS and not args[0].is_floating_point():
        # no trap: x / 0 is some value, as on a device; eager raises before such a value could be used
        return _FUNCTIONS[name](args[0], args[1].masked_fill(args[1] == 0, 1))
    return _FUNCTIONS[name](*args)


def reduce_operand(kind: ReductionKind, operand: Tensor) -> tuple[Tensor, ...]:
    """Reduce the last dimension in the operand's dtype; welford gives mean, sum of squared deviations, and count."""
    match kind:
        case "sum":
            return (operand.sum(-1, dtype=operand.dtype),)
        case "prod":
            return (operand.prod(-1, dtype=operand.dtype),)
        case "max":
            return (operand.amax(-1),)
        case "min":
            return (operand.amin(-1),)
        case "any":
            return (operand.any(-1),)
        case "all":
            return (operand.all(-1),)
        case "argmax":
            return (_first(operand, operand.amax(-1, keepdim=True)),)
        case "argmin":
            return (_first(operand, operand.amin(-1, keepdim=True)),)
        case "welford":
            mean = operand.mean(-1, keepdim=True)
            count = torch.full_like(mean, operand.shape[-1])
            return mean[..., 0], (operand - mean).square().sum(-1), count[..., 0]


def _first(operand: Tensor, best: Tensor) -> Tensor:
    """The first position of the best value; nan (which amax and amin propagate) is found where it stands."""
    hit = operand == best
    if operand.is_floating_point():
        hit = hit | (operand.isnan() & best.isnan())
    positions = torch.arange(operand.shape[-1])
    return torch.where(hit, positions, operand.shape[-1]).amin(-1)


def _random(name: str, args: Sequence[Tensor]) -> Tensor:
    function = philox.rand if name == "rand" else philox.randn
    return torch.as_tensor(function(args[0].numpy(), args[1].numpy()))


def _floordiv(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _truncdiv(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


_INTEGER_DIVISIONS = frozenset({"floordiv", "truncdiv", "remainder", "fmod"})
_RENAMED: dict[str, Callable[..., Tensor]] = {
    "lone_mul": torch.mul,
    "floordiv": _floordiv,
    "truncdiv": _truncdiv,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "position": lambda index, _size: index,
}
_SAME_NAME = (
    "neg abs floor ceil trunc round sign relu bitwise_not exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal "
    "sigmoid tanh erf erfc erfinv sin cos tan asin acos atan sinh cosh asinh acosh atanh lgamma add sub mul maximum "
    "minimum fmax fmin remainder fmod bitwise_and bitwise_or bitwise_xor copysign div pow atan2 hypot eq ne lt le gt "
    "ge isnan isinf where"
)
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {name: getattr(torch, name) for name in _SAME_NAME.split()} | _RENAMED
