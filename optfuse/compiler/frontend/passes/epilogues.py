"""Fuse convolution, batch norm, residual and ReLU into one library call, before functionalisation, without gradients.

A convolution leaves its result in memory, and a kernel of ours reads it, normalises and activates it, and writes it
again. cuDNN adds bias and residual and applies ReLU to what it has in registers. Batch norm in evaluation mode is a
factor and a term a channel: the factor goes into the weights, at each call, for they may have changed.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.convolution_forms.patches import lie_side_by_side
from optfuse.compiler.frontend.graph.evaluate import node_value
from optfuse.compiler.frontend.graph.rewrite import VIEWS, copied
from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload, is_mutating
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic, same_numbers

aten, ours = torch.ops.aten, torch.ops.optfuse

Kind = Literal["convolution", "norm", "add", "relu", "other"]

#: What torch functions, methods and ATen operators are called, and, of "other", what returns memory of its own.
_CALLS: Mapping[Kind, tuple[Any, ...]] = {
    "convolution": (torch.conv2d, aten.conv2d.default),
    "norm": (F.batch_norm, torch.batch_norm, aten.batch_norm.default),
    "add": (torch.add, operator.add, operator.iadd, "add", "add_", aten.add.Tensor, aten.add_.Tensor),
    "relu": (torch.relu, torch.relu_, F.relu, "relu", "relu_", aten.relu.default, aten.relu_.default),
    "other": (
        F.linear, torch.cat, operator.mul, operator.sub, torch.mul, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d,
        F.layer_norm, F.group_norm, F.interpolate, F.silu, F.gelu, torch.sigmoid, torch.matmul,
    ),
}  # fmt: skip
_KINDS: Mapping[Any, Kind] = {target: kind for kind, targets in _CALLS.items() for target in targets}
_HALF = frozenset({torch.float16, torch.bfloat16})

#: Arguments by name, with what they are where they are left out.
_CONVOLUTION = {
    "input": None, "weight": None, "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1
}  # fmt: skip
_NORM = {
    "input": None, "weight": None, "bias": None, "running_mean": None, "running_var": None, "training": False,
    "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": True,
}  # fmt: skip
_FUNCTIONAL_NORM = {
    "input": None, "running_mean": None, "running_var": None, "weight": None, "bias": None, "training": False,
    "momentum": 0.1, "eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Branch:
    """A convolution, and the batch norm behind it if there is one. No other node uses either."""

    convolution: Node
    norm: Node | None

    @property
    def given(self) -> list[Any]:
        """The convolution's arguments, all seven."""
        return list(_bound(self.convolution, _CONVOLUTION).values())

    @property
    def nodes(self) -> list[Node]:
        """Its nodes, last first."""
        return [self.convolution] if self.norm is None else [self.norm, self.convolution]

    def weight(self, before: Node) -> Node:
        """The weights that account for the norm."""
        kernel = self.given[1]
        if self.norm is None:
            return kernel
        norm = _normed(self.norm)
        args = kernel, norm["weight"], norm["running_var"], norm["eps"]
        return _put(before, ours.norm_weight.default, args, node_value(kernel))

    def shift(self, before: Node, beside: Node | None = None) -> Node:
        """The bias that accounts for the norm, and for what is added beside."""
        kernel, inner = self.given[1:3]
        value = node_value(kernel)
        row = value.new_empty(value.shape[0])
        if self.norm is not None:
            norm = _normed(self.norm)
            of_norm = [norm[name] for name in ("weight", "bias", "running_mean", "running_var", "eps")]
            return _put(before, ours.norm_shift.default, (kernel, *of_norm, inner, beside), row)
        if beside is None or inner is None:
            kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            zeros = aten.full.default, ([value.shape[0]], 0), row, kwargs
            return inner if inner is not None else beside or _put(before, *zeros)
        return _put(before, aten.add.Tensor, (inner, beside), row)


def fuse_activations(graph: GraphModule) -> GraphModule:
    """The graph with ``relu(norm(convolution(x)) + residual)`` as ``optfuse.convolution_relu``, in half precision.

    The norm, the residual and the convolution's own bias may be missing. A residual that is itself a norm of a
    convolution becomes a convolution without bias. Works on graphs before autograd, of torch functions or of ATen
    operators, some of which write in place; nothing may need a gradient.
    """
    if not any(_kind(node) == "convolution" for node in graph.graph.nodes):
        return graph
    if not all(_writes_what_it_owns(node) for node in graph.graph.nodes if _writes(node)):
        return graph
    graph = copied(graph)
    for node in list(graph.graph.nodes):
        if _kind(node) == "relu":
            _fuse(node)
    graph.recompile()
    return graph


def _kind(node: Any) -> Kind | None:
    return _KINDS.get(node.target) if isinstance(node, Node) and node.op in {"call_function", "call_method"} else None


