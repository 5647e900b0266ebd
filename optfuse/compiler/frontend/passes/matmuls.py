"""Fuse activations into matmuls whose results must be stored; add biases in the kernels that read a matmul."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import VIEWS, copied, fake, insert, is_loop, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY, is_random

aten, ours = torch.ops.aten, torch.ops.optfuse

_HALF = frozenset({torch.float16, torch.bfloat16})
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default})  # noqa: SLF001 - the name of an operator
_MATMULS = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, ours.addmm_activation.default}
)
#: An activation has no more operators than this.
MOST_OPERATORS = 16
#: Where an expression is compared with an activation.
_SAMPLES = torch.linspace(-9, 9, 181, dtype=torch.float64)


def take_out_biases(graph: GraphModule) -> None:
    """Rewrite ``addmm(bias, x, w)`` as ``mm(x, w) + bias`` where only loops read the result. Changes ``graph``.

    Loops add a bias at no cost; a matmul that adds it is a little slower, with few terms a dot product a lot.
    """
    for node in graph.graph.find_nodes(op="call_function", target=aten.addmm.default):
        bias, left, right = node.args[:3]
        value = fake(bias)
        if node.kwargs or len(node.args) > 3 or value is None or value.dim() != 1:
            continue
        readers = list(_readers(node))
        if readers and all(map(is_loop, readers)) and value.shape[0] == fake(node).shape[-1]:
            product = insert(graph.graph, node, aten.mm.default, (left, right))
            swap(node, insert(graph.graph, node, aten.add.Tensor, (product, bias)))
    graph.recompile()


def fuse_matmul_activations(captured: Captured) -> Captured:
    """Fuse ReLU or tanh-GELU into the matmul before it, where a matmul reads the result, in half precision.

    The activation is told by its values, however it is written. Biases are taken out of the other matmuls.
    """
    graph = copied(captured.graph)
    for node in list(graph.graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default) and _may_activate(node):
            found = _activation(node)
            if found is not None:
                _fuse(node, *found)
    take_out_biases(graph)
    return with_graph(captured, graph)


def _may_activate(node: Node) -> bool:
    value = fake(node)
    bias = fake(node.args[0]) if node.target is aten.addmm.default else None
    known = not node.kwargs and (bias is None or (len(node.args) == 3 and bias.dim() == 1 and bias.shape[0] > 1))
    return (
        known
        and value is not None
        and value.dtype in _HALF
        and value.is_contiguous()
        and all(n > 1 for n in value.shape)
    )


def _activation(node: Node) -> tuple[Node, bool] | None:
    """The node that is an activation of a matmul and of nothing else, which a matmul reads; and whether it is GELU."""
    width = fake(node).shape[-1]
    inside = {node}
    for user in _following(node):
        if len(inside) > MOST_OPERATORS:
            return None
        sources = user.all_input_nodes
        if not sources or any(source not in inside for source in sources) or not _is_elementwise(user, width):
            continue
        inside.add(user)
        if user.target in _RESHAPES or (user.target is TO_COPY and fake(user).dtype != fake(node).dtype):
            continue
        gelu = _told_by_values(user, node)
        if gelu is not None and _is_all(user, node) and any(reader.target in _MATMULS for reader in _readers(user)):
            same = fake(user).dtype == fake(node).dtype and fake(user).is_contiguous()
            return (user, gelu) if same else None
    return None


def _following(node: Node) -> Iterator[Node]:
    """The nodes after one, in the graph's order."""
    while node.next.op != "root":
        node = node.next
        yield node


def _is_elementwise(node: Node, width: int) -> bool:
    """Whether each element is made of one of the matmul's, at the same place of its row."""
    value = fake(node)
    if node.op != "call_function" or value is None or value.dim() == 0 or value.shape[-1] != width:
        return False
    known = node.target in _RESHAPES or node.target is TO_COPY
    return known or (torch.Tag.pointwise in getattr(node.target, "tags", ()) and not is_random(node.target))


def _told_by_values(node: Node, source: Node) -> bool | None:
    """False for ReLU, True for GELU, None for anything else."""
    try:
        values = _evaluated(node, source, {})
    except (RuntimeError, TypeError):  # operators that know no float64
        return None
    if values is None or values.dtype != _SAMPLES.dtype:
        return None
    for gelu, wanted in (
        (False, torch.relu(_SAMPLES)),
        (True, torch.nn.functional.gelu(_SAMPLES, approximate="tanh")),
    ):
        if torch.allclose(values, wanted, rtol=1e-6, atol=1e-9):
            return gelu
    return None


def _evaluated(node: Node, source: Node, known: dict[Node, Any]) -> torch.Tensor | None:
    """The values of an expression in float64, at some values of the matmul; None if it cannot be told."""
    if node is source:
        return _SAMPLES
    if node in known:
        return known[node]
    args = [_evaluated(arg, source, known) if isinstance(arg, Node) else arg for arg in node.args]
    if any(arg is None or not isinstance(arg, torch.Tensor | int | float) for arg in args[:1]):
        return None
    value: Any = args[0]
    if node.target not in _RESHAPES and node.target is not TO_COPY:
        if node.kwargs or any(arg is not None and not isinstance(arg, torch.Tensor | int | float) for arg in args):
            return None
        value = node.target(*args)  # type: ignore[operator]
    known[node] = value
    return value


def _is_all(node: Node, source: Node) -> bool:
    """Whether no other node reads what lies between a matmul and its activation."""
    between, stack = {node}, [node]
    while stack:
        for before in stack.pop().all_input_nodes:
            if before not in between:
                between.add(before)
                stack += [before] if before is not source else []
    return all(user in between for before in between - {node} for user in before.users)


def _fuse(node: Node, activation: Node, gelu: bool) -> None:
    if node.target is aten.addmm.default:
        bias, left, right = node.args[:3]
    else:
        left, right = node.args[:2]
        value = fake(node)
        assert value is not None, "a matmul is a tensor"
        kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        bias = insert(node.graph, node, aten.full.default, ([value.shape[-1]], 0), kwargs)
    fused = insert(node.graph, node, ours.addmm_activation.default, (bias, left, right, gelu))
    shape = list(activation.meta["val"].shape)
    assert prod(shape) == fake(fused).numel(), "an activation has its operand's elements"
    swap(activation, fused if len(shape) == 2 else insert(node.graph, activation, aten.view.default, (fused, shape)))


def _readers(node: Node) -> Iterator[Node]:
    """The readers of a value, through views."""
    for user in node.users:
        if user.target in VIEWS or user.target in _RESHAPES:
            yield from _readers(user)
        else:
            yield user
