"""Compute a batch in two halves, so that one half's communication runs beside the other half's computation.

Where a model is split among ranks, each all-reduce of a forward graph stands between two layers: nothing that does not
need its result is left to compute meanwhile. Two halves of a batch need nothing of each other.

Which dimension of a value is the batch's follows from the inputs by one rule an operator. An operator without a rule
ends the pass: then the graph stays whole. The fake value of each half must have the form that the rules say.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.passes.rewrite import copied, fake, insert, with_graph
from optfuse.compiler.frontend.torch_bridge import OpOverload, is_mutating, is_random, tree_leaves
from optfuse.compiler.ir.collectives import COMMUNICATION

aten = torch.ops.aten

#: What a link between two H100 carries, what products of matrices reach there, and what a small kernel takes beside its
#: work. All ranks must decide alike, so these are constants and no measurements.
LINK_BYTES_PER_US = 270_000
OPERATIONS_PER_US = 600e6
KERNEL_US = 3.5
#: Communication must take so many times what the second half's launches do.
WORTH = 2
#: What the host takes for a product or an attention with all that stands around it. Graphs with collectives have no
#: CUDA graph, so the products must take longer than the host does for both halves.
HOST_US = 60
#: Sizes of inputs that are tried as the batch's.
MOST_TRIES = 3

#: By value the dimension in which it is cut into halves; of a tuple by item.
Dims = dict[Node, int]


class _Whole(Exception):
    """An operator has no rule, or the rules contradict one another."""


def compute_in_halves(captured: Captured, worth: float = WORTH) -> Captured:
    """The same graph with what comes before its last all-reduce computed for each half of the batch, where that pays.

    Before: ``y = wait(all_reduce(x @ w)); z = wait(all_reduce(f(y)))``. After: the same for ``x[:n]`` and ``x[n:]``,
    and ``z = cat(z0, z1)``. It pays where communication takes ``worth`` times what the second half's launches do, and
    the products take longer than the host.
    """
    if captured.visible is not None or captured.name.endswith(".backward") or captured.decisions is not None:
        return captured  # a training step's halves would have to be put together for its backward graph
    if captured.mutations or not _is_worth_it(captured, worth):
        return captured
    for batch in _batches(captured):
        graph = copied(captured.graph)
        try:
            dims = _dims(with_graph(captured, graph), batch)
            _split(graph, _region(graph, dims), dims)
        except _Whole:
            continue
        return with_graph(captured, graph)
    return captured


def _batches(captured: Captured) -> list[int]:
    """Sizes that may be the batch's, the smallest first: parameters that are split among ranks come as inputs, too."""
    sources = zip(captured.inputs, captured.placeholders, strict=True)
    shapes = [
        tuple(x.shape) for x in (fake(node) for source, node in sources if source.kind == "user") if x is not None
    ]
    return sorted({shape[0] for shape in shapes if len(shape) > 1 and shape[0] % 2 == 0 and shape[0]})[:MOST_TRIES]


def _is_worth_it(captured: Captured, worth: float) -> bool:
    """Whether transfers take much longer than the launches that a second half adds, and the host can keep up."""
    sent = operations = 0
    kernels = 0
    for node in captured.graph.graph.nodes:
        name, value = _name(node), fake(node)
        if name == "all_reduce":
            sent += 0 if value is None else value.numel() * value.itemsize
        elif name in ("mm", "addmm", "bmm") and value is not None:
            factor = fake(node.args[1 if name == "addmm" else 0])  # type: ignore[arg-type]
            operations += 0 if factor is None else 2 * value.numel() * factor.shape[-1]
            kernels += 1
        elif "attention" in name:
            kernels += 1
    is_long = operations / OPERATIONS_PER_US > worth * HOST_US * kernels
    return is_long and sent / LINK_BYTES_PER_US > worth * KERNEL_US * 2 * kernels


def _dims(captured: Captured, batch: int) -> Dims:
    """By value that depends on the batch, the dimension in which it is cut."""
    sources = zip(captured.inputs, captured.placeholders, strict=True)
    given = [(node, fake(node)) for source, node in sources if source.kind == "user"]
    dims = {node: 0 for node, value in given if value is not None and value.dim() and value.shape[0] == batch}
    for node in captured.graph.graph.nodes:
        if node.op == "call_function" and any(x in dims for x in node.all_input_nodes):
            rule = _rule(node)
            if rule is None:
                raise _Whole
            dims[node] = rule(node, dims)
    return dims


def _region(graph: GraphModule, dims: Dims) -> list[Node]:
    """What is computed in halves, in order: all that an all-reduce needs, and the waits for these."""
    needed: set[Node] = set()
    nodes = [node for node in graph.graph.nodes if node.op == "call_function" and node in dims]
    for node in reversed(nodes):
        is_sent = _name(node) == "all_reduce"
        awaits = _name(node) == "wait_tensor"
        if is_sent or awaits or any(user in needed for user in node.users):
            needed.add(node)
    return [node for node in nodes if node in needed]


