"""Frames: iteration orders in which the ops on both sides of a transposition can share a kernel.

Ops whose natural orders (``iteration_orders``) visit some buffer in memory order form a *strand*. Where a value passes
to another strand in a different order (a transposing copy, a window partition), every op of one strand can also iterate
in the other's order: then the value passes in registers, and only the accesses on the far side of the transposition are
strided. Frame f iterates in the order of one strand, and holds that strand and its direct neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from optfuse.compiler.analysis.access import Access, NestAccesses
from optfuse.compiler.analysis.dependence import Dependence
from optfuse.compiler.analysis.iteration_orders import Cover, Piece
from optfuse.compiler.analysis.mixed_radix import Digit, cuts, is_chain, is_dense, refine
from optfuse.compiler.ir.sizes import equal


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that op ``dst`` reads from op ``src`` in another order: digits (size, stride in n of src, of dst)."""

    src: int
    dst: int
    digits: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """Ops that iterate in the order of the strand ``root``, and ``guests`` of other strands with covers in that order.

    ``crossings`` are the pairs of ops (producer, consumer) between which the order changes.
    """

    root: frozenset[int]
    guests: dict[int, Cover]
    crossings: tuple[tuple[int, int], ...]


def frames(
    covers: Sequence[Cover | None], touched: Sequence[NestAccesses | None], dependences: Sequence[Dependence]
) -> tuple[Frame, ...]:
    """All frames but the natural one: one for each strand that some transposed value leaves or enters."""
    strands: Any = nx.utils.UnionFind(range(len(covers)))
    for op, (cover, accesses) in enumerate(zip(covers, touched, strict=True)):
        if cover is None or accesses is None or cover.points == 1:
            continue
        for access in (*accesses.loads, *accesses.stores):
            if access.offset == 0 and _along(access, cover):
                strands.union(op, (access.buffer, cover.points))
    links = (_link(dependence, covers, touched) for dependence in dependences)
    crossings = [link for link in links if link is not None and any(a != b for _, a, b in link.digits)]
    members: dict[int, list[int]] = {}
    for op in range(len(covers)):
        if covers[op] is not None:
            members.setdefault(strands[op], []).append(op)
    guests: dict[int, dict[int, Cover]] = {}
    crossed: dict[int, list[tuple[int, int]]] = {}
    for crossing in crossings:
        here, there = strands[crossing.src], strands[crossing.dst]
        if here == there:
            continue
        outward = crossing.digits
        inward = tuple((size, b, a) for size, a, b in crossing.digits)
        for root, strand, mapping in ((here, there, outward), (there, here, inward)):
            found = guests.setdefault(root, {})
            crossed.setdefault(root, []).append((crossing.src, crossing.dst))
            for op in members[strand]:
                cover = covers[op]
                assert cover is not None, "strands hold nests"
                moved = reframe(cover, mapping)
                if moved is not None:
                    found.setdefault(op, moved)
    return tuple(
        Frame(frozenset(members[root]), found, tuple(crossed[root])) for root, found in guests.items() if found
    )


def _link(
    dependence: Dependence, covers: Sequence[Cover | None], touched: Sequence[NestAccesses | None]
) -> Crossing | None:
    """How a value passes from a nest to one of equally many points that reads all of it; None in other cases."""
    src, dst = covers[dependence.src], covers[dependence.dst]
    before, after = touched[dependence.src], touched[dependence.dst]
    if not dependence.value or src is None or dst is None or before is None or after is None:
        return None
    if src.reduced or not equal(src.points, dst.points) or src.points == 1:
        return None
    stores = [a for a in before.stores if a.buffer == dependence.buffer]
    loads = [a for a in after.loads if a.buffer == dependence.buffer]
    if len(stores) != 1 or len({(a.coefficients, a.offset) for a in loads}) != 1 or not all(a.exact for a in loads):
        return None
    if not _along(stores[0], src) or loads[0].offset != stores[0].offset:
        return None
    sizes = [piece.digit.size for pieces in dst.dimensions for piece in pieces]
    strides = [piece.digit.stride for pieces in dst.dimensions for piece in pieces]
    coefficients = loads[0].coefficients or ()
    if not is_dense(sizes, coefficients):
        return None
    digits = tuple((s, c, t) for s, c, t in zip(sizes, coefficients, strides, strict=True) if s > 1)
    return Crossing(dependence.src, dependence.dst, digits)


def _along(access: Access, cover: Cover) -> bool:
    """Whether the address is n plus an offset."""
    if not access.exact:
        return False
    digits = [pieces[0].digit for pieces in cover.dimensions]
    return all(d.size == 1 or equal(c, d.stride) for d, c in zip(digits, access.coefficients or (), strict=False))


def reframe(cover: Cover, mapping: Sequence[tuple[int, int, int]]) -> Cover | None:
    """A natural cover in another order: ``mapping`` has digits (size, stride there, stride in the cover's n).

    None when the cover's digits and the mapping's have no common refinement.
    """
    own = [Digit(size, old) for size, _, old in mapping]
    points = cuts(own) | cuts((*cover.parallel, *cover.reduced))
    if not is_chain(points):
        return None
    dimensions = []
    for pieces in cover.dimensions:
        moved = []
        for piece in pieces:
            for part in refine(piece.digit, points) if piece.digit.size > 1 else (piece.digit,):
                moved.append(
                    Piece(Digit(part.size, _moved(part, mapping)), piece.weight * part.stride // piece.digit.stride)
                )
        dimensions.append(tuple(moved))
    return Cover(tuple(dimensions), cover.parallel_rank)


def _moved(part: Digit, mapping: Sequence[tuple[int, int, int]]) -> int:
    for size, new, old in mapping:
        if part.size > 1 and old <= part.stride < old * size:
            return new * (part.stride // old)
    return part.stride
