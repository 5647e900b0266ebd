"""Outputs that alias one another: the graph returns their storage once, and their views are made after the call.

A caller who writes into one result must see the change in the others, as in eager execution. Passes that fold
constants or choose layouts may give each of them memory of its own, so they get to see one result only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.rewrite import VIEWS, fake
from optfuse.compiler.frontend.torch_internals.torch_bridge import shares_memory
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic, static_value, symbols_of

#: A search that would try more offsets than this takes two windows for overlapping ones.
LARGEST_SEARCH = 1 << 12


@dataclass(frozen=True, slots=True)
class Window:
    """Outputs ``positions``, one tensor, are a window of the memory in which output ``base`` begins at element 0.

    Without a ``shape`` they are that output itself. In a graph for a range of sizes the numbers may be symbols.
    """

    positions: tuple[int, ...]
    base: int
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols of its numbers."""
        return frozenset().union(*map(symbols_of, (*(self.shape or ()), *self.stride, self.offset)))

    def at(self, sizes: Mapping[sympy.Symbol, int]) -> Window:
        """The window with numbers for its symbols."""
        if self.shape is None:
            return self
        shape, stride = (tuple(static_value(n, sizes) for n in numbers) for numbers in (self.shape, self.stride))
        return Window(self.positions, self.base, shape, stride, static_value(self.offset, sizes))

    def cut(self, outputs: Sequence[Any]) -> torch.Tensor:
        """The window, of a run's results."""
        base = outputs[self.base]
        if self.shape is None:
            return base
        return base.detach().as_strided(self.shape, self.stride, base.storage_offset() + self.offset)


def take_windows(graph: GraphModule, positions: Collection[int]) -> tuple[Window, ...]:
    """Replace outputs that overlap, in place: one becomes the tensor that all are views of, the others None.

    A tensor that is returned several times is returned once.

    Args:
        positions: Of the outputs that the caller sees.
    """
    output = graph.graph.output_node()
    flat = list(output.args[0])
    places: dict[Node, list[int]] = {}
    for position in sorted(positions):
        if isinstance(flat[position], Node):
            places.setdefault(flat[position], []).append(position)
    groups: dict[Node, list[Node]] = {}
    for node in places:
        root = _root(node)
        if root is not None:
            groups.setdefault(root, []).append(node)
    found: list[Window] = []
    for root, members in groups.items():
        if any(overlapping(one, other) for one, other in combinations(members, 2)):
            keep = places[root if root in members else members[0]][0]
            found += [_window(node, tuple(places.pop(node)), keep, root) for node in members if node is not root]
            places.setdefault(root, [keep])
            flat[keep] = root
    found += [Window(tuple(more), first) for first, *more in places.values() if more]
    for window in found:
        for position in window.positions:
            if position != window.base:
                flat[position] = None
    output.args = (tuple(flat),)
    return tuple(found)


def _root(node: Any) -> Node | None:
    """The node of the graph's own that an output is a view of."""
    value = fake(node) if isinstance(node, Node) else None
    if value is not None:
        node = _source(node)
    own = isinstance(node, Node) and node.op == "call_function"
    whole = fake(node) if own else None
    return node if whole is not None and value is not None and whole.dtype == value.dtype else None


def views_of_arguments(graph: GraphModule, positions: Collection[int]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """The views of arguments that a graph returns at ``positions``: where each is, and the number of the argument."""
    arguments = {node: k for k, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    flat: Sequence[Any] = graph.graph.output_node().args[0]  # type: ignore[assignment]
    places: dict[Node, list[int]] = {}
    for position in sorted(positions):
        node = flat[position]
        if isinstance(node, Node) and node not in arguments and _source(node) in arguments:
            places.setdefault(node, []).append(position)
    return tuple((tuple(found), arguments[_source(node)]) for node, found in places.items())


def as_view_of(argument: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A tensor as a view, in autograd's records, of an argument whose memory it shares; itself if it shares none."""
    if value.dtype is not argument.dtype or not shares_memory(value, argument):
        return value
    return argument.as_strided(value.shape, value.stride(), value.storage_offset())


def _source(node: Node) -> Node:
    """What a chain of views begins with."""
    while node.op == "call_function" and node.target in VIEWS:
        node = node.all_input_nodes[0]
    return node


def _window(node: Node, positions: tuple[int, ...], base: int, root: Node) -> Window:
    value, whole = node.meta["val"], root.meta["val"]
    offset = value.storage_offset() - whole.storage_offset()
    return Window(positions, base, tuple(value.shape), tuple(value.stride()), offset)


def overlapping(one: Node, other: Node) -> bool:
    """Whether two windows of one memory share an element, or neither has one: a caller can tell them from one window.

    One and the same node is one result, returned twice.
    """
    if one is other:
        return False
    first, second = one.meta["val"], other.meta["val"]
    if any(is_symbolic(n) for x in (first, second) for n in (*x.shape, *x.stride(), x.storage_offset())):
        return True  # where they do not they are told from one window by nothing but their address
    if 0 in first.shape or 0 in second.shape:
        return 0 in first.shape and 0 in second.shape
    reach: dict[int, tuple[int, int]] = {}
    for value, sign in ((first, 1), (second, -1)):
        for size, stride in zip(value.shape, value.stride(), strict=True):
            low, high = reach.get(stride, (0, 0))
            reach[stride] = (low, high + size - 1) if sign > 0 else (low - size + 1, high)
    steps = sorted(((s, low, high) for s, (low, high) in reach.items() if s), reverse=True)
    distances = {second.storage_offset() - first.storage_offset()}
    for k, (stride, low, high) in enumerate(steps):
        rest_low = sum(s * least for s, least, _ in steps[k + 1 :])
        rest_high = sum(s * most for s, _, most in steps[k + 1 :])
        distances = {
            d - n * stride
            for d in distances
            for n in range(max(low, -((rest_high - d) // stride)), min(high, (d - rest_low) // stride) + 1)
        }
        if len(distances) > LARGEST_SEARCH:
            return True
    return 0 in distances
