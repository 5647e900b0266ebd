"""Small producers inside larger kernels: a value that its consumer broadcasts can be recomputed at each of its points.

A per-channel scale, for example, is an op of C points whose consumer has N*C*HW. In the consumer's walk the op runs at
a projection of the points: its dimensions are the digits along which the consumer's index of its value moves, and it is
recomputed along all others. It can still store its value, from the points where those others are 0.
"""

from __future__ import annotations

from math import prod

from optfuse.compiler.analysis.access import Access
from optfuse.compiler.analysis.iteration_orders import Cover, Fit, Piece, Walk, cuts_from_x
from optfuse.compiler.analysis.mixed_radix import Digit, cuts, is_chain, is_dense, point_count, refine
from optfuse.compiler.ir.nodes import LoopNest
from optfuse.compiler.ir.sizes import divides, equal


def projection(producer: LoopNest, store: Access, user: Cover, load: Access) -> Cover | None:
    """The producer's dimensions over the consumer's digits, so that it computes just the element that is loaded.

    None when the load does not move along the producer's dimensions one by one, or does not reach all of its points.
    """
    sizes = producer.sizes
    steps = store.coefficients or ()
    if not store.exact or load.offset != store.offset or not is_dense(sizes, steps):
        return None
    ends = {step * size for size, step in zip(sizes, steps, strict=True) if size > 1}
    pieces: list[list[Piece]] = [[] for _ in sizes]
    for coefficient, dimension in zip(load.coefficients or (), user.dimensions, strict=True):
        for piece in dimension:
            if coefficient and piece.digit.size > 1 and not _assign(coefficient, piece, sizes, steps, ends, pieces):
                return None
    for size, found in zip(sizes, pieces, strict=True):
        reached = [p.digit.size for p in found]
        if size > 1 and not (is_dense(reached, [p.weight for p in found]) and prod(reached) == size):
            return None
    return Cover(tuple(map(tuple, pieces)), len(sizes))


def _assign(
    coefficient: int,
    piece: Piece,
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    ends: set[int],
    pieces: list[list[Piece]],
) -> bool:
    """Assign each part of a digit to the dimension along which it moves the address; False where there is none."""
    step = coefficient * piece.weight
    if step < 0:
        return False
    inside = {end // step * piece.digit.stride for end in ends if divides(step, end) and end > step}
    inside = {p for p in inside if p < piece.digit.stride * piece.digit.size}
    if not is_chain(inside | {piece.digit.stride, piece.digit.stride * piece.digit.size}):
        return False
    for part in refine(piece.digit, inside):
        moved = step * (part.stride // piece.digit.stride)
        for k, (size, unit) in enumerate(zip(sizes, steps, strict=True)):
            if size > 1 and divides(unit, moved) and unit <= moved and moved * part.size <= unit * size:
                pieces[k].append(Piece(Digit(part.size, part.stride), moved // unit))
                break
        else:
            return False
    return True


def fit_projection(cover: Cover, on_x: bool, walk: Walk) -> Fit | None:
    """How a projected op runs in its consumer's walk (``on_x`` as for the consumer); None where it cannot."""
    own = cuts(cover.parallel)
    points = cuts_from_x(own, walk) if on_x else own
    if points is None or not is_chain(points | walk.cuts):
        return None
    per_x = on_x and equal(cover.points, point_count(walk.x))
    return Fit("outer" if per_x else "projected", points | walk.cuts, on_x)
