"""Products of the same few rows and several matrices become one call of ours, which takes one launch."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch.fx import Node

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import VIEWS, copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.ops.joint_products import JOINT_NARROW, JOINT_NARROW_ROWS, JOINT_PRODUCTS, JOINT_ROWS

aten, ours = torch.ops.aten, torch.ops.optfuse

_HALF = frozenset({torch.float16, torch.bfloat16})

#: Types of weights that are read as they are, and are numbers of a half type to the product.
_BYTES = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2})

#: The fewest terms of sums: below, there is little to read.
LEAST_TERMS = 512
#: The most elements of the weights of a call: a product of many keeps the memory busy by itself.
MOST_ELEMENTS = 1 << 26
#: Columns and terms are multiples of this, so that rows and results start at whole vectors.
UNIT = 16


def join_products(captured: Captured) -> Captured:
    """The graph with half-precision products of the same few rows computed together.

    Before: ``mm(x, w.t())``, ``mm(x, v.t())`` with x (M, K). After: ``a = joint_products(x, [w, v], [])``, a vector,
    and ``a[: M * N].view(M, N)``, ``a[M * N :].view(M, L)``. The weights are inputs, so that no product waits for more
    than x, or inputs of one byte an element in a half type: of these a single product is a call as well, so that no
    copy in the half type is written and read.
    """
    graph = copied(captured.graph)
    alike: dict[tuple[Node, bool], list[Node]] = defaultdict(list)
    for node in graph.graph.nodes:
        if _is_few_rows(node):
            alike[node.args[-2], node.target is aten.addmm.default].append(node)
    for products in alike.values():
        for start in range(0, len(products), JOINT_PRODUCTS):
            several = products[start : start + JOINT_PRODUCTS]
            if _is_worth_it(several):
                _join(several)
    return with_graph(captured, graph)


def _is_worth_it(products: list[Node]) -> bool:
    """Whether products of the same rows are faster in one launch than in a library's calls."""
    rows, columns = fake(products[0]).shape[0], sum(fake(product).shape[1] for product in products)
    if rows > JOINT_ROWS and columns > JOINT_NARROW:
        return False
    if any(_given(product.args[-1]).target is TO_COPY for product in products):
        return True  # a library would read copies in the half type
    return len(products) > 1 and columns * fake(products[0].args[-1]).shape[0] <= MOST_ELEMENTS


def _is_few_rows(node: Node) -> bool:
    """Whether a node is a product of few rows and a weight whose sums run along its rows in memory."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return False
    *added, x, weight = node.args
    value, rows, matrix = fake(node), fake(x), fake(weight)
    if value is None or rows is None or matrix is None or value.dtype not in _HALF:
        return False
    if not all(isinstance(size, int) for one in (rows, matrix) for size in (*one.shape, *one.stride())):
        return False
    if rows.dtype != value.dtype or matrix.dtype != value.dtype or not 1 < rows.shape[0] <= JOINT_NARROW_ROWS:
        return False
    terms, columns = matrix.shape
    if _leaves(node):
        return False  # a result has its own memory
    whole = all(n % UNIT == 0 for n in (terms, columns, rows.stride(0), matrix.stride(1), matrix.storage_offset()))
    along = rows.stride(1) == 1 and matrix.stride(0) == 1
    return whole and along and terms >= LEAST_TERMS and _is_given(weight) and all(_is_bias(n, columns) for n in added)


def _is_bias(node: Node, columns: int) -> bool:
    """Whether a node is an input with a number for each column, side by side."""
    value = fake(node)
    return _is_given(node) and (tuple(value.shape), value.stride()) == ((columns,), (1,))


def _leaves(node: Node) -> bool:
    """Whether a node, or a view of it, is a result of the graph."""
    return any(user.op == "output" or (user.target in VIEWS and _leaves(user)) for user in node.users)


def _is_given(node: Node) -> bool:
    """Whether a node is an input or a constant, or a view of one, which may be read in a half type."""
    source = _given(node)
    if source.target is TO_COPY:
        made, source = source, source.args[0]  # type: ignore[assignment]
        stored = fake(source)
        if set(made.kwargs) != {"dtype"} or stored.dtype not in _BYTES or stored.stride() != fake(made).stride():
            return False
        source = _given(source)
    return source.op in ("placeholder", "get_attr")


def _given(node: Node) -> Node:
    """What a node is a view of."""
    while node.target in VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _join(products: list[Node]) -> None:
    first = products[0]
    graph, x = first.graph, first.args[-2]
    weights = [_before(first, product.args[-1]) for product in products]
    turned = [insert(graph, first, aten.permute.default, (weight, [1, 0])) for weight in weights]
    biases = [_before(first, product.args[0]) for product in products if product.target is aten.addmm.default]
    joint = insert(graph, first, ours.joint_products.default, (x, turned, biases))
    end, parts = 0, list[Node]()
    for product in products:
        shape = list(fake(product).shape)
        start, end = end, end + shape[0] * shape[1]
        part = insert(graph, first, aten.slice.Tensor, (joint, 0, start, end))
        parts.append(insert(graph, first, aten.view.default, (part, shape)))
    for product, part in zip(products, parts, strict=True):
        swap(product, part)


def _before(place: Node, node: Node) -> Node:
    """A view of an input made anew before ``place``, which may come before it, in the input's own type."""
    if node.target is TO_COPY:
        return _before(place, node.args[0])  # type: ignore[arg-type]
    if node.target not in VIEWS:
        return node
    return insert(place.graph, place, node.target, (_before(place, node.args[0]), *node.args[1:]), node.kwargs)
