"""Find and run the part of a graph that depends on no input: at ATen level or at the level of torch functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    OpOverload,
    is_mutating,
    is_random,
    outside_of_modes,
    tree_leaves,
)
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of, is_symbolic
from optfuse.compiler.ir.collectives import COMMUNICATION

aten = torch.ops.aten

#: Operators that look only at the shape, dtype and device of their first argument.
_METADATA_ONLY = frozenset(
    overload
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
    for overload in (getattr(aten, name).default, getattr(torch, name, None), name)
    if overload is not None
)

#: Values larger than this are not computed: finding out what they are would cost more than it saves.
LARGEST_VALUE = 64 << 20


def node_value(node: Node) -> Any:
    """The fake value of a node, at either level."""
    return node.meta.get("val", node.meta.get("example_value"))


def constant_nodes(graph: GraphModule, known: Mapping[str, torch.Tensor]) -> frozenset[Node]:
    """Nodes whose value no input, parameter or random number changes.

    Args:
        graph: Functional or not: a value that is written in place anywhere, and what shares it, counts as changing.
        known: Constants by ``get_attr`` target or by placeholder name.
    """
    constant: dict[Node, None] = {}
    tainted: list[Node] = []
    for node in graph.graph.nodes:
        if node.op in {"get_attr", "placeholder"}:
            if str(node.target) in known:
                constant[node] = None
        elif node.op in {"call_function", "call_method"}:
            if is_mutating(node.target, node.kwargs):
                tainted += [source for source in node.all_input_nodes if source in constant]
            elif _is_computable(node, constant):
                constant[node] = None
    for node in _connected(tainted, constant):
        del constant[node]
    return frozenset(constant)


def _is_computable(node: Node, constant: Mapping[Node, None]) -> bool:
    leaves = [leaf for leaf in tree_leaves(node_value(node)) if leaf is not None]
    if not leaves or is_random(node.target) or _draws(node) or _communicates(node):
        return False
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(tensors) != len(leaves) or any(map(is_symbolic, (n for tensor in tensors for n in tensor.shape))):
        return False
    if any(map(is_symbolic, tree_leaves((node.args, node.kwargs)))):
        return False
    if any(_bytes(tensor) > LARGEST_VALUE or tensor.device.type == "meta" for tensor in tensors):
        return False  # the latter have no values
    sources = node.all_input_nodes
    if node.target in _METADATA_ONLY and len(sources) == 1:
        return True
    return all(source in constant for source in sources)


def _communicates(node: Node) -> bool:
    """Whether other ranks take part, so that even a result of constants depends on them."""
    return isinstance(node.target, OpOverload) and node.target.namespace in COMMUNICATION


def _draws(node: Node) -> bool:
    """Whether a torch function (not an overload, which says so itself) may draw random numbers or make empty memory."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return any(
        word in name for word in ("rand", "dropout", "bernoulli", "multinomial", "normal", "empty", "exponential")
    )


def _bytes(value: torch.Tensor) -> int:
    distinct = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        distinct *= int(size) if stride else 1
    return distinct * value.element_size()


def _connected(start: Iterable[Node], within: Mapping[Node, None]) -> set[Node]:
    """All of ``within`` that is joined to ``start`` by edges in either direction."""
    found: set[Node] = set()
    frontier = [node for node in start if node in within]
    while frontier:
        node = frontier.pop()
        if node in found:
            continue
        found.add(node)
        frontier += [other for other in (*node.all_input_nodes, *node.users) if other in within and other not in found]
    return found


class Evaluator:
    """Computes constant nodes for real, each one once. Holds values only as long as it lives."""

    def __init__(self, constants: frozenset[Node], known: Mapping[str, torch.Tensor]) -> None:
        self._constants = constants
        self._known = known
        self._values: dict[Node, Any] = {}

    def value(self, node: Node) -> Any:
        """The value of a constant node. Nothing is recorded for autograd."""
        with outside_of_modes(), torch.no_grad():
            for member in self._slice(node):
                self._values[member] = self._run(member)
        return self._values[node]

    def _slice(self, node: Node) -> list[Node]:
        """The uncomputed nodes that ``node`` needs, in order."""
        order: list[Node] = []
        visited: set[Node] = set()
        stack = [(node, False)]
        while stack:
            current, done = stack.pop()
            if done:
                order.append(current)
            elif current not in visited and current not in self._values:
                visited.add(current)
                stack.append((current, True))
                stack += [(source, False) for source in current.all_input_nodes if source in self._constants]
        return order

    def _run(self, node: Node) -> Any:
        if node.op in {"get_attr", "placeholder"}:
            return self._known[str(node.target)]
        assert node.target in _METADATA_ONLY or all(source in self._constants for source in node.all_input_nodes)
        args = torch.fx.node.map_arg(node.args, self._argument)
        kwargs = torch.fx.node.map_arg(node.kwargs, self._argument)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        return target(*args, **kwargs)

    def _argument(self, node: Node) -> Any:
        if node in self._constants:
            return self._values[node]
        model = node_value(node)  # only its metadata is looked at
        return torch.zeros((), dtype=model.dtype, device=model.device).expand(tuple(map(hint_of, model.shape)))
