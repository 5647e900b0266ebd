"""Sums at places that are known beforehand, as sums of gathered values: no zeros to write, no atomic additions.

The gradient of ``x[:, places]`` adds each value at its place. Where the places are constants, as in the gradients of
interpolation, reflection and of what picks or permutes channels, it is known which values meet at each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.evaluate import Evaluator, constant_nodes
from optfuse.compiler.frontend.graph.rewrite import copied, fake, insert, swap, with_constant, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic

aten = torch.ops.aten

#: The most values that are gathered for one place, and the most that are in vain for each that is added.
MOST_GATHERED, MOST_IN_VAIN = 9, 4

_PUT = frozenset({aten.index_put.default, aten._unsafe_index_put.default})  # noqa: SLF001 - the operator's name
_HALF = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class Meeting:
    """Which slices of a dimension of the values meet at each place.

    ``taken``: of shape (most, places), slices; ``valid``: whether there is such a slice.
    """

    dim: int
    taken: Tensor
    valid: Tensor


def gather_known_sums(captured: Captured) -> Captured:
    """The graph with sums at constant places, from zeros on, as sums of few gathered values.

    Before: ``index_add(full([4], 0), 0, folded_0, values)`` with places [0, 0, 2, 3]. After:
    ``where(folded_1, _unsafe_index(values, [folded_2]), 0) + ..`` with positions [0, 0, 2, 3] and [1, 0, 0, 0].
    """
    graph = copied(captured.graph)
    constants = constant_nodes(graph, captured.constants)
    evaluator = Evaluator(constants, captured.constants)
    made: dict[str, Tensor] = {}
    for node in list(graph.graph.nodes):
        found = _sum(node)
        if found is None or any(place is not None and place not in constants for place in found[0]):
            continue
        places, values = found
        known = [None if place is None else evaluator.value(place) for place in places]
        meetings = _meetings(known, node, fake(values))
        if meetings is not None:
            swap(node, _gathered(graph, node, values, meetings, {**captured.constants, **made}, made))
    return with_graph(captured, graph, made) if made else captured


def _sum(node: Node) -> tuple[list[Node | None], Node] | None:
    """The places by dimension and the values of a node that adds values to zeros; None for other nodes."""
    places: list[Any]
    values: Any
    if node.target in _PUT and len(node.args) > 3 and node.args[3]:
        base, places, values = node.args[0], list(node.args[1]), node.args[2]
    elif node.target is aten.index_add.default and not node.kwargs and len(node.args) == 4:
        base, dim, place, values = node.args
        rank = node.meta["val"].dim()
        if rank == 0:
            return None
        places = [None] * (dim % rank) + [place]
    else:
        return None
    out, given = fake(node), fake(values) if isinstance(values, Node) else None
    zeros = isinstance(base, Node) and base.target is aten.full.default and base.args[1] == 0
    if not zeros or out is None or given is None or given.dim() != out.dim() or not out.is_floating_point():
        return None
    if any(is_symbolic(n) for n in (*out.shape, *given.shape)) or 0 in (*out.shape, *given.shape):
        return None
    return places, values


def _meetings(places: list[Tensor | None], node: Node, values: Tensor | None) -> list[Meeting] | None:
    """What meets along each dimension that is indexed; None where it does not pay, or the places are no grid."""
    out = fake(node)
    assert out is not None, "a sum is a tensor"
    assert values is not None, "so are its values"
    indexed = [dim for dim, place in enumerate(places) if place is not None]
    rank = max(place.dim() for place in places if place is not None)
    if rank != len(indexed) or indexed != list(range(indexed[0], indexed[0] + rank)):
        return None
    found = []
    for k, dim in enumerate(indexed):
        place = places[dim]
        assert place is not None
        alone = all(n == 1 for j, n in enumerate(place.shape) if j != k + place.dim() - rank)
        if place.dtype not in (torch.int64, torch.int32) or not alone or place.numel() != values.shape[dim]:
            return None
        meeting = _meeting(dim, place.flatten().cpu().long(), out.shape[dim])
        if meeting is None:
            return None
        found.append(meeting)
    others = [n for dim, n in enumerate(out.shape) if dim not in indexed]
    if others != [n for dim, n in enumerate(values.shape) if dim not in indexed]:
        return None
    gathered = prod(meeting.taken.shape[0] for meeting in found)
    pays = gathered <= MOST_GATHERED and gathered * out.numel() <= MOST_IN_VAIN * values.numel()
    return found if pays else None


def _meeting(dim: int, place: Tensor, size: int) -> Meeting | None:
    place = torch.where(place < 0, place + size, place)
    if int(place.min()) < 0 or int(place.max()) >= size:
        return None
    counts = torch.bincount(place, minlength=size)
    order = torch.argsort(place, stable=True)
    first = counts.cumsum(0) - counts
    steps = torch.arange(int(counts.max()))[:, None]
    valid = steps < counts
    return Meeting(dim, torch.where(valid, order[(first + steps).clamp(max=len(order) - 1)], 0), valid)


def _gathered(
    graph: GraphModule,
    node: Node,
    values: Node,
    meetings: list[Meeting],
    taken_names: Mapping[str, Tensor],
    made: dict[str, Tensor],
) -> Node:
    """The sum as gathers along one dimension after another. ``made`` gets the constants that they read."""
    out = fake(node)
    assert out is not None
    dtype = torch.float32 if out.dtype in _HALF else out.dtype
    total = values if out.dtype == dtype else insert(graph.graph, node, TO_COPY, (values,), {"dtype": dtype})

    def constant(value: Tensor) -> Node:
        return with_constant(graph, node, value.to(out.device), {**taken_names, **made}, made)

    for meeting in meetings:
        parts = []
        for taken, valid in zip(meeting.taken, meeting.valid, strict=True):
            at = [None] * meeting.dim + [constant(taken)]
            part = insert(graph.graph, node, aten._unsafe_index.Tensor, (total, at))  # noqa: SLF001
            if not bool(valid.all()):
                there = constant(valid.view(-1, *[1] * (out.dim() - meeting.dim - 1)))
                zero = insert(graph.graph, node, aten.full.default, ([], 0), {"dtype": dtype, "device": out.device})
                part = insert(graph.graph, node, aten.where.self, (there, part, zero))
            parts.append(part)
        total = parts[0]
        for part in parts[1:]:
            total = insert(graph.graph, node, aten.add.Tensor, (total, part))
    if out.dtype != dtype:
        total = insert(graph.graph, node, TO_COPY, (total,), {"dtype": out.dtype})
    if fake(total).stride() != out.stride():
        format_ = {"memory_format": torch.contiguous_format}
        total = insert(graph.graph, node, aten.clone.default, (total,), format_)
    return total
