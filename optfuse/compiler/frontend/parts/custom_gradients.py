"""Custom operators with a backward that no trace can follow, since it reads the values of tensors.

Such are products of groups by offsets: their backward loops over ``offsets.tolist()``. Each operator is differentiated
once on tensors without data; one that asks for a value is then run as traced, and what stands around it is compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import Node
from torch.fx.node import map_aggregate

from optfuse.compiler.frontend.operators.plan_operators import NAMESPACES
from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    DEPENDS_ON_DATA,
    OpOverload,
    outside_of_modes,
    tree_leaves,
)
from optfuse.compiler.frontend.torch_internals.torch_sizes import has_unbacked_size, hint_of, is_symbolic

#: A size or number that data decides, where an operator is only tried.
SOME = 4


def gradient_reads_values(node: Node) -> bool:
    """Whether a node of torch.compile's graph calls a custom operator with a backward that reads values of tensors."""
    target = node.target
    if not callable(target) or _namespace(target) in {"", *NAMESPACES}:
        return False
    given = [value for value in tree_leaves(_examples(node)) if isinstance(value, torch.Tensor)]
    if not any(value.requires_grad for value in given):
        return False
    with outside_of_modes(), FakeTensorMode() as mode, torch.enable_grad():
        args, kwargs = map_aggregate(_examples(node), lambda value: _without_symbols(value, mode))
        try:
            results = [value for value in tree_leaves(target(*args, **kwargs)) if _is_differentiable(value)]
            leaves = [value for value in tree_leaves((args, kwargs)) if _is_differentiable(value)]
            torch.autograd.grad(results, leaves, [torch.empty_like(value) for value in results], allow_unused=True)
        except DEPENDS_ON_DATA:
            return True
        except Exception:  # what else is wrong with it, the trace of the graph says
            return False
    return False


def _namespace(target: Any) -> str:
    """An operator's namespace; "" for any other function."""
    if isinstance(target, torch._ops.OpOverloadPacket):  # noqa: SLF001 - it has no public name
        return str(target._qualified_op_name).partition("::")[0]  # noqa: SLF001
    return str(target.namespace) if isinstance(target, OpOverload) else ""


def _examples(node: Node) -> Any:
    """The arguments with torch.compile's examples in the places of nodes."""
    return map_aggregate(
        (node.args, dict(node.kwargs)), lambda x: x.meta.get("example_value") if isinstance(x, Node) else x
    )


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _without_symbols(value: Any, mode: FakeTensorMode) -> Any:
    """An example of the same size at the hint, of another mode and a leaf."""
    if is_symbolic(value):
        return SOME if has_unbacked_size(value) else value.node.hint
    if not isinstance(value, FakeTensor):
        return value
    with mode:
        numbers = [value.shape, value.stride()]
        shape, stride = ([SOME if has_unbacked_size(n) else hint_of(n) for n in each] for each in numbers)
        made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)
