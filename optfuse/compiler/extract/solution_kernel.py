"""Translate a kernel of a solution back to the loop IR, for code generation."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from optfuse.compiler.analysis.iteration_orders import DigitSpace, digit_space, weights
from optfuse.compiler.analysis.mixed_radix import is_chain
from optfuse.compiler.analysis.placement import Placed
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.ir.kernel_spec import KernelSpec, Member, Space, rdigit, xdigit
from optfuse.compiler.ir.nodes import LoopNest
from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import ALONE
from optfuse.problem.solution import Kernel


def kernel_spec(extraction: Extraction, kernel: Kernel, name: str, inplace: frozenset[str] = frozenset()) -> KernelSpec:
    """The loop IR of a solution's kernel, over the walk's digits, refined as far as its members need.

    ``inplace``: written buffers that the memory plan puts in the place of one that the kernel reads.

    Raises:
        IllegalKernelError: If an op is no loop nest or does not run in the kernel's scheme (the checker finds this
            first).
    """
    names = ", ".join(extraction.instance.ops[k].name for k in kernel.ops)
    if kernel.scheme == ALONE:
        raise IllegalKernelError(f"kernel of {names}: a library call has no loops to generate")
    walk_number = kernel.scheme - 1
    walk = extraction.placements.walks[walk_number]
    placed = {}
    for k in kernel.ops:
        if walk_number not in extraction.placements.places[k]:
            raise IllegalKernelError(
                f"kernel of {names}: {extraction.instance.ops[k].name} does not run in {walk.name}"
            )
        placed[k] = extraction.placements.places[k][walk_number]
    points = frozenset(walk.cuts.union(*(p.fit.cuts for p in placed.values())))
    if not is_chain(points):
        raise IllegalKernelError(f"kernel of {names}: the members' index spaces have no common refinement")
    space = digit_space(walk, points)
    symbols = [*(xdigit(k) for k in range(len(space.x))), *(rdigit(k) for k in range(len(space.r)))]

    members = []
    for k in sorted(kernel.ops):
        nest = extraction.graph.ops[k]
        assert isinstance(nest, LoopNest), "only nests are placed"
        rows = weights(placed[k].cover, placed[k].fit, space)
        variables = [_combine(row, symbols) for row in rows]
        parallel = len(nest.sizes)
        members.append(
            Member(
                nest,
                tuple(variables[:parallel]),
                tuple(variables[parallel:]),
                full=placed[k].full,
                once=_once(placed[k], rows, space, symbols),
                approximate=k in extraction.approximate,
            )
        )
    return KernelSpec(
        name,
        Space(tuple(d.size for d in space.x), tuple(d.size for d in space.r)),
        tuple(members),
        _registers(extraction, kernel),
        tuple(extraction.instance.buffers[b].name for b in kernel.writes),
        inplace,
        frozenset(dict(extraction.graph.symbols)),
    )


def _once(
    placed: Placed, rows: Sequence[Sequence[int]], space: DigitSpace, symbols: Sequence[sympy.Symbol]
) -> tuple[sympy.Symbol, ...]:
    """The digits along which a projected op is recomputed."""
    if placed.fit.role != "projected":
        return ()
    candidates = space.x if placed.fit.on_x else (*space.x, *space.r)
    return tuple(symbols[k] for k, digit in enumerate(candidates) if digit.size > 1 and not any(row[k] for row in rows))


def _combine(row: Sequence[int], symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
    return sympy.Add(*(weight * symbol for weight, symbol in zip(row, symbols, strict=True) if weight))


def _registers(extraction: Extraction, kernel: Kernel) -> frozenset[str]:
    """Buffers whose values pass from one member to another."""
    inside = set(kernel.ops)
    return frozenset(
        d.buffer
        for d in extraction.dependences
        if d.value and d.buffer is not None and d.src in inside and d.dst in inside
    )