def _bound(node: Node, names: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by name."""
    return {**names, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def _normed(norm: Node) -> dict[str, Any]:
    return _bound(norm, _FUNCTIONAL_NORM if norm.target is F.batch_norm else _NORM)


def _put(before: Node, target: Any, args: tuple[Any, ...], value: Any, kwargs: Mapping[str, Any] | None = None) -> Node:
    """A new node just before ``before``, with its fake value and ``before``'s source information."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, dict(kwargs or {}))
    node.meta = {key: found for key, found in before.meta.items() if key not in ("val", "example_value")}
    node.meta["val"] = value
    return node


def _fuse(relu: Node) -> None:
    total = relu.args[0] if relu.args else None
    if not isinstance(total, Node):
        return
    main, other = _branch(total), None
    if main is None:
        main, other = _sum(total)
    if main is None:
        return
    side = _branch(other) if other is not None else None
    residual, beside, gone = other, None, [relu, *([total] if total not in main.nodes else []), *main.nodes]
    if side is not None and side.norm is not None and other is not None:
        x, _, _, *sizes = side.given
        args = (x, side.weight(relu), None, *map(_pair, sizes[:3]), sizes[3])
        residual = _put(relu, aten.conv2d.default, args, node_value(other))
        beside = side.shift(relu)
        gone += side.nodes
    x, _, _, *sizes = main.given
    args = (x, main.weight(relu), main.shift(relu, beside), residual, *map(_pair, sizes[:3]))
    relu.replace_all_uses_with(_put(relu, ours.convolution_relu.default, args, node_value(relu)))
    for node in gone:
        if not node.users:
            relu.graph.erase_node(node)


def _sum(total: Node) -> tuple[_Branch | None, Node | None]:
    """A branch and the tensor of the same shape that is added to it; (None, None) of anything else."""
    if _kind(total) != "add" or total.kwargs or len(total.users) > 1 or len(total.args) != 2:
        return None, None
    left, right = total.args
    if not (isinstance(left, Node) and isinstance(right, Node)) or left is right:
        return None, None
    values = node_value(left), node_value(right)
    if not all(isinstance(x, torch.Tensor) for x in values) or not _alike(*values):
        return None, None
    for one, other in ((left, right), (right, left)):
        branch = _branch(one)
        if branch is not None:
            return branch, other
    return None, None


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype and shape, at whatever sizes."""
    return one.dtype is other.dtype and same_numbers(one.shape, other.shape)


def _branch(node: Node) -> _Branch | None:
    norm = node if _kind(node) == "norm" else None
    if norm is not None and (len(norm.users) > 1 or not _evaluates(norm)):
        return None
    convolution = node if norm is None else _normed(norm)["input"]
    if _kind(convolution) != "convolution":
        return None
    branch = _Branch(convolution, norm)
    x, kernel, inner, stride, padding, dilation, groups = branch.given
    values = [node_value(value) for value in (x, kernel, inner) if value is not None]
    if not all(isinstance(value, torch.Tensor) for value in values) or any(map(is_symbolic, values[1].shape)):
        return None
    # of several groups cuDNN has no fast kernel with an epilogue; where windows lie side by side, matmuls are faster
    known = values[0].dim() == 4 and groups == 1 and not any(isinstance(n, str) for n in (stride, padding, dilation))
    sizes = list(values[1].shape[2:])
    if not known or (sizes != [1, 1] and lie_side_by_side(values[0].shape[2:], sizes, _pair(stride), _pair(padding))):
        return None
    same = {value.dtype for value in values}
    return branch if len(convolution.users) == 1 and len(same) == 1 and same <= _HALF else None


def _evaluates(norm: Node) -> bool:
    """Whether a batch norm uses running statistics, which are there."""
    given = _normed(norm)
    return given["running_mean"] is not None and given["running_var"] is not None and given["training"] is False


def _pair(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [values[0], values[-1]]


def _writes(node: Node) -> bool:
    """Whether a node writes in place; an input is no call, whatever its name ends with."""
    if node.op not in {"call_function", "call_method"}:
        return False
    if isinstance(node.target, torch._ops.HigherOrderOperator):  # noqa: SLF001 - whose graphs are not looked into
        return True
    return is_mutating(node.target, node.kwargs) or _is_in_place(node)


def _is_in_place(node: Node) -> bool:
    """Whether a function of torch's is called with ``inplace=True``."""
    names = () if isinstance(node.target, OpOverload) else _parameters(node.target)
    return bool(_bound(node, dict.fromkeys(names)).get("inplace"))


@cache
def _parameters(function: Callable[..., Any] | str) -> tuple[str, ...]:
    if isinstance(function, str) or not getattr(function, "__module__", "").startswith("torch.nn"):
        return ()
    return tuple(inspect.signature(function).parameters)


def _writes_what_it_owns(node: Node) -> bool:
    """Whether what an operator writes in place has no other reader: then it might as well be out of place."""
    written = node.args[0] if node.args else None
    if not isinstance(written, Node) or len(written.users) != 1 or written.op not in {"call_function", "call_method"}:
        return False
    is_aten = isinstance(written.target, OpOverload) and written.target not in VIEWS
    return is_aten or _kind(written) is not None
