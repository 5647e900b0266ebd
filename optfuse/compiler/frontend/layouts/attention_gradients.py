"""Gradients of attention's results in the layout that its backward reads: tokens outside of heads.

Flash attention copies a gradient that lies otherwise, as that of attention within windows does (Hiera, NesT). Our calls
of cuDNN's kernel copy one that lies otherwise than the queries. The loop that makes the gradient can write it so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.rewrite import fake, is_loop
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic

aten = torch.ops.aten

_CUDNN = aten._scaled_dot_product_cudnn_attention_backward.default  # noqa: SLF001 - these have no public names
#: Operators that copy their first argument, the gradient of a result (N, heads, tokens, width), if heads are outside;
#: cuDNN's if it lies otherwise than the second argument, the queries.
_ATTENTION_GRADIENTS = frozenset(
    {
        torch.ops.optfuse.attention_backward.default,
        aten._scaled_dot_product_flash_attention_backward.default,  # noqa: SLF001
        _CUDNN,
    }
)


def gradients_of_attention(graph: GraphModule) -> Iterator[str]:
    """Loops' results that only a backward of attention reads, which would copy them: tokens outside of heads."""
    for node in graph.graph.nodes:
        source: Any = node.args[0] if node.target in _ATTENTION_GRADIENTS else None
        value = None if source is None else fake(source)
        if value is None or value.dim() != 4 or any(map(is_symbolic, value.shape)):
            continue
        if value.transpose(1, 2).is_contiguous() or (node.target is _CUDNN and _heads_outside(node.args[1])):
            continue
        made = _behind_views(source, tuple(value.shape[-3:]))
        if is_loop(made) and len(made.users) == 1:
            yield made.name


def _heads_outside(queries: Any) -> bool:
    """Whether (N, heads, tokens, width) lies in memory with heads outside of tokens."""
    _, heads, tokens, _ = fake(queries).stride()
    return bool(heads > tokens)


def _behind_views(node: Node, last: tuple[int, ...]) -> Node:
    """What a node is a view of, through views with one reader that keep the last three dimensions; or the node."""
    while node.target is aten.view.default and len(node.users) == 1:
        source: Any = node.args[0]
        if tuple(source.meta["val"].shape[-3:]) != last:
            break
        node = source
    return node


def tokens_outside(value: torch.Tensor) -> tuple[int, ...]:
    """The strides of (..., heads, tokens, width) that lies in memory as (..., tokens, heads, width)."""
    *outer, heads, tokens, width = value.shape
    steps = list(accumulate([width, heads, tokens, *reversed(outer[1:])], mul))
    return (*reversed(steps[2 : 2 + len(outer)]), width, steps[1], 1)
