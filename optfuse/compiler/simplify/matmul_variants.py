"""Offer the solver products of matrices as kernels of our own: a variant of two alternatives, of which one runs.

- *library*: the call of the matrix library, which runs alone.
- *dot*: a nest that computes an element of the product at each point by tensor cores (``ir.nodes.Dot``), so that
  pointwise consumers take it from registers.

Which is better the price says. Products of short sums are bound by memory, and what the dot saves its consumers is
most of their time. Those of long sums are left to the library before: tensor cores bound them, and there our kernels
measured slower than the model says. Nor is a dot offered that cannot pay whatever its consumers are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

import networkx as nx
import sympy

from optfuse.compiler.analysis.dependence import footprint
from optfuse.compiler.analysis.op_work import ITEM_BYTES, buffer_bytes, dot_time, library_work
from optfuse.compiler.codegen.product_tiles import dot_tile
from optfuse.compiler.ir.dtypes import HALF
from optfuse.compiler.ir.nodes import (
    Arg,
    Buffer,
    Call,
    Dot,
    Expr,
    LibraryCall,
    Load,
    LoopGraph,
    LoopNest,
    Op,
    Store,
    View,
    ivar,
    rvar,
    views,
)
from optfuse.compiler.ir.sizes import Size, hint
from optfuse.compiler.ir.traversal import dot_in
from optfuse.problem.cost import GOP, MIB
from optfuse.problem.instance import Device

#: The fewest rows, columns and terms of a product that tensor cores take.
LEAST = 16
#: Dots that are offered among products whose results meet.
MEETING = 2
#: How often over memory must bound a product whose last tile of columns is partial: such kernels measured slower.
PARTIAL = 3
#: Tensors of the product's size that a kernel of its consumers moves besides the product: its result and two others.
OTHERS = 3


def with_dots(graph: LoopGraph, device: Device) -> LoopGraph:
    """The graph with a dot after each library product for which it may pay."""
    if not device.dot_percent:
        return graph
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    nests: dict[int, LoopNest] = {}
    margins: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        nest = _dot_nest(op, buffers) if isinstance(op, LibraryCall) else None
        if isinstance(op, LibraryCall) and nest is not None:
            nests[position], margins[position] = nest, _margin(op, nest, buffers, device)
    offered = _best_of_those_that_meet(graph, {k: margin for k, margin in margins.items() if margin > 0})
    ops: list[Op] = []
    for position, op in enumerate(graph.ops):
        ops += [op, nests[position]] if position in offered else [op]
    return replace(graph, ops=tuple(ops))


@dataclass(frozen=True, slots=True)
class _Product:
    """``left @ right`` of shapes (rows, terms) and (terms, columns), and what the call adds to it.

    ``row`` is a bias for each column or a whole matrix; ``beside`` another matrix. ``relu``: the sum is clamped at 0.
    """

    left: View
    right: View
    row: View | None = None
    beside: View | None = None
    relu: bool = False


def _dot_nest(call: LibraryCall, buffers: Mapping[str, Buffer]) -> LoopNest | None:
    """A library product as a nest; None for other calls, and where tensor cores cannot take it."""
    made = _product(call)
    if made is None or len(call.outputs) != 1 or call.outputs[0] is None or call.kwargs:
        return None
    left, right, out = made.left, made.right, _matrix(_whole(buffers[call.outputs[0]]))
    if out is None or out.stride[1] != 1 or left.stride[1] != 1 or 1 not in right.stride:
        return None
    (rows, terms), columns = left.shape, right.shape[1]
    numbers = (terms, *right.shape, *left.stride, *right.stride, left.offset, right.offset)
    if any(isinstance(number, Size) for number in numbers) or min(hint(rows), columns, terms) < LEAST:
        return None  # only the number of rows may change
    dtype = buffers[out.buffer].dtype
    if {buffers[left.buffer].dtype, buffers[right.buffer].dtype} != {dtype} or dtype not in HALF:
        return None
    i, j, k = ivar(0), ivar(1), rvar(0)
    value: Expr = Dot(
        Load(left.buffer, left.offset + i * left.stride[0] + k, dtype),
        Load(right.buffer, right.offset + k * right.stride[0] + j * right.stride[1], dtype),
        terms,
    )
    for view in (made.row, made.beside):
        if view is not None:
            term = Load(view.buffer, _index(view, (i, j)), buffers[view.buffer].dtype)
            value = Call("add", (value, Call("cast", (term,), "float32")), "float32")
    if made.relu:
        value = Call("relu", (value,), "float32")
    store = Store(out.buffer, i * out.stride[0] + j, value)
    return LoopNest(f"{call.name}_dot", (rows, columns), (), (), (store,), call.origin)


def _product(call: LibraryCall) -> _Product | None:
    """The product of matrices that a call computes: also a convolution of one pixel, with channels last in memory."""
    match call.target, call.args:
        case "aten.mm.default", (View() as left, View() as right):
            return _Product(left, right)
        case "aten.addmm.default", (View() as row, View() as left, View() as right):
            return _Product(left, right, row)
        case (
            "aten.convolution.default",
            (View() as image, View() as weight, View() | None as bias, steps, padding, _, False, _, 1),
        ) if _is_of_pixels(weight, steps, padding):
            return _of_pixels(image, weight, bias, None, relu=False)
        case (
            "optfuse.convolution_relu.default",
            (View() as image, View() as weight, View() as bias, View() | None as beside, steps, padding, _),
        ) if _is_of_pixels(weight, steps, padding):
            return _of_pixels(image, weight, bias, beside, relu=True)
        case _:
            return None


def _is_of_pixels(weight: View, steps: Arg, padding: Arg) -> bool:
    """Whether each pixel of a convolution's result is computed from the same pixel of the image alone."""
    if not isinstance(steps, tuple) or not isinstance(padding, tuple):
        return False
    return all(size == 1 for size in (*weight.shape[2:], *steps)) and all(size == 0 for size in padding)


