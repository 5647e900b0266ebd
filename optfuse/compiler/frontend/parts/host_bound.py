"""Parts of a graph that the host takes longer for than the GPU, where kernels of ours would shorten nothing.

At sizes that have not come before, a call of a compiled part takes the host longer than the part's operators do, one by
one. It pays where the GPU has work for longer than that. How long is known roughly before anything is compiled, by the
bytes that the operators read and write and by the multiplications of their products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    is_mutating,
    operator_name,
    shares_memory,
    tree_leaves,
)
from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of, is_symbolic

#: Microseconds of the host for a compiled part at new sizes (a module's tables, its first launches), on the host of an
#: H200: below twice as many of the GPU, a part runs as it was traced.
NEW_SIZES_US = 200.0
#: What a large GPU does in a microsecond, for the rough price: bytes that are moved, additions and multiplications.
BYTES, OPERATIONS = 4e6, 5e8

_PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"})


def gpu_us(graph: GraphModule, sizes: Mapping[sympy.Basic, int]) -> float:
    """Microseconds that a GPU takes, roughly, for the operators of torch.compile's graph at these sizes, one by one."""
    total = 0.0
    for node in graph.graph.nodes:
        made = _tensors(node)
        given = [tensor for source in node.all_input_nodes for tensor in _tensors(source)]
        if node.op not in {"call_function", "call_method"} or not made:
            continue
        if not is_mutating(node.target, node.kwargs) and all(any(shares_memory(x, y) for y in given) for x in made):
            continue  # a view
        total += sum(_elements(x, sizes) * x.element_size() for x in (*made, *given)) / BYTES
        if _name(node) in _PRODUCTS and given:
            inner = _number(given[0].shape[-1], sizes) if given[0].dim() else 1
            total += 2 * inner * sum(_elements(x, sizes) for x in made) / OPERATIONS
    return total


@dataclass(slots=True)
class HostBound:
    """Tells at which sizes a part is not worth a compiled call; ``symbols`` are those that a call's sizes are for."""

    graph: GraphModule
    symbols: Sequence[sympy.Basic]
    #: microseconds of a GPU at the sizes that were priced last, and these sizes' product; None before the first call
    us: float | None = field(default=None, init=False)
    size: int = field(default=0, init=False)

    def holds(self, sizes: Sequence[int], arguments: Sequence[Any]) -> bool:
        """Whether the host takes longer, at a call's sizes. Never where no argument is on a GPU."""
        size = math.prod(sizes)
        if self.us is None or size > 2 * self.size:  # the first sizes may be 0: no price grows from there
            known = dict(zip(self.symbols, sizes, strict=True))
            self.size, self.us = size, gpu_us(self.graph, known) if is_on_gpu(arguments) else math.inf
        return self.us < math.inf and self.us * size / max(1, self.size) < 2 * NEW_SIZES_US


def is_on_gpu(arguments: Sequence[Any]) -> bool:
    """Whether any of a call's tensors is."""
    return any(isinstance(x, torch.Tensor) and x.is_cuda for x in tree_leaves(list(arguments)))


def _tensors(node: Node) -> list[torch.Tensor]:
    leaves = tree_leaves(node.meta.get("example_value"))
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.layout is torch.strided]


def _name(node: Node) -> str:
    target = node.target
    return target if isinstance(target, str) else operator_name(target) or getattr(target, "__name__", "")


def _elements(tensor: torch.Tensor, sizes: Mapping[sympy.Basic, int]) -> float:
    return math.prod(_number(n, sizes) for n in tensor.shape)


def _number(size: Any, sizes: Mapping[sympy.Basic, int]) -> float:
    """A size's number; 1 where the sizes do not tell it."""
    if not is_symbolic(size):
        return float(size)
    found = expression_of(size).xreplace({symbol: sympy.Integer(n) for symbol, n in sizes.items()})
    return float(found) if found.is_number else 1.0
