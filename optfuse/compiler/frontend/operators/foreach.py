"""Operators on lists of tensors (``_foreach_add``), as optimizers call them: one operator a tensor, which can be fused.

A list operator is one library call that reads and writes all of its tensors; a chain of them moves each tensor through
memory again and again. One operator a tensor fuses a tensor's whole chain into a kernel, and kernels of one form share
a launch (``optfuse.problem.launches``). Where sizes may change they do not: there lists of small tensors stay library
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

#: Lists of changing sizes whose tensors have fewer bytes each, on average, stay whole: on an H200 a launch costs as
#: much as moving 5 MiB, and a chain of eight operators, as optimizers have, moves each tensor about 24 times.
LEAST_BYTES = 200 << 10

_ONE = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt
sigmoid sign sin sinh sqrt tan tanh trunc
""".split()
_TWO = "add sub mul div clamp_min clamp_max pow lerp".split()
#: What computes one tensor where torch has no function of the same name and arguments.
_CALLED: dict[str, Callable[..., Any]] = {
    "norm": torch.linalg.vector_norm,
    "zero": torch.zeros_like,
    "copy": aten.copy.default,
    # beside numbers they are clamp_min and clamp_max, as torch itself computes them
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, Tensor) else torch.clamp_min(x, y),
    "minimum": lambda x, y: torch.minimum(x, y) if isinstance(y, Tensor) else torch.clamp_max(x, y),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
}


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload of a list operator to its decomposition, which is NotImplemented for lists that stay whole."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in (*_ONE, *_TWO, *_CALLED):
        packet = getattr(aten, f"_foreach_{name}", None)
        function = _CALLED.get(name) or getattr(torch, name)
        for overload in packet.overloads() if packet is not None else ():
            # the scalars of addcmul.Tensor are a tensor's elements, whose values only a run tells
            if not overload.endswith("out") and (overload != "Tensor" or not name.startswith("addc")):
                table[getattr(packet, overload)] = _one_by_one(function)
    return table


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    def each(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        lists = [value for value in values if isinstance(value, Sequence) and value and isinstance(value[0], Tensor)]
        count = len(lists[0]) if lists else 0
        tensors = [tensor for some in lists for tensor in some]
        changing = any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)
        if changing and sum(t.numel() * t.element_size() for t in tensors) < LEAST_BYTES * len(tensors):
            return NotImplemented

        def at(k: int, value: Any) -> Any:
            return value[k] if isinstance(value, Sequence) and not isinstance(value, str) else value

        return [
            function(*(at(k, value) for value in args), **{name: at(k, value) for name, value in kwargs.items()})
            for k in range(count)
        ]

    return each
