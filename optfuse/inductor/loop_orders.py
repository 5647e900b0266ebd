"""Reorders the loops of a pointwise node of Inductor's to match a column reduction, so that both can share a kernel.

Inductor sums a tall matrix (rows, columns) over its rows in two stages. The first iterates over (slabs, columns, rows
of a slab), innermost last; the pointwise producer of the matrix iterates over (rows, columns). Both visit the same
elements, but Inductor's scheduler only permutes loops and never splits the rows into slabs, so it cannot fuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import sympy


def match_loop_order(one: Any, other: Any) -> Callable[[], None] | None:
    """Give the pointwise one of two nodes the loop order of the other, a reduction over as many points.

    Returns:
        A function that restores the former order; None if nothing was changed.
    """
    if one.is_reduction() == other.is_reduction():
        return None
    reduces, pointwise = (one, other) if one.is_reduction() else (other, one)
    order = _order(reduces, pointwise)
    leaves = pointwise.get_nodes()
    if order is None or any(_points(leaf) != prod(size for size, _ in order) for leaf in leaves):
        return None
    before = [(leaf, leaf._body, leaf._sizes, leaf.group) for leaf in leaves]  # noqa: SLF001 - they have no public name

    def restore() -> None:
        for leaf, body, sizes, group in before:
            leaf.group = group
            _set_body(leaf, body, sizes)
        _refresh(pointwise)

    for leaf in leaves:
        body = _reordered(leaf._body, order)  # noqa: SLF001
        _set_body(leaf, body, body.sizes)
    _refresh(pointwise)
    return restore


def _points(leaf: Any) -> int:
    """The number of points of a pointwise leaf; 0 if it is unknown or the leaf has inner loops."""
    outer, inner = leaf._sizes  # noqa: SLF001
    sizes = [int(size) for size in outer if getattr(size, "is_Integer", isinstance(size, int))]
    return 0 if inner or len(sizes) != len(outer) else prod(sizes)


def _order(reduces: Any, pointwise: Any) -> list[tuple[int, int]] | None:
    """The reduction's loops as (size, stride in elements), outer loops first; None if no access shows them.

    They come from the reduction's access to a buffer that the pointwise node also accesses. That access must visit each
    element of a contiguous range once.
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


def _reordered(body: Any, order: Sequence[tuple[int, int]]) -> Any:
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
        # no modulus for the outermost loop: it would hide from sympy that the index is in range
        old.append(FloorDiv(flat, step) if place == 0 else ModularIndexing(flat, step, size))
        step *= size
    return LoopBody(body, [list(reversed(old)), []], ranges, outer, inner, allow_same_symbol_in_index=True)


def _set_body(leaf: Any, body: Any, sizes: Any) -> None:
    """Replace a leaf's loop body and recompute its accesses."""
    leaf._body, leaf._sizes = body, sizes  # noqa: SLF001
    leaf.refresh_dependencies(normalize=False, need_clear_tiling_cache=True)


def _refresh(node: Any) -> None:
    from torch._inductor.scheduler import FusedSchedulerNode, refresh_group_node_dependencies

    if isinstance(node, FusedSchedulerNode):
        refresh_group_node_dependencies(node)
