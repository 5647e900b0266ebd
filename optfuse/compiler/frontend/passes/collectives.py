"""Collectives in fewer and cheaper calls: sums of reductions, reductions in place, small transfers in one call.

Every rank traces the same graph and rewrites it alike, by the graph alone: ranks whose calls differ would wait for each
other forever.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import VIEWS, copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload, is_mutating, is_random
from optfuse.compiler.ir.collectives import WAIT

aten = torch.ops.aten

#: Collectives that are linear in their first argument, where they reduce at all by sum or mean.
LINEAR = frozenset({"all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"})
#: Collectives, and their forms that take a list of tensors.
COALESCED = {
    "all_reduce": "all_reduce_coalesced",
    "reduce_scatter_tensor": "reduce_scatter_tensor_coalesced",
    "all_gather_into_tensor": "all_gather_into_tensor_coalesced",
}
#: A call that sends so much is not joined by another: on an H100's links its start is an eighth of its time.
BUCKET_BYTES = 64 << 20


def join_reductions(captured: Captured) -> Captured:
    """The graph with sums of two reductions' results replaced by one reduction of the sum of their operands.

    Before: ``add(wait_tensor(all_reduce(a)), wait_tensor(all_reduce(b)))``. After:
    ``wait_tensor(all_reduce(add(a, b)))``.
    The gradients of products that read one tensor, each split among the ranks, are such sums.
    """
    if not any(_is_wait(node) for node in captured.graph.graph.nodes):
        return captured
    graph = copied(captured.graph)
    changed = False
    for node in list(graph.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs:
            continue
        waits = node.args
        if not all(_is_lone_wait(wait) for wait in waits) or waits[0] is waits[1]:
            continue
        starts = [wait.args[0] for wait in waits]
        if not _are_alike(*starts) or fake(waits[0]).dtype != fake(node).dtype:
            continue
        sent = insert(graph.graph, node, aten.add.Tensor, [start.args[0] for start in starts])
        start = insert(graph.graph, node, starts[0].target, (sent, *starts[0].args[1:]))
        swap(node, insert(graph.graph, node, waits[0].target, (start,)))
        for old in (*waits, *starts):
            graph.graph.erase_node(old)
        changed = True
    return with_graph(captured, graph) if changed else captured


def reduce_in_place(captured: Captured) -> Captured:
    """The graph with all-reduces in place where nothing else reads their operand, so that it is not copied.

    Before: ``all_reduce(mm(x, w))``. After: ``all_reduce_(mm(x, w))``.
    """
    graph = copied(captured.graph)
    changed = False
    for node in list(graph.graph.nodes):
        if _name(node) == "all_reduce" and str(node.target).endswith(".default") and _is_its_own(node.args[0]):
            node.target = torch.ops._c10d_functional.all_reduce_.default  # noqa: SLF001 - the operator's name
            changed = True
    return with_graph(captured, graph) if changed else captured


def coalesce_collectives(captured: Captured) -> Captured:
    """The graph with small collectives of one kind and group that can start together coalesced into one call.

    Before: ``all_gather_into_tensor(a, 2, g); all_gather_into_tensor(b, 2, g)``. After:
    ``all_gather_into_tensor_coalesced([a, b], 2, g)``. A call takes up others until it sends ``BUCKET_BYTES``.
    """
    graph = copied(captured.graph)
    buckets = [bucket for bucket in _buckets(graph) if len(bucket.starts) > 1]
    for bucket in buckets:
        _coalesce(graph, bucket)
    return with_graph(captured, graph) if buckets else captured


@dataclass(slots=True)
class _Bucket:
    """Collectives of one call, in order: ``below`` has all nodes that depend on one of them."""

    kind: tuple[object, ...]
    starts: list[Node] = field(default_factory=list)
    below: set[Node] = field(default_factory=set)
    sent: int = 0

    def place(self, *more: Node) -> Node:
        """The first node behind which everything is known that the starts, and ``more`` of them, send."""
        sent = [node for start in (*self.starts, *more) for node in start.all_input_nodes]
        return max([self.starts[0].prev, *sent])

    def waiting(self, *more: Node) -> list[Node]:
        """The nodes before that place which need a result, and so must come behind it."""
        found, node, place = [], self.starts[0], self.place(*more)
        while node <= place:
            if node in self.below and node not in self.starts:
                found.append(node)
            node = node.next
        return found

    def takes(self, start: Node, kind: tuple[object, ...], sent: int) -> bool:
        """Whether a call of these and one more is legal, and not too large."""
        if kind != self.kind or start in self.below or self.sent + sent > BUCKET_BYTES:
            return False
        return not any(is_mutating(node.target, node.kwargs) or is_random(node.target) for node in self.waiting(start))

    def add(self, start: Node, sent: int) -> None:
        self.starts.append(start)
        self.below.add(start)
        self.sent += sent


def _buckets(graph: GraphModule) -> Iterator[_Bucket]:
    """Collectives that may be one call: none needs what another one, or a collective between them, yields."""
    current: _Bucket | None = None
    for node in graph.graph.nodes:
        if current is not None and not current.below.isdisjoint(node.all_input_nodes):
            current.below.add(node)
        name = _name(node)
        if name is None or _is_wait(node):
            continue
        value, sent = fake(node), _bytes(node.args[0])
        kind = (node.target, *node.args[1:], None if value is None else value.dtype)
        if current is None or not current.takes(node, kind, sent):
            if current is not None:
                yield current
            current = _Bucket(kind) if name in COALESCED and not node.kwargs else None
        if current is not None:
            current.add(node, sent)
    if current is not None:
        yield current


def _coalesce(graph: GraphModule, bucket: _Bucket) -> None:
    """Put one call where all that it sends is known, and behind it what needs its results."""
    first, place, waiting = bucket.starts[0], bucket.place(), bucket.waiting()
    functional = torch.ops._c10d_functional  # noqa: SLF001 - the operators that torch.distributed traces to
    target = getattr(functional, COALESCED[_name(first) or ""]).default
    call = insert(graph.graph, place.next, target, ([start.args[0] for start in bucket.starts], *first.args[1:]))
    items = [insert(graph.graph, call.next, operator.getitem, (call, k)) for k in range(len(bucket.starts))]
    for start, item in zip(bucket.starts, items, strict=True):
        item.meta = dict(start.meta)
        start.replace_all_uses_with(item)
    for node in reversed(waiting):
        call_end = items[0]
        call_end.append(node)
    for start in bucket.starts:
        graph.graph.erase_node(start)


def _name(node: object) -> str | None:
    """The name of a functional collective, or of a wait; None for other nodes."""
    target = node.target if isinstance(node, Node) else None
    if not isinstance(target, OpOverload) or target.namespace != "_c10d_functional":
        return None
    return str(target).split(".")[1]


def _is_wait(node: object) -> bool:
    return isinstance(node, Node) and str(node.target) == WAIT


def _is_lone_wait(node: object) -> bool:
    """Whether a node is a wait with one user, for a linear collective with one user."""
    if not (isinstance(node, Node) and _is_wait(node) and len(node.users) == 1):
        return False
    start: Any = node.args[0]
    return _name(start) in LINEAR and len(start.users) == 1 and not start.kwargs


def _are_alike(one: Node, other: Node) -> bool:
    """Whether two linear collectives differ in what they send alone, which has one form."""
    if one.target is not other.target or one.args[1:] != other.args[1:]:
        return False
    if _name(one) != "all_gather_into_tensor" and one.args[1] not in ("sum", "avg"):
        return False
    sent = [fake(start.args[0]) for start in (one, other)]
    forms = [(x.shape, x.dtype, x.device) for x in sent if x is not None and x.dtype.is_floating_point]
    return len(forms) == 2 and forms[0] == forms[1]


def _is_its_own(node: object) -> bool:
    """Whether nothing but one user reads a value, in memory that the graph itself makes."""
    while isinstance(node, Node) and len(node.users) == 1 and node.op == "call_function":
        if node.target not in VIEWS and node.target is not aten._unsafe_view.default:  # noqa: SLF001 - its name
            target = node.target
            if not isinstance(target, OpOverload) or target.namespace != "aten" or target is aten.full.default:
                return False
            return not target.is_view and not is_mutating(target, node.kwargs) and _is_dense(node)
        whole, base = fake(node), fake(node.args[0])
        if whole is None or base is None or whole.numel() != base.numel() or not whole.is_contiguous():
            return False
        node = node.args[0]
    return False


def _is_dense(node: Node) -> bool:
    value = fake(node)
    return value is not None and value.is_contiguous()


def _bytes(node: object) -> int:
    value = fake(node) if isinstance(node, Node) else None
    return 0 if value is None else math.prod(value.shape) * value.itemsize
