"""Fuse convolution, batch norm, residual and ReLU into one library call, before functionalisation, without gradients.

A convolution leaves its result in memory, and a kernel of ours reads it, normalises and activates it, and writes it
again. cuDNN adds bias and residual and applies ReLU to what it has in registers. Batch norm in evaluation mode is a
factor and a term a channel: the factor goes into the weights, at each call, for they may have changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.passes.rewrite import VIEWS, copied, insert, is_impure, swap
from optfuse.compiler.frontend.torch_bridge import is_mutating

aten, ours = torch.ops.aten, torch.ops.optfuse

_HALF = frozenset({torch.float16, torch.bfloat16})
_RELUS = frozenset({aten.relu.default, aten.relu_.default})
_ADDS = frozenset({aten.add.Tensor, aten.add_.Tensor})


@dataclass(frozen=True, slots=True)
class _Branch:
    """A convolution, and the batch norm behind it if there is one. No other node uses either."""

    convolution: Node
    norm: Node | None

    @property
    def given(self) -> list[Any]:
        """The convolution's arguments, all seven."""
        return [*self.convolution.args, *[None, [1, 1], [0, 0], [1, 1], 1][len(self.convolution.args) - 2 :]]

    def weight(self, before: Node) -> Node:
        """The weights that account for the norm."""
        kernel = self.given[1]
        if self.norm is None:
            return kernel
        _, weight, _, _, variance, _, _, eps = self.norm.args[:8]
        return insert(before.graph, before, ours.norm_weight.default, (kernel, weight, variance, eps))

    def shift(self, before: Node, beside: Node | None = None) -> Node:
        """The bias that accounts for the norm, and for what is added beside."""
        kernel, inner = self.given[1:3]
        if self.norm is not None:
            _, weight, bias, mean, variance, _, _, eps = self.norm.args[:8]
            args = (kernel, weight, bias, mean, variance, eps, inner, beside)
            return insert(before.graph, before, ours.norm_shift.default, args)
        if beside is None or inner is None:
            return inner if inner is not None else beside or _zeros(before, kernel)
        return insert(before.graph, before, aten.add.Tensor, (inner, beside))


def fuse_activations(graph: GraphModule) -> GraphModule:
    """The graph with ``relu(norm(convolution(x)) + residual)`` as ``optfuse.convolution_relu``, in half precision.

    The norm, the residual and the convolution's own bias may be missing. A residual that is itself a norm of a
    convolution becomes a convolution without bias. Works on an exported graph, where some operators write in place.
    """
    if not graph.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        return graph
    graph = copied(graph)
    if not all(_writes_what_it_owns(node) for node in graph.graph.nodes if _writes(node)):
        return graph
    for node in list(graph.graph.nodes):
        if node.target in _RELUS:
            _fuse(node)
    graph.graph.eliminate_dead_code(is_impure_node=_stays)
    graph.recompile()
    return graph


def _fuse(relu: Node) -> None:
    total = relu.args[0]
    assert isinstance(total, Node), "ReLU is of a tensor"
    main, other = _branch(total), None
    if main is None:
        main, other = _sum(total)
    if main is None:
        return
    side = _branch(other) if other is not None else None
    residual, beside = other, None
    if side is not None and side.norm is not None:
        x, _, _, *sizes = side.given
        residual = insert(relu.graph, relu, aten.conv2d.default, (x, side.weight(relu), None, *sizes))
        beside = side.shift(relu)
    x, _, _, *sizes = main.given
    args = (x, main.weight(relu), main.shift(relu, beside), residual, *map(_pair, sizes[:3]))
    swap(relu, insert(relu.graph, relu, ours.convolution_relu.default, args))


def _sum(total: Node) -> tuple[_Branch | None, Node | None]:
    """A branch and the tensor of the same shape that is added to it; (None, None) of anything else."""
    if total.target not in _ADDS or total.kwargs or len(total.users) > 1:
        return None, None
    left, right = total.args[:2]
    if not (isinstance(left, Node) and isinstance(right, Node)) or left is right:
        return None, None
    if left.meta["val"].shape != right.meta["val"].shape or left.meta["val"].dtype != right.meta["val"].dtype:
        return None, None
    for one, other in ((left, right), (right, left)):
        branch = _branch(one)
        if branch is not None:
            return branch, other
    return None, None


def _branch(node: Node) -> _Branch | None:
    norm = node if node.target is aten.batch_norm.default else None
    if norm is not None and (len(norm.users) > 1 or not _evaluates(norm)):
        return None
    convolution = node if norm is None else norm.args[0]
    if not isinstance(convolution, Node) or convolution.target is not aten.conv2d.default:
        return None
    branch = _Branch(convolution, norm)
    x, kernel, inner = branch.given[:3]
    # of several groups cuDNN has no fast kernel with an epilogue; where windows lie side by side, matmuls are faster
    known = convolution.meta["val"].dim() == 4 and branch.given[6] == 1 and not convolution.kwargs
    sizes, stride, padding = list(kernel.meta["val"].shape[2:]), *map(_pair, branch.given[3:5])
    if sizes == stride != [1, 1] and padding == [0, 0]:
        return None
    same = {value.meta["val"].dtype for value in (x, kernel, inner) if value is not None}
    return branch if known and len(convolution.users) == 1 and len(same) == 1 and same <= _HALF else None


def _evaluates(norm: Node) -> bool:
    """Whether a batch norm uses running statistics, which are there."""
    return not norm.kwargs and norm.args[3] is not None and norm.args[4] is not None and norm.args[5] is False


def _zeros(before: Node, kernel: Node) -> Node:
    value = kernel.meta["val"]
    kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    return insert(before.graph, before, aten.full.default, ([value.shape[0]], 0), kwargs)


def _pair(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [values[0], values[-1]]


def _writes(node: Node) -> bool:
    """Whether a node writes in place; an input is no call, whatever its name ends with."""
    return node.op == "call_function" and is_mutating(node.target)


def _writes_what_it_owns(node: Node) -> bool:
    """Whether what an operator writes in place has no other reader: then it might as well be out of place."""
    written = node.args[0]
    alone = isinstance(written, Node) and len(written.users) == 1 and written.op == "call_function"
    return alone and written.target not in VIEWS


def _stays(node: Node) -> bool:
    """An operator that writes what it owns, and whose result is unused, may go."""
    return is_impure(node) and not _writes(node)