def _split(graph: GraphModule, region: Sequence[Node], dims: Dims) -> None:
    """Put both halves of each value of the region in its place, and both together for what is outside."""
    halves: dict[Node, list[Node]] = {}
    inside = set(region)
    for node in region:
        for x in node.all_input_nodes:
            if x in dims and x not in halves:
                halves[x] = [_half(graph.graph, node, x, dims[x], k) for k in range(2)]
        made = []
        for k in range(2):
            try:
                half = insert(graph.graph, node, node.target, *_arguments(node, halves, dims, k))  # type: ignore[arg-type]
            except RuntimeError as error:  # a half's strides may not allow a view that the whole's do
                raise _Whole from error
            _require_half(half, node, dims[node])
            made.append(half)
        halves[node] = made
    for node in reversed(region):
        outside = [user for user in node.users if user not in inside]
        if outside:
            if fake(node) is None:
                raise _Whole
            whole = insert(graph.graph, node.next, aten.cat.default, (halves[node], dims[node]))
            whole.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(whole, delete_user_cb=lambda user: user not in inside and user is not whole)  # noqa: B023
    for node in reversed(region):
        graph.graph.erase_node(node)


def _half(graph: Graph, before: Node, value: Node, dim: int, k: int) -> Node:
    size = _value(value).shape[dim] // 2
    return insert(graph, before, aten.slice.Tensor, (value, dim, k * size, (k + 1) * size))


def _arguments(node: Node, halves: dict[Node, list[Node]], dims: Dims, k: int) -> tuple[Any, Any]:
    """A node's arguments for one half: halves of values, and sizes of the half's form."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: halves[x][k] if x in dims else x)
    if _name(node) in ("view", "reshape", "_unsafe_view", "expand"):
        shape = list(_value(node).shape)
        shape[dims[node]] //= 2
        args = (args[0], shape, *args[2:])
    return args, kwargs


def _require_half(half: Node, node: Node, dim: int) -> None:
    for made, whole in zip(_tensors(half), _tensors(node), strict=True):
        expected = [size // 2 if k == dim else size for k, size in enumerate(whole.shape)]
        if list(made.shape) != expected or made.dtype != whole.dtype:
            raise _Whole


def _tensors(node: Node) -> list[torch.Tensor]:
    """The tensors of a node that are cut: of several results, as of attention, the first."""
    found = [x for x in tree_leaves([node.meta["val"]]) if isinstance(x, torch.Tensor)]
    return found if _name(node) in ("split", "split_with_sizes") else found[:1]


# ------------------------------------------------------------------ rules

Rule = Callable[[Node, Dims], int]


def _rule(node: Node) -> Rule | None:
    name, target = _name(node), node.target
    if is_mutating(target, node.kwargs):
        return None
    if name in _RULES:
        return _RULES[name]
    if name == "attention" or (name.lstrip("_").startswith("scaled_dot_product") and "backward" not in name):
        return _attention
    is_pointwise = isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags
    return _pointwise if is_pointwise and not is_random(target) else None


def _pointwise(node: Node, dims: Dims) -> int:
    """The one dimension, from the last, that all operands are cut in; others have one element there or none."""
    rank = _value(node).dim()
    operands = [x for x in node.all_input_nodes if fake(x) is not None]
    if len(operands) < len(node.all_input_nodes):
        raise _Whole
    places = {dims[x] + rank - _value(x).dim() for x in operands if x in dims}
    if len(places) != 1:
        raise _Whole
    (place,) = places
    for x in operands:
        own = place - rank + _value(x).dim()
        if x not in dims and own >= 0 and _value(x).shape[own] != 1:
            raise _Whole
    return place


def _same(node: Node, dims: Dims) -> int:
    return _only(node, dims, 0)


def _only(node: Node, dims: Dims, position: int) -> int:
    """The dimension of one argument, where no other one is cut."""
    argument: Any = node.args[position]
    if argument not in dims or any(x in dims and x is not argument for x in node.all_input_nodes):
        raise _Whole
    return dims[argument]


def _product(node: Node, dims: Dims) -> int:
    """A product's rows are those of its first factor; of a batch of products both factors are cut."""
    name = _name(node)
    if name == "bmm":
        if [dims.get(x) for x in node.args] != [0, 0]:  # type: ignore[misc]
            raise _Whole
        return 0
    first = 1 if name == "addmm" else 0
    if first and (_value(node.args[0]).dim() != 1):  # type: ignore[arg-type]
        raise _Whole
    return _require(_only(node, dims, first) == 0, 0)


def _reshaped(node: Node, dims: Dims) -> int:
    """The dimension with as many elements before it, if it is even there, too: then a half is the same elements."""
    source: Any = node.args[0]
    dim, old, new = _same(node, dims), _value(source).shape, _value(node).shape
    before = math.prod(old[:dim])
    for place in range(len(new)):
        if math.prod(new[:place]) == before and new[place] != 1:
            return _require(new[place] % 2 == 0, place)
    raise _Whole