def _of_pixels(image: View, weight: View, bias: View | None, beside: View | None, *, relu: bool) -> _Product | None:
    left, added = _matrix(image), None if beside is None else _matrix(beside)
    if left is None or (beside is not None and added is None):
        return None
    right = View(weight.buffer, weight.shape[1::-1], weight.stride[1::-1], weight.offset)
    return _Product(left, right, bias, added, relu)


def _whole(buffer: Buffer) -> View:
    return View(buffer.name, buffer.shape, buffer.stride)


def _matrix(view: View) -> View | None:
    """A matrix as it is; images as the matrix (pixels, channels), if its rows are at equal distances in memory."""
    if len(view.shape) < 3:
        return view
    channels, sizes, steps = view.shape[1], (view.shape[0], *view.shape[2:]), (view.stride[0], *view.stride[2:])
    distance = steps[-1]
    if any(step != distance * prod(sizes[k + 1 :]) for k, step in enumerate(steps) if sizes[k] != 1):
        return None
    return View(view.buffer, (prod(sizes), channels), (distance, view.stride[1]), view.offset)


def _index(view: View, variables: tuple[sympy.Symbol, ...]) -> sympy.Expr:
    """The index of a view's element that is broadcast to these variables."""
    last = variables[len(variables) - len(view.shape) :]
    terms = (i * step for i, size, step in zip(last, view.shape, view.stride, strict=True) if size > 1)
    return sympy.Add(sympy.sympify(view.offset), *terms)


def _best_of_those_that_meet(graph: LoopGraph, margins: Mapping[int, int]) -> set[int]:
    """The products of which a dot is offered: few of those whose results meet in a sum, the ones of greatest margin.

    A kernel holds one product at most, so of several whose results are added only one can take the sum with it; and
    each combination of alternatives in a group of connected loops is solved by itself.
    """
    made: dict[str, int] = {}
    before = [0] * len(graph.ops)
    products = [0] * len(graph.ops)  # those whose results reach an op through loops alone
    meeting: nx.Graph[int] = nx.Graph()
    meeting.add_nodes_from(margins)
    for position, op in enumerate(graph.ops):
        reads, writes = footprint(op)
        for source in {made[name] for name in reads if name in made}:
            before[position] |= before[source] | 1 << source
            if isinstance(op, LoopNest):
                products[position] |= 1 << source if source in margins else products[source]
        found = [k for k in margins if products[position] >> k & 1]
        for one, other in combinations(found, 2):
            if not before[other] >> one & 1:
                meeting.add_edge(one, other)
        made.update(dict.fromkeys(writes, position))
    kept: set[int] = set()
    for group in nx.connected_components(meeting):
        kept.update(sorted(group, key=lambda k: (-margins[k], k))[:MEETING])
    return kept


def _margin(call: LibraryCall, nest: LoopNest, buffers: Mapping[str, Buffer], device: Device) -> int:
    """Picoseconds that a dot in one kernel with its consumers can take less than the call and then the consumers.

    0 for products that tensor cores bound: there the library is out of reach, and the model of cost flatters the dot.
    """
    takes, (rows, columns), dot = dot_time(nest, buffers, device), nest.sizes, dot_in(nest)
    assert dot is not None, "the nest computes a product"
    partial = columns % dot_tile(rows, columns, dot.terms).columns
    if takes.compute * (PARTIAL if partial else 1) > takes.memory:
        return 0
    moved = sum(hint(prod(view.shape)) * ITEM_BYTES[buffers[view.buffer].dtype] for view in views(call))
    made = hint(buffer_bytes(buffers[nest.stores[0].buffer]))
    library = device.launch_ps + _compute_ps(library_work(call, buffers, device, moved + made).tensor, device)
    rate = device.dram_ps_per_mib
    others = OTHERS * made * rate // MIB
    apart = library + device.launch_ps + made * rate // MIB + others
    together = device.launch_ps + max(others, takes.total)
    return apart - together


def _compute_ps(operations: int, device: Device) -> int:
    return operations * device.tensor_ps_per_gop // GOP
