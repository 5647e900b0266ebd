"""Every op in every walk it can run in, with its addresses over the walk's refined digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optfuse.extract.access import Access, NestAccesses
from optfuse.extract.digits import is_chain
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
    """All walks of a graph, their digit spaces, and every op's place in each (by op position, then walk position)."""

    walks: tuple[Walk, ...]
    spaces: tuple[DigitSpace, ...]
    places: tuple[Mapping[int, Placed], ...]


def place(nests: Sequence[LoopNest | None], touched: Sequence[NestAccesses | None]) -> Placements:
    """Find the walks of a graph's nests and place every nest in all that it fits.

    The members of one walk share one refinement, so that any of them can meet in a kernel: an op whose digits break
    the chain stays out, or opens another group of the same walk if this is where it belongs.
    """
    covers = [None if n is None else natural_cover(n, t) for n, t in zip(nests, touched, strict=True)]
    chains: dict[Walk, set[int]] = {}
    fits: list[dict[Walk, Fit]] = [{} for _ in nests]
    for position, cover in enumerate(covers):
        if cover is not None:
            _settle(cover, bool(nests[position].reductions), natural_walk(cover), chains, fits[position])
    for position, cover in enumerate(covers):
        if cover is None:
            continue
        for walk, points in chains.items():
            if walk in fits[position] or not walk.r:
                continue
            found = fit(cover, bool(nests[position].reductions), walk)
            if found is not None and is_chain(points | found.cuts):
                points |= found.cuts
                fits[position][walk] = found

    walks = tuple(chains)
    spaces = tuple(digit_space(walk, chains[walk]) for walk in walks)
    number = {walk: k for k, walk in enumerate(walks)}
    places = []
    for cover, found, accesses in zip(covers, fits, touched, strict=True):
        places.append(
            {number[w]: _placed(cover, f, accesses, spaces[number[w]]) for w, f in found.items()} if cover else {}
        )
    return Placements(walks, spaces, tuple(places))


def _settle(cover: Cover, reduces: bool, home: Walk, chains: dict[Walk, set[int]], fits: dict[Walk, Fit]) -> None:
    """Put an op into its natural walk: the first group whose chain takes its cut points."""
    group = 0
    while True:
        walk = Walk(home.x, home.r, home.frame, group)
        found = fit(cover, reduces, walk)
        assert found is not None, "an op fits its own walk"
        points = chains.setdefault(walk, set(walk.cuts))
        if is_chain(points | found.cuts):
            points |= found.cuts
            fits[walk] = found
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