def _permuted(node: Node, dims: Dims) -> int:
    order: Any = node.args[1]
    rank = _value(node).dim()
    return [axis % rank for axis in order].index(_same(node, dims))


def _transposed(node: Node, dims: Dims) -> int:
    dim, rank = _same(node, dims), _value(node).dim()
    a, b = (0, 1) if _name(node) == "t" else (int(axis) % rank for axis in node.args[1:3])  # type: ignore[arg-type]
    return {a: b, b: a}.get(dim, dim)


def _unsqueezed(node: Node, dims: Dims) -> int:
    place = int(node.args[1]) % _value(node).dim()  # type: ignore[arg-type]
    dim = _same(node, dims)
    return dim + (place <= dim)


def _squeezed(node: Node, dims: Dims) -> int:
    source: Any = node.args[0]
    dim, shape = _same(node, dims), _value(source).shape
    given = node.args[1] if len(node.args) > 1 else range(len(shape))
    axes = [int(axis) % len(shape) for axis in (given if isinstance(given, (list, tuple, range)) else [given])]  # type: ignore[arg-type]
    gone = [axis for axis in axes if shape[axis] == 1]
    return _require(dim not in gone, dim - sum(axis < dim for axis in gone))


def _expanded(node: Node, dims: Dims) -> int:
    source: Any = node.args[0]
    return _same(node, dims) + _value(node).dim() - _value(source).dim()


def _cut(node: Node, dims: Dims) -> int:
    """A slice or split along another dimension."""
    source: Any = node.args[0]
    default = 2 if _name(node) in ("split", "split_with_sizes") else 1
    axis = node.args[default] if len(node.args) > default else node.kwargs.get("dim", 0)
    return _require(int(axis) % _value(source).dim() != _same(node, dims), _same(node, dims))  # type: ignore[arg-type]


def _selected(node: Node, dims: Dims) -> int:
    source: Any = node.args[0]
    axis, dim = int(node.args[1]) % _value(source).dim(), _same(node, dims)  # type: ignore[arg-type]
    return _require(axis != dim, dim - (axis < dim))


def _joined(node: Node, dims: Dims) -> int:
    parts: Any = node.args[0]
    axis = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % _value(node).dim()  # type: ignore[arg-type]
    found = {dims.get(part) for part in parts}
    if len(found) != 1 or None in found:
        raise _Whole
    (dim,) = found
    return _require(dim is not None and dim != axis, int(dim or 0))


def _reduced(node: Node, dims: Dims) -> int:
    """A reduction, or a softmax, along other dimensions."""
    source: Any = node.args[0]
    rank, dim = _value(source).dim(), _same(node, dims)
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None:
        raise _Whole
    axes = [int(axis) % rank for axis in (given if isinstance(given, (list, tuple)) else [given])]  # type: ignore[arg-type]
    if not axes or dim in axes:
        raise _Whole
    kept = _value(node).dim() == rank
    return dim if kept else dim - sum(axis < dim for axis in axes)


def _attention(node: Node, dims: Dims) -> int:
    """Attention of each batch by itself; a mask may be the same for all."""
    for position, argument in enumerate((*node.args, *node.kwargs.values())):
        if not isinstance(argument, Node):
            continue
        is_cut, value = dims.get(argument) == 0, _value(argument)
        if not is_cut and (position < 3 or argument in dims or (value.dim() > 3 and value.shape[0] != 1)):
            raise _Whole
    return 0


def _item(node: Node, dims: Dims) -> int:
    source: Any = node.args[0]
    is_first = node.args[1] == 0 or _name(source) in ("split", "split_with_sizes")
    return _require(is_first, dims[source])


def _looked_up(node: Node, dims: Dims) -> int:
    return _only(node, dims, 1)


def _require(condition: bool, dim: int) -> int:
    if not condition:
        raise _Whole
    return dim


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "addmm", "bmm"), _product),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _reshaped),
    **dict.fromkeys(("t", "transpose"), _transposed),
    **dict.fromkeys(("slice", "split", "split_with_sizes"), _cut),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "_softmax", "softmax"), _reduced),
    **dict.fromkeys(("all_reduce", "wait_tensor", "clone", "contiguous", "detach", "alias"), _same),
    "_to_copy": _same,
    "permute": _permuted,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "expand": _expanded,
    "select": _selected,
    "cat": _joined,
    "embedding": _looked_up,
    "getitem": _item,
}


def _name(node: Node) -> str:
    """The operator's name without namespace and overload, for the operators of ATen, of collectives and of our own."""
    target = node.target
    if target is operator.getitem:
        return "getitem"
    if not isinstance(target, OpOverload) or target.namespace not in {"aten", "optfuse", *COMMUNICATION}:
        return ""
    return str(target).split(".")[1]


def _value(node: Node) -> torch.Tensor:
    value = fake(node)
    if value is None:
        raise _Whole
    return value
