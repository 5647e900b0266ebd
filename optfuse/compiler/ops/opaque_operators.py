"""Opaque operators: a node that only torch can run, as a library call with tensors in and out.

Control flow, ``flex_attention``, custom operators that write their arguments and the user's Triton kernels hold
subgraphs or objects that no plan can store. Each becomes an operator ``optfuse_opaque::NAME`` of this process, whose
body runs the node as it was traced. Operators cannot be unregistered: a body lives as long as the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch.fx import GraphModule
from torch.library import Library, register_fake

NAMESPACE = "optfuse_opaque"

_LIBRARY = Library(NAMESPACE, "FRAGMENT")
_NUMBERS = count()

#: The key of a node's ``meta`` that holds its ``AssociativeScan``.
SCAN = "optfuse_scan"


@dataclass(frozen=True, slots=True)
class AssociativeScan:
    """What a call of an opaque operator scans, along dimension 0.

    Attributes:
        combine: The graph of the combine function: the tensors so far and those that follow, to those together.
        operands: The call's arguments that are scanned, by position.
        kept: Which of the results the call returns.
    """

    combine: GraphModule
    operands: tuple[int, ...]
    kept: tuple[int, ...]


#: The dispatcher's included and excluded keys outside of operators.
_OUTSIDE = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())  # noqa: SLF001

#: Tensors, and sizes of the call, to the tensors that a node returns, in order.
Body = Callable[[Sequence[torch.Tensor], Sequence[int]], Sequence[torch.Tensor]]


def opaque_operator(
    name: str, body: Body, inputs: int, results: Sequence[torch.Tensor], *, numbers: int = 0, random: bool = False
) -> torch._ops.OpOverload:
    """A new operator of ``inputs`` tensors, and ``numbers`` sizes behind them, that runs ``body``.

    Args:
        name: The stem of its name; a number is appended.
        results: Tensors, possibly fake, like those that the body returns: at least one.
        random: Whether the body draws from torch's generator.
    """
    number = next(_NUMBERS)
    name = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{number}"
    forms = [(tuple(x.shape), tuple(x.stride()), x.dtype, x.device) for x in results]
    given = ", ".join([*(f"Tensor x{k}" for k in range(inputs)), *(f"SymInt n{k}" for k in range(numbers))])
    returned = ", ".join(["Tensor"] * len(forms))
    tags = (torch.Tag.nondeterministic_seeded,) if random else ()
    _LIBRARY.define(f"{name}({given}) -> {returned if len(forms) == 1 else f'({returned})'}", tags=tags)

    def run(*values: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        tensors, sizes = values[:inputs], values[inputs:]
        with torch._C._ForceDispatchKeyGuard(*_OUTSIDE):  # noqa: SLF001 - as a caller's code runs: vmap and all
            found = _apart(body(tensors, sizes), tensors)
        return found[0] if len(found) == 1 else found

    def fake(*_: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        made = tuple(
            torch.empty_strided(shape, stride, dtype=dtype, device=device) for shape, stride, dtype, device in forms
        )
        return made[0] if len(made) == 1 else made

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _apart(results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results, with a copy of each that aliases an argument or another result."""
    taken = {x.untyped_storage().data_ptr() for x in tensors}
    found = []
    for x in results:
        own = x.clone() if x.numel() and x.untyped_storage().data_ptr() in taken else x
        taken.add(own.untyped_storage().data_ptr())
        found.append(own)
    return tuple(found)
