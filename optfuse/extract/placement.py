"""Every op in every walk it can run in, with its addresses over the walk's refined digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optfuse.extract.access import Access, NestAccesses
from optfuse.extract.dependence import Dependence
from optfuse.extract.digits import is_chain
from optfuse.extract.frames import Frame, frames
from optfuse.extract.walks import Cover, DigitSpace, Fit, Walk, address, digit_space, fit, natural_cover, natural_walk
from optfuse.extract.walks import weights as digit_weights
from optfuse.ir.nodes import LoopNest

Layout = tuple[int, ...]  # coefficients over the digits (x, then r) and, last, the offset


@dataclass(frozen=True, slots=True)
class Placed:
    """An op in a walk. ``loads`` and ``stores`` run along its accesses; None where an address is not exact.

    ``inner`` holds, for each load, the affine part over the digits also of guarded and indirect accesses.
    """

    cover: Cover
    fit: Fit
    loads: tuple[Layout | None, ...]
    inner: tuple[Layout | None, ...]
    stores: tuple[Layout | None, ...]


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
    nests: Sequence[LoopNest | None],
    touched: Sequence[NestAccesses | None],
    dependences: Sequence[Dependence] = (),
) -> Placements:
    """Find the walks of a graph's nests and place every nest in all that it fits.

    The members of one walk share one refinement, so that any of them can meet in a kernel: an op whose digits break
    the chain stays out, or opens another group of the same walk if this is where it belongs.
    """
    natural = [None if n is None else natural_cover(n, t) for n, t in zip(nests, touched, strict=True)]
    beyond = frames(natural, touched, dependences)
    crossing = [frame.guests | {op: natural[op] for op in frame.root} for frame in beyond]
    chains: dict[Walk, set[int]] = {}
    found: list[dict[Walk, tuple[Cover, Fit]]] = [{} for _ in nests]
    for frame, covers in enumerate([dict(enumerate(natural)), *crossing]):
        for op, cover in covers.items():
            if cover is not None:
                home = natural_walk(cover)
                _settle(cover, bool(nests[op].reductions), Walk(home.x, home.r, frame), chains, found[op])
    for op, cover in enumerate(natural):
        for walk, points in chains.items() if cover is not None else ():
            own = cover if walk.frame == 0 else crossing[walk.frame - 1].get(op)
            _join(op, cover, own, bool(nests[op].reductions), walk, points, found)

    walks = tuple(chains)
    spaces = tuple(digit_space(walk, chains[walk]) for walk in walks)
    places = tuple(
        {k: _placed(*at[walk], accesses, spaces[k]) for k, walk in enumerate(walks) if walk in at}
        for at, accesses in zip(found, touched, strict=True)
    )
    return Placements(walks, spaces, places, beyond)


def _join(
    op: int,
    natural: Cover,
    own: Cover | None,
    reduces: bool,
    walk: Walk,
    points: set[int],
    found: list[dict[Walk, tuple[Cover, Fit]]],
) -> None:
    """Let an op into a reduction's walk if it fits: over all points in the walk's frame, over x in its own order."""
    if walk in found[op] or not walk.r:
        return
    for cover in (own, natural):
        fitting = None if cover is None else fit(cover, reduces, walk)
        if fitting is None or (cover is not own and fitting.role != "outer"):
            continue
        if is_chain(points | fitting.cuts):
            points |= fitting.cuts
            found[op][walk] = (cover, fitting)
            return


def _settle(
    cover: Cover,
    reduces: bool,
    home: Walk,
    chains: dict[Walk, set[int]],
    found: dict[Walk, tuple[Cover, Fit]],
) -> None:
    """Put an op into its natural walk: the first group whose chain takes its cut points."""
    group = 0
    while True:
        walk = Walk(home.x, home.r, home.frame, group)
        fitting = fit(cover, reduces, walk)
        assert fitting is not None, "an op fits its own walk"
        points = chains.setdefault(walk, set(walk.cuts))
        if is_chain(points | fitting.cuts):
            points |= fitting.cuts
            found[walk] = (cover, fitting)
            return
        group += 1


def _placed(cover: Cover, found: Fit, touched: NestAccesses, space: DigitSpace) -> Placed:
    rows = digit_weights(cover, found.role, space)
    width = len(space.x) + len(space.r)
    return Placed(
        cover,
        found,
        tuple(_layout(a, rows, width) if a.exact else None for a in touched.loads),
        tuple(_layout(a, rows, width) if a.coefficients is not None else None for a in touched.loads),
        tuple(_layout(a, rows, width) if a.exact else None for a in touched.stores),
    )


def _layout(access: Access, rows: Sequence[Sequence[int]], width: int) -> Layout:
    return (*(address(access, rows) or (0,) * width), access.offset)
