"""Sizes that change, filled up to a few: inputs get copies of their last row, and results lose them again.

On request alone, since rows must not depend on each other: a batch of an evaluation, a length under a causal mask. Then
a few sizes serve all, and each has its CUDA graph.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_leaves, tree_map
from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of, is_symbolic
from optfuse.errors import CaptureError, InvalidOptionError

logger = logging.getLogger("optfuse")

#: By dimension of the inputs: the sizes that it is filled up to, ascending.
BucketSizes = Mapping[int, tuple[int, ...]]


def checked_buckets(value: object) -> dict[int, tuple[int, ...]]:
    """The option ``buckets``: sizes by the inputs' dimension, such as ``{0: (8, 16, 32)}``; {} for None.

    Raises:
        InvalidOptionError: Anything else.
    """
    if value is None:
        return {}
    try:
        found = {dim: tuple(sizes) for dim, sizes in value.items()}  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        found = {-1: ()}
    numbers = [number for dim, sizes in found.items() for number in (dim, *sizes)]
    are_whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if not are_whole or any(dim < 0 or not sizes or min(sizes) < 2 for dim, sizes in found.items()):
        raise InvalidOptionError(
            f"buckets must be sizes of 2 or more by dimension of the inputs, such as {{0: (8, 16, 32)}}, not {value!r}"
        )
    return {dim: tuple(sorted(sizes)) for dim, sizes in found.items()}


@dataclass(frozen=True, slots=True)
class Filled:
    """One size of a graph's that is filled up.

    Attributes:
        sizes: What it is filled up to, ascending.
        inputs: Positions of arguments and the dimension that has the size; None where the argument is the size.
        outputs: By number of the result (leaf by leaf): the dimension that has the size.
    """

    sizes: tuple[int, ...]
    inputs: tuple[tuple[int, int | None], ...]
    outputs: Mapping[int, int]

    def read(self, arguments: Sequence[Any]) -> int:
        """The size of a call."""
        k, dim = self.inputs[0]
        return arguments[k] if dim is None else arguments[k].shape[dim]

    def filled(self, size: int) -> int:
        """The size that it is filled up to: itself above the largest."""
        k = bisect_left(self.sizes, size)
        return self.sizes[k] if k < len(self.sizes) else size


@dataclass(frozen=True, slots=True)
class InBuckets:
    """A graph as a function that runs at a few sizes."""

    function: Callable[..., Any]
    sizes: tuple[Filled, ...]

    def __call__(self, *arguments: Any) -> Any:
        """Run with inputs filled up, and give back the rows that were asked for; writes to inputs reach them."""
        given = list(arguments)
        cuts: dict[int, list[tuple[int, int]]] = {}
        for each in self.sizes:
            size = each.read(arguments)
            whole = each.filled(size)
            if whole == size:
                continue
            for k, dim in each.inputs:
                given[k] = whole if dim is None else _filled(given[k], dim, whole)
            for k, dim in each.outputs.items():
                cuts.setdefault(k, []).append((dim, size))
        before = [_version(x) for x in given]
        results = self.function(*given)
        for x, y, version in zip(arguments, given, before, strict=True):
            if y is not x and isinstance(y, torch.Tensor) and (version < 0 or _version(y) != version):
                x.copy_(_cut(y, list(enumerate(x.shape))))
        leaves = iter(range(len(tree_leaves(results))))
        return tree_map(lambda leaf: _laid_out(leaf, cuts.get(next(leaves), [])), results)


def _version(x: Any) -> int:
    """How often a tensor was written; -1 where that is not known, under ``torch.inference_mode``."""
    if not isinstance(x, torch.Tensor):
        return 0
    return -1 if x.is_inference() else x._version  # noqa: SLF001 - torch's name for it


def _filled(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    last = x.narrow(dim, x.shape[dim] - 1, 1)
    return torch.cat([x, last.expand(*x.shape[:dim], size - x.shape[dim], *x.shape[dim + 1 :])], dim)


def _laid_out(x: Any, sizes: Sequence[tuple[int, int]]) -> Any:
    """A result cut, dense if it was."""
    return _cut(x, sizes).contiguous() if sizes and x.is_contiguous() else _cut(x, sizes)


def _cut(x: Any, sizes: Sequence[tuple[int, int]]) -> Any:
    for dim, size in sizes:
        x = x.narrow(dim, 0, size)
    return x


def in_buckets_or_not(
    graph: GraphModule, name: str, inputs: Sequence[Any], sizes: BucketSizes, function: Callable[..., Any]
) -> Callable[..., Any]:
    """``in_buckets``; ``function`` itself, with a warning, where that cannot be."""
    try:
        return in_buckets(graph, inputs, sizes, function) if sizes else function
    except CaptureError as error:
        logger.warning("%s: its sizes are not filled up to buckets: %s", name, error)
        return function


def in_buckets(
    graph: GraphModule, inputs: Sequence[Any], sizes: BucketSizes, function: Callable[..., Any]
) -> Callable[..., Any]:
    """``function``, which runs ``graph`` (of Dynamo's) at any size, as one that runs at a few sizes.

    Raises:
        CaptureError: Where results cannot be told apart by rows, or inputs are not dense.
    """
    placeholders = list(graph.graph.find_nodes(op="placeholder"))
    values = [node.meta.get("example_value") for node in placeholders]
    if any(isinstance(value, (list, tuple, dict)) for value in inputs):
        raise CaptureError("its arguments are in lists")
    wanted: dict[sympy.Symbol, tuple[int, ...]] = {}
    for value in values:
        for dim, found in sizes.items():
            if isinstance(value, torch.Tensor) and dim < value.dim() and is_symbolic(value.shape[dim]):
                size = expression_of(value.shape[dim])
                if isinstance(size, sympy.Symbol):
                    wanted.setdefault(size, _allowed(value.shape[dim], size, found))
    made = [_sized(placeholders, graph, symbol, found) for symbol, found in wanted.items() if found]
    return InBuckets(function, tuple(made)) if made else function


def _allowed(traced: Any, symbol: sympy.Symbol, sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes at which torch's guards on a symbol hold by themselves, and those that leave them to other symbols."""
    known = traced.node.shape_env
    range_, guards = known.var_to_range[symbol], [guard.expr for guard in known.guards]

    def holds(size: int) -> bool:
        inside = bool(sympy.sympify(range_.lower) <= size <= sympy.sympify(range_.upper))
        return inside and all(guard.xreplace({symbol: sympy.Integer(size)}) is not sympy.false for guard in guards)

    return tuple(size for size in sizes if holds(size))


def _sized(placeholders: Sequence[Node], graph: GraphModule, symbol: sympy.Symbol, sizes: tuple[int, ...]) -> Filled:
    inputs: list[tuple[int, int | None]] = []
    filled: set[Node] = set()
    for k, node in enumerate(placeholders):
        value = node.meta.get("example_value")
        dims = _dims_of(value, symbol, node.name)
        inputs += [(k, dim) for dim in dims]
        if isinstance(value, torch.Tensor) and dims and not value.is_contiguous():
            raise CaptureError(f"its input {node.name} is not dense")
        if is_symbolic(value) and expression_of(value) == symbol:
            inputs.append((k, None))
        if inputs and inputs[-1][0] == k:
            filled.add(node)
    for node in graph.graph.nodes:
        if filled & set(node.all_input_nodes):
            filled.add(node)
    outputs: dict[int, int] = {}
    (result,) = graph.graph.find_nodes(op="output")
    for k, node in enumerate(tree_leaves(result.args[0])):
        if not isinstance(node, Node) or node not in filled:
            continue
        dims = _dims_of(node.meta.get("example_value"), symbol, node.name)
        if len(dims) != 1:
            raise CaptureError(f"its result {node.name} has no dimension of that size, so that all rows are in it")
        outputs[k] = dims[0]
    return Filled(sizes, tuple(inputs), outputs)


def _dims_of(value: Any, symbol: sympy.Symbol, name: str) -> list[int]:
    """The dimensions of a tensor that have the size of a symbol."""
    if not isinstance(value, torch.Tensor):
        return []
    shape = [expression_of(n) if is_symbolic(n) else n for n in value.shape]
    if any(isinstance(n, sympy.Basic) and n != symbol and symbol in n.free_symbols for n in shape):
        raise CaptureError(f"{name} has a size that is computed from it")
    return [dim for dim, n in enumerate(shape) if n == symbol]
