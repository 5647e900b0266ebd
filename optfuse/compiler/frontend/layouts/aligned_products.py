"""Matrix products on tensor cores whose extents are no whole vectors, on operands padded with zeros.

cuBLAS has fast kernels where every extent along contiguous memory is a whole number of vectors of 16 bytes; that rows
start at vectors is not enough. A product of 32768 x 1024 and 1024 x 5 takes 62 us on an H200, padded to 8 columns 20;
scores of 197 tokens 154 and 38; a layer of 1025 inputs 140 and 32. In float32 with TF32, 8192 x 1024 x 1001 takes 143
and 50; without TF32 there is no such difference. Where that saves more than the copies take, the
operands are padded, and the readers of the result leave out what is beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.convolution_forms.patches import SHORTEST_ROW
from optfuse.compiler.frontend.graph.rewrite import base_of, fake, insert, is_loop, readers
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of, is_symbolic

aten = torch.ops.aten

#: Bytes of a vector.
VECTOR_BYTES = 16
#: The position of the left operand.
_PRODUCTS = {aten.mm.default: 0, aten.addmm.default: 1, aten.bmm.default: 0}
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})
#: What a padded product saves at least, in microseconds, and as a share of what the other takes.
LEAST_SAVED, LEAST_SHARE = 1.0, 0.15
#: Bytes a microsecond of a product that memory bounds, and of a copy into or out of padded rows; launches.
MEMORY, COPY, LAUNCH = 3.2e6, 1.7e6, 2.3
#: What an unaligned product takes more whatever its size.
UNALIGNED_LAUNCH = 2.5
#: Multiply-adds of products that code generation computes in several.
SPLIT, BY_ROWS = 1 << 28, 1 << 30


@dataclass(frozen=True, slots=True)
class Rates:
    """Multiply-adds a microsecond of products of whole vectors and of others; how much longer memory takes these."""

    whole: float
    other: float
    times: float


#: Half types with an odd extent and with even ones; float32 with TF32.
ODD, EVEN, TF32 = Rates(320e6, 45e6, 3.2), Rates(320e6, 125e6, 1.6), Rates(160e6, 60e6, 1.4)


def products_to_align(graph: GraphModule) -> frozenset[str]:
    """The names of the products for which padded operands save more than they cost, on an H200 as measured."""
    return frozenset(node.name for node in graph.graph.nodes if node.target in _PRODUCTS and _saves(node))


def align_product(node: Node, padded: dict[tuple[Node, tuple[int, ...]], Node]) -> torch.Tensor:
    """Make a product one of padded operands, and its node the part of that which it was. Returns its new fake value.

    ``padded``: the padded operands that there are already, by operand and zeros behind each dimension.
    """
    first = _PRODUCTS[node.target]
    left, right = node.args[first : first + 2]
    shape = fake(node).shape
    zeros = {axis: -size % _vector(node) for axis, size in _ragged(node).items()}
    m, k, n = (zeros.get(axis, 0) for axis in "mkn")
    operands = (_with_zeros(node, left, (m, k), padded), _with_zeros(node, right, (k, n), padded))
    target = aten.bmm.default if node.target is aten.bmm.default else aten.mm.default
    product = insert(node.graph, node, target, operands)
    for dim, extra in ((-2, m), (-1, n)):
        if extra:
            whole = len(shape) + dim
            product = insert(node.graph, node, aten.slice.Tensor, (product, whole, 0, shape[whole]))
    if first:
        product = insert(node.graph, node, aten.add.Tensor, (product, node.args[0]))
    node.target, node.args, node.kwargs = aten.alias.default, (product,), {}
    return product.meta["val"]


# --- which


def _saves(node: Node) -> bool:
    """Whether padded operands make a product faster, with the copies that they take."""
    first = _PRODUCTS[node.target]
    ragged = _ragged(node)
    if not ragged or node.kwargs or len(node.args) != first + 2:
        return False
    operands = node.args[first : first + 2]
    a, b, out = (fake(x) for x in (*operands, node))
    work = hint_of(prod(out.shape) * a.shape[-1])
    if _is_split(node, ragged, work):
        return False
    moved = sum(hint_of(x.numel()) * x.element_size() for x in (a, b, out))
    rates = TF32 if out.dtype == torch.float32 else ODD if any(size % 2 for size in ragged.values()) else EVEN
    whole = max(moved / MEMORY, work / rates.whole)
    now = UNALIGNED_LAUNCH + max(moved / MEMORY * rates.times, work / rates.other)
    copied = [x for x, axes in zip(operands, ("mk", "kn"), strict=True) if not ragged.keys().isdisjoint(axes)]
    saved = now - whole - sum(map(_copy_time, copied)) - (_border_time(node) if "n" in ragged else 0)
    return saved > max(LEAST_SAVED, LEAST_SHARE * now)


def _is_split(node: Node, ragged: Mapping[str, int], work: int) -> bool:
    """Whether code generation computes a product in several of whole vectors, without copies.

    That is what ``codegen.split_matmul`` does where rows start at vectors, as those of long rows do in this graph, and
    ``codegen.unaligned_matmul`` for results that leave the graph.
    """
    if node.target is aten.bmm.default or len(ragged) > 1:
        return False
    long = node.meta["val"].dtype != torch.float32 and next(iter(ragged.values())) >= SHORTEST_ROW
    by_rows = "n" in ragged and ragged["n"] >= 2 * _vector(node) and work >= BY_ROWS and _leaves(node)
    return by_rows or (long and work >= SPLIT)


def _vector(node: Node) -> int:
    """Elements of a product in a vector."""
    return VECTOR_BYTES // node.meta["val"].element_size()


def _ragged(node: Node) -> Mapping[str, int]:
    """The extents m, k, n that are no whole vectors, of those along which an operand or the result is contiguous.

    Empty also where the product is none of tensor cores, or where such a size is not known.
    """
    first = _PRODUCTS[node.target]
    a, b = (fake(x) if isinstance(x, Node) else None for x in node.args[first : first + 2])
    out = fake(node)
    if a is None or b is None or out is None or out.dtype not in _FLOATS or a.dtype != b.dtype or 1 in out.shape[-2:]:
        return {}
    if out.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32":
        return {}
    along = {"n"}
    for x, outer, inner in ((a, "m", "k"), (b, "k", "n")):
        along |= {axis for axis, dim in ((outer, -2), (inner, -1)) if x.stride(dim) == 1}
    extents = {"m": a.shape[-2], "k": a.shape[-1], "n": b.shape[-1]}
    found = {axis: extents[axis] for axis in sorted(along)}
    if any(is_symbolic(size) for size in found.values()):
        return {}
    return {axis: size for axis, size in found.items() if size % _vector(node)}


def _copy_time(operand: Node) -> float:
    """Microseconds to pad an operand: little if loops make it and only products read it."""
    value, base = fake(operand), base_of(operand)
    size = hint_of(value.numel()) * value.element_size()
    fused = base.op == "call_function" and is_loop(base) and all(user.target in _PRODUCTS for user in readers(base))
    return size / MEMORY if fused else LAUNCH + 2 * size / COPY


def _border_time(node: Node) -> float:
    """Microseconds to copy a result into contiguous rows: 0 if all of its readers are loops in the graph."""
    size = hint_of(prod(node.meta["val"].shape)) * node.meta["val"].element_size()
    return LAUNCH + 2 * size / COPY if _leaves(node) or not all(map(is_loop, readers(node))) else 0.0


def _leaves(node: Node) -> bool:
    """Whether a result, or a view of it, is an output of the graph."""
    return any(user.op == "output" for alias in _aliases(node) for user in alias.users)


def _aliases(node: Node) -> Iterator[Node]:
    yield node
    for user in node.users:
        if user.op == "call_function" and base_of(user) is base_of(node):
            yield from _aliases(user)


# --- operands


def _with_zeros(
    node: Node, operand: Any, zeros: tuple[int, int], padded: dict[tuple[Node, tuple[int, ...]], Node]
) -> Node:
    """A matrix, or several, with zeros behind its last two dimensions, contiguous along the dimension that it was."""
    if not any(zeros):
        return operand
    value = fake(operand)
    turned = value.stride(-1) != 1 and value.stride(-2) == 1
    dims = (value.dim() - 2, value.dim() - 1)
    if turned:
        source, zeros = _turned(node, operand, dims), (zeros[1], zeros[0])
    else:
        source = operand
    key = (source, zeros)
    if key not in padded:
        pads = [0, zeros[1], 0, zeros[0]]
        padded[key] = insert(node.graph, node, aten.constant_pad_nd.default, (source, pads, 0.0))
    made = padded[key]
    return insert(node.graph, node, aten.transpose.int, (made, *dims)) if turned else made


def _turned(node: Node, operand: Node, dims: tuple[int, int]) -> Node:
    """The matrix of which an operand is the transpose."""
    source: Any = operand.args[0] if operand.args else None
    value, turned = fake(operand), fake(source) if isinstance(source, Node) else None
    if base_of(operand) is not operand and value is not None and turned is not None:
        swapped = turned.dim() == value.dim() and turned.transpose(*dims)
        if swapped is not False and (swapped.shape, swapped.stride()) == (value.shape, value.stride()):
            return source
    return insert(node.graph, node, aten.transpose.int, (operand, *dims))
