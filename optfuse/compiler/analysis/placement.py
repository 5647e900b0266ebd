"""Placement: every op in every walk that it can run in, with its addresses over the walk's refined digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from optfuse.compiler.analysis.access import Access, NestAccesses
from optfuse.compiler.analysis.broadcast_producers import fit_projection, projection
from optfuse.compiler.analysis.dependence import Dependence
from optfuse.compiler.analysis.frames import Frame, frames
from optfuse.compiler.analysis.iteration_orders import (
    Cover,
    DigitSpace,
    Fit,
    NestKind,
    Walk,
    address,
    digit_space,
    fit,
    in_order,
    kind_of,
    natural_cover,
    natural_walk,
    same_order,
)
from optfuse.compiler.analysis.iteration_orders import weights as digit_weights
from optfuse.compiler.analysis.mixed_radix import is_chain, point_count
from optfuse.compiler.ir.nodes import LoopNest
from optfuse.compiler.ir.sizes import equal, hint

Layout = tuple[int, ...]  # coefficients over the digits (x, then r) and, last, the offset


@dataclass(frozen=True, slots=True)
class Placed:
    """An op in a walk. ``loads`` and ``stores`` are parallel to its accesses, None where an address is not exact.

    ``inner`` has the affine part of each load's address, of guarded and indirect loads too. A ``full`` op yields a
    value for every (x, r), the others one for every x.
    """

    cover: Cover
    fit: Fit
    loads: tuple[Layout | None, ...]
    inner: tuple[Layout | None, ...]
    stores: tuple[Layout | None, ...]
    full: bool


@dataclass(frozen=True, slots=True)
class Placements:
    """All walks of a graph, their digit spaces, and every op's place in each (by op position, then walk position).

    ``frames[f - 1]`` is frame f of the walks.
    """

    walks: tuple[Walk, ...]
    spaces: tuple[DigitSpace, ...]
    places: tuple[Mapping[int, Placed], ...]
    frames: tuple[Frame, ...]


def place(
    nests: Sequence[LoopNest | None], touched: Sequence[NestAccesses | None], dependences: Sequence[Dependence] = ()
) -> Placements:
    """The walks of a graph's nests, with every nest placed in all walks that it fits.

    The members of one walk share one refinement, so that any of them can be in one kernel. An op whose digits have no
    common refinement with the walk's stays out of it, or opens another group of it if it is the op's natural walk. The
    producers and consumers of its values then join that group as well.
    """
    natural = {op: natural_cover(n, t) for op, (n, t) in enumerate(zip(nests, touched, strict=True)) if n and t}
    beyond = frames([natural.get(op) for op in range(len(nests))], touched, dependences)
    roots = [{op: natural[op] for op in frame.root} for frame in beyond]
    walked = [_walked(frame.guests | root, nests) for frame, root in zip(beyond, roots, strict=True)]
    framed = [natural, *walked]
    drafts = _Drafts(nests, dependences)
    for frame, covers in enumerate(framed):
        for op, cover in covers.items():
            drafts.settle(op, cover, frame)
    drafts.reunite(framed)
    drafts.join_reductions(framed)
    for dependence in sorted(dependences, key=lambda d: -d.dst):
        drafts.project(dependence, nests, touched)

    walks = tuple(drafts.chains)
    spaces = tuple(digit_space(walk, points) for walk, points in drafts.chains.items())
    number = {walk: k for k, walk in enumerate(walks)}
    places = tuple(
        {number[walk]: _placed(*at, accesses, spaces[number[walk]]) for walk, at in found.items()} if accesses else {}
        for found, accesses in zip(drafts.found, touched, strict=True)
    )
    return Placements(walks, spaces, places, beyond)


def _walked(guests: Mapping[int, Cover], nests: Sequence[LoopNest | None]) -> dict[int, Cover]:
    """The ops of a frame without the scans whose elements it has in another order, and without products of matrices."""
    kinds = {op: kind_of(nest) for op in guests if (nest := nests[op]) is not None}
    return {
        op: cover for op, cover in guests.items() if kinds[op] != "product" and (kinds[op] != "scan" or in_order(cover))
    }


class _Drafts:
    """Walks with their chains of cut points, and the walks that each op has been admitted to, under construction."""

    def __init__(self, nests: Sequence[LoopNest | None], dependences: Sequence[Dependence]) -> None:
        self.kinds: list[NestKind] = [kind_of(nest) if nest else "pointwise" for nest in nests]
        self.producers: list[list[int]] = [[] for _ in nests]
        self.users: list[list[int]] = [[] for _ in nests]
        for dependence in dependences:
            if dependence.value:
                self.producers[dependence.dst].append(dependence.src)
                self.users[dependence.src].append(dependence.dst)
        self.chains: dict[Walk, set[int]] = {}
        self.found: list[dict[Walk, tuple[Cover, Fit]]] = [{} for _ in nests]

    def settle(self, op: int, cover: Cover, frame: int) -> None:
        """Put an op into its natural walk: the first group whose chain takes its cut points."""
        home = natural_walk(cover)
        group = 0
        while True:
            walk = Walk(home.x, home.r, frame, group)
            fitting = fit(cover, self.kinds[op], walk)
            assert fitting is not None, "an op fits its own walk"
            self.chains.setdefault(walk, set(walk.cuts))
            if self._admit(op, cover, fitting, walk):
                return
            group += 1

    def reunite(self, framed: Sequence[Mapping[int, Cover]]) -> None:
        """Admit the producers and consumers of a further group's members, if they have the same points, to that group.

        Unrelated ops of the graph may have equally many points, and their order decides which of them share a
        refinement. An op without digits of its own is in the first group, whichever group its neighbours are in.
        """
        for walk in [walk for walk in self.chains if walk.group]:
            waiting = [op for op, found in enumerate(self.found) if walk in found]
            while waiting:
                op = waiting.pop()
                for other in (*self.producers[op], *self.users[op]):
                    cover = framed[walk.frame].get(other)
                    if cover is None or walk in self.found[other]:
                        continue
                    home = natural_walk(cover)
                    fitting = fit(cover, self.kinds[other], walk) if same_order(home, walk) else None
                    if fitting is not None and self._admit(other, cover, fitting, walk):
                        waiting.append(other)

    def join_reductions(self, framed: Sequence[Mapping[int, Cover]]) -> None:
        """Admit pointwise ops to reductions' walks.

        Those of all the points do so in the walk's frame; those of x's points in their natural order, if they use
        results of the walk's reductions.
        """
        by_points: dict[int, list[int]] = {}
        for op, cover in framed[0].items():
            if self.kinds[op] == "pointwise":
                by_points.setdefault(cover.points, []).append(op)
        for walk in [walk for walk in self.chains if walk.r]:
            for op in sorted({*by_points.get(walk.points, ()), *by_points.get(point_count(walk.x), ())}):
                own, cover = framed[walk.frame].get(op), framed[0][op]
                if own is not None and equal(own.points, walk.points):
                    cover = own
                fitting = None if walk in self.found[op] else fit(cover, "pointwise", walk)
                if fitting is not None and (self._per_x(op, walk) if fitting.role == "outer" else cover is own):
                    self._admit(op, cover, fitting, walk)

    def project(
        self, dependence: Dependence, nests: Sequence[LoopNest | None], touched: Sequence[NestAccesses | None]
    ) -> None:
        """Admit a smaller pointwise producer to the walks of its consumer, if the consumer reads all of its points."""
        producer, accesses, users = nests[dependence.src], touched[dependence.src], touched[dependence.dst]
        if not dependence.value or producer is None or accesses is None or users is None:
            return
        if self.kinds[dependence.src] != "pointwise":
            return
        loads = [a for a in users.loads if a.buffer == dependence.buffer]
        stores = [a for a in accesses.stores if a.buffer == dependence.buffer]
        if len(stores) != 1 or len({(a.coefficients, a.offset) for a in loads}) != 1 or not loads[0].exact:
            return
        for walk, (cover, fitting) in self.found[dependence.dst].items():
            if walk not in self.found[dependence.src] and hint(prod(producer.sizes)) < hint(walk.points):
                shown = projection(producer, stores[0], cover, loads[0])
                role = None if shown is None else fit_projection(shown, fitting.on_x, walk)
                if shown is not None and role is not None:
                    self._admit(dependence.src, shown, role, walk)

    def _per_x(self, op: int, walk: Walk) -> bool:
        """Whether the op uses a value that the walk has once for every x."""
        placed = (self.found[producer].get(walk) for producer in self.producers[op])
        return any(at is not None and at[1].role in ("reduces", "outer") for at in placed)

    def _admit(self, op: int, cover: Cover, fitting: Fit, walk: Walk) -> bool:
        points = self.chains[walk]
        if not is_chain(points | fitting.cuts):
            return False
        points |= fitting.cuts
        self.found[op][walk] = (cover, fitting)
        return True


def _placed(cover: Cover, found: Fit, touched: NestAccesses, space: DigitSpace) -> Placed:
    rows = digit_weights(cover, found, space)
    width = len(space.x) + len(space.r)
    return Placed(
        cover,
        found,
        tuple(_layout(a, rows, width) if a.exact else None for a in touched.loads),
        tuple(_layout(a, rows, width) if a.coefficients is not None else None for a in touched.loads),
        tuple(_layout(a, rows, width) if a.exact else None for a in touched.stores),
        full=found.role == "full" or (found.role == "projected" and any(any(row[len(space.x) :]) for row in rows)),
    )


def _layout(access: Access, rows: Sequence[Sequence[int]], width: int) -> Layout:
    return (*(address(access, rows) or (0,) * width), access.offset)
