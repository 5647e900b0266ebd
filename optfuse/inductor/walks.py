"""A pointwise node of Inductor's walked as a reduction over columns walks, so that both can share a kernel.

Inductor sums a tall matrix (rows, columns) over its rows in two stages. The first walks (slabs, columns, rows of a
slab), the last of them inside; a pointwise op that makes the matrix walks (rows, columns). Both visit the same
elements, but Inductor's scheduler swaps loops and does not cut the rows into slabs, and leaves the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import sympy


def walk_alike(one: Any, other: Any) -> Callable[[], None] | None:
    """Where one node reduces and the other is pointwise over as many points: let the latter walk as the former does.

    Returns
    -------
    What takes that back; None where nothing was changed.
    """
    if one.is_reduction() == other.is_reduction():
        return None
    reduces, pointwise = (one, other) if one.is_reduction() else (other, one)
    order = _order(reduces, pointwise)
    leaves = pointwise.get_nodes()
    if order is None or any(_points(leaf) != prod(size for size, _ in order) for leaf in leaves):
        return None
    before = [(leaf, leaf._body, leaf._sizes, leaf.group) for leaf in leaves]  # noqa: SLF001 - they have no public name

    def take_back() -> None:
        for leaf, body, sizes, group in before:
            leaf.group = group
            _give(leaf, body, sizes)
        _refresh(pointwise)

    for leaf in leaves:
        body = _walking(leaf._body, order)  # noqa: SLF001
        _give(leaf, body, body.sizes)
    _refresh(pointwise)
    return take_back


def _points(leaf: Any) -> int:
    """How many points a pointwise leaf has; 0 where that is not known, or there are inner loops."""
    outer, inner = leaf._sizes  # noqa: SLF001
    sizes = [int(size) for size in outer if getattr(size, "is_Integer", isinstance(size, int))]
    return 0 if inner or len(sizes) != len(outer) else prod(sizes)


def _order(reduces: Any, pointwise: Any) -> list[tuple[int, int]] | None:
    """The reduction's loops as (size, stride in the elements that both visit), outer loops first.

    They are read off an access to what both touch, which must visit each element of a contiguous range once.
    """
    from torch._inductor.dependencies import MemoryDep

    touched = pointwise.read_writes.buffer_names()
    for leaf in reduces.get_nodes():
        if not leaf.is_reduction():
            continue
        sizes = [*leaf._sizes[0], *leaf._sizes[1]]  # noqa: SLF001
        for dep in leaf.read_writes.reads:
            if not isinstance(dep, MemoryDep) or dep.name not in touched or list(dep.size) != sizes:
                continue
            found = [(size, dep.index.coeff(var)) for var, size in zip(dep.var_names, sizes, strict=True)]
            if _dense(found) and sympy.expand(dep.index - _flat(dep.var_names, found)) == 0:
                return [(int(size), int(stride)) for size, stride in found]
    return None


def _flat(variables: Sequence[sympy.Expr], order: Sequence[tuple[Any, Any]]) -> sympy.Expr:
    return sympy.Add(*(stride * var for var, (_, stride) in zip(variables, order, strict=True)))


def _dense(order: Sequence[tuple[Any, Any]]) -> bool:
    """Whether loops of these sizes and strides visit 0, 1, 2, ... once each, in some order."""
    if not all(sympy.sympify(part).is_Integer for pair in order for part in pair):
        return False
    expected = 1
    for size, stride in sorted(order, key=lambda pair: int(pair[1])):
        if int(stride) != expected:
            return False
        expected *= int(size)
    return True


def _walking(body: Any, order: Sequence[tuple[int, int]]) -> Any:
    """A pointwise loop body whose loops are those of ``order``."""
    from torch._inductor.dependencies import index_vars_no_squeeze
    from torch._inductor.loop_body import LoopBody
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    (outer, inner), ranges = index_vars_no_squeeze([sympy.Integer(size) for size, _ in order], [], prefix="p")
    flat = _flat(outer, order)
    old: list[sympy.Expr] = []
    step = 1
    sizes = [int(size) for size in body.sizes[0]]
    for place, size in reversed(list(enumerate(sizes))):
        # the first loop's variable is what is left: a modulus there would only hide that it is in range
        old.append(FloorDiv(flat, step) if place == 0 else ModularIndexing(flat, step, size))
        step *= size
    return LoopBody(body, [list(reversed(old)), []], ranges, outer, inner, allow_same_symbol_in_index=True)


def _give(leaf: Any, body: Any, sizes: Any) -> None:
    """Give a leaf a loop body, and find its accesses anew."""
    leaf._body, leaf._sizes = body, sizes  # noqa: SLF001
    leaf.refresh_dependencies(normalize=False, need_clear_tiling_cache=True)


def _refresh(node: Any) -> None:
    from torch._inductor.scheduler import FusedSchedulerNode, refresh_group_node_dependencies

    if isinstance(node, FusedSchedulerNode):
        refresh_group_node_dependencies(node)
