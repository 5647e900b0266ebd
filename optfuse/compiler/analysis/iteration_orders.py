"""Iteration orders: the walks in which a kernel can traverse an index space, and how an op runs in one.

Every nest numbers its points n = 0, 1, ... in a *natural* order: the memory order of what it writes (pointwise) or of
its main input (reductions). Its dimensions are digits of n: that is its *cover*. A *walk*, which is a scheme of the
instance, splits the digits of n into those of x (in parallel) and those of r (the inner loop, of reductions):

    row reduction of (8192, 768):     x = (8192, 768)          r = (768, 1)
    column reduction of (8192, 768):  x = (768, 1)             r = (8192, 768)
    batch-norm statistics (N, C, HW): x = (C, HW)              r = (N, C*HW) (HW, 1)
    pointwise:                        x = (N*C*HW, 1)          r = ()

A pointwise op of x*r points can run in a reduction's walk as long as its digits and the walk's have a common
refinement; one of x points runs once for each x, its own n being the flat x. A reduction runs in its own walk only,
and so does a scan, with the scanned dimension as r; but its results are values of all the points. A product of matrices
runs in its own flat walk, refined where its rows end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from optfuse.compiler.analysis.access import Access, NestAccesses
from optfuse.compiler.analysis.mixed_radix import Digit, coalesce, cuts, is_chain, is_dense, point_count, refine
from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.nodes import LoopNest
from optfuse.compiler.ir.sizes import equal
from optfuse.compiler.ir.traversal import dot_in

Role = Literal["full", "outer", "reduces", "projected"]
NestKind = Literal["pointwise", "reduction", "scan", "product"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A digit of n that moves a dimension by ``weight`` a step."""

    digit: Digit
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Cover:
    """A nest's dimensions over the digits of n: the pieces of each dimension, parallel ones first, then reduced ones.

    In the natural order a dimension is one digit; in another frame it may have several.
    """

    dimensions: tuple[tuple[Piece, ...], ...]
    parallel_rank: int

    @property
    def parallel(self) -> tuple[Digit, ...]:
        """Digits of the parallel dimensions."""
        return tuple(p.digit for pieces in self.dimensions[: self.parallel_rank] for p in pieces)

    @property
    def reduced(self) -> tuple[Digit, ...]:
        """Digits of the reduced dimensions."""
        return tuple(p.digit for pieces in self.dimensions[self.parallel_rank :] for p in pieces)

    @property
    def points(self) -> int:
        """The number of points."""
        return point_count(self.parallel) * point_count(self.reduced)


@dataclass(frozen=True)
class Walk:
    """The iteration order of a scheme: digits of n for x and for r, each major first and coalesced.

    In ``frame`` 0 every op numbers n in its natural order; in another one some ops follow the order of others, across a
    transposition (``frames``). ``group`` distinguishes walks whose members have no common refinement.
    """

    x: tuple[Digit, ...]
    r: tuple[Digit, ...] = ()
    frame: int = 0
    group: int = 0

    @property
    def name(self) -> str:
        """A readable name, unique among the walks of an instance."""
        text = "x" + _text(self.x) + (" r" + _text(self.r) if self.r else "")
        return text + (f" frame {self.frame}" if self.frame else "") + (f" group {self.group}" if self.group else "")

    @cached_property
    def points(self) -> int:
        """The number of points: x times r."""
        return point_count(self.x) * point_count(self.r)

    @cached_property
    def cuts(self) -> frozenset[int]:
        """Cut points of the walk's own digits in terms of n."""
        return cuts((*self.x, *self.r))

    @cached_property
    def x_line(self) -> tuple[Digit, ...]:
        """The x digits as digits of the flat x."""
        strides = row_major([d.size for d in self.x])
        return tuple(Digit(d.size, t) for d, t in zip(self.x, strides, strict=True))

    @property
    def by_columns(self) -> bool:
        """Whether x, not r, runs along memory."""
        return bool(self.r) and bool(self.x) and self.x[-1].stride < self.r[-1].stride


def _text(digits: Iterable[Digit]) -> str:
    return "[" + ",".join(f"{d.size}:{d.stride}" for d in digits) + "]"


def kind_of(nest: LoopNest) -> NestKind:
    """How the points of a nest depend on each other."""
    if nest.pointwise:
        return "pointwise" if dot_in(nest) is None else "product"
    return "reduction" if nest.scan is None else "scan"


def in_order(cover: Cover) -> bool:
    """Whether the reduced dimensions, of which there is one in a scan, run forward in a walk's order."""
    pieces = sorted((p for dimension in cover.dimensions[cover.parallel_rank :] for p in dimension), key=_stride)
    return [p.weight for p in pieces] == sorted(p.weight for p in pieces)


def _stride(piece: Piece) -> int:
    return piece.digit.stride


def natural_cover(nest: LoopNest, touched: NestAccesses) -> Cover:
    """The cover whose n follows memory: of the main input for a reduction, of the first store for other nests."""
    sizes = (*nest.sizes, *nest.rsizes)
    strides = row_major(sizes)
    main = _main_access(nest, touched, sizes)
    steps = None if main is None else main.coefficients
    if steps is not None:
        order = sorted(range(len(sizes)), key=[-step for step in steps].__getitem__)
        ranked = row_major([sizes[k] for k in order])
        by_dimension = dict(zip(order, ranked, strict=True))
        strides = tuple(by_dimension[k] for k in range(len(sizes)))
    return Cover(tuple((Piece(Digit(s, t)),) for s, t in zip(sizes, strides, strict=True)), len(nest.sizes))


def _main_access(nest: LoopNest, touched: NestAccesses, sizes: Sequence[int]) -> Access | None:
    """The access whose memory order is the nest's natural order; None keeps the nest's own."""
    if not nest.reductions:
        store = touched.stores[0]
        return store if store.exact and is_dense(sizes, store.coefficients or ()) else None
    whole = [a for a in touched.loads if a.exact and _injective(sizes, a.coefficients or ())]
    dense = [a for a in whole if is_dense(sizes, a.coefficients or ())]
    return next(iter(dense), next(iter(whole), None))


def _injective(sizes: Sequence[int], coefficients: Sequence[int]) -> bool:
    """Whether every dimension has a positive stride of its own."""
    moving = [c for s, c in zip(sizes, coefficients, strict=True) if s > 1]
    return all(c > 0 for c in moving) and len(set(moving)) == len(moving)


def natural_walk(cover: Cover) -> Walk:
    """The walk of a nest on its own: pointwise ops flat, others with their reduced or scanned dimensions as r."""
    if not cover.reduced or point_count(cover.reduced) == 1:
        return Walk((Digit(cover.points, 1),) if cover.points > 1 else ())
    return Walk(coalesce(cover.parallel), coalesce(cover.reduced))


def same_order(one: Walk, other: Walk) -> bool:
    """Whether two walks have the same digits, at every size."""
    return all(
        len(mine) == len(theirs)
        and all(equal(a.size, b.size) and equal(a.stride, b.stride) for a, b in zip(mine, theirs, strict=True))
        for mine, theirs in ((one.x, other.x), (one.r, other.r))
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """How an op runs in a walk: its role and the cut points of n that it needs.

    ``on_x``: the op's digits are digits of the flat x rather than of n.
    """

    role: Role
    cuts: frozenset[int]
    on_x: bool = False


def fit(cover: Cover, kind: NestKind, walk: Walk) -> Fit | None:
    """How a nest of this cover can run in the walk; None if it cannot."""
    if kind != "pointwise":
        own = natural_walk(cover)
        if not same_order(own, walk):
            return None
        role = "reduces" if kind == "reduction" else "full"
        return _checked(role, cuts((*cover.parallel, *cover.reduced)) | walk.cuts)
    if equal(cover.points, walk.points):
        return _checked("full", cuts(cover.parallel) | walk.cuts)
    if walk.r and equal(cover.points, point_count(walk.x)):
        return _outer(cover, walk)
    return None


def _outer(cover: Cover, walk: Walk) -> Fit | None:
    points = cuts_from_x(cuts(cover.parallel), walk)
    return None if points is None else _checked("outer", points | walk.cuts, on_x=True)


def cuts_from_x(points: frozenset[int], walk: Walk) -> frozenset[int] | None:
    """Cut points of the flat x as cut points of n; None when they have no common refinement with the walk's digits."""
    on_x = points | cuts(walk.x_line)
    if not is_chain(on_x):
        return None
    on_n: set[int] = set()
    for digit, line in zip(walk.x, walk.x_line, strict=True):
        on_n |= {p // line.stride * digit.stride for p in on_x if line.stride <= p <= line.stride * line.size}
    return frozenset(on_n)


def _checked(role: Role, points: frozenset[int], *, on_x: bool = False) -> Fit | None:
    return Fit(role, points, on_x) if is_chain(points) else None


@dataclass(frozen=True, slots=True)
class DigitSpace:
    """The refined digits of a walk, major first, as digits of n; on ``x_line`` the x digits as digits of the flat x."""

    x: tuple[Digit, ...]
    r: tuple[Digit, ...]
    x_line: tuple[Digit, ...]


def digit_space(walk: Walk, points: Iterable[int]) -> DigitSpace:
    """A walk's digits refined at cut points of n that form a chain with the walk's own."""
    points = frozenset(points)
    x = tuple(part for digit in walk.x for part in refine(digit, _inside(points, digit)))
    r = tuple(part for digit in walk.r for part in refine(digit, _inside(points, digit)))
    strides = row_major([d.size for d in x])
    return DigitSpace(x, r, tuple(Digit(d.size, t) for d, t in zip(x, strides, strict=True)))


def _inside(points: frozenset[int], digit: Digit) -> set[int]:
    return {p for p in points if digit.stride < p < digit.stride * digit.size}


def weights(cover: Cover, fitting: Fit, space: DigitSpace) -> tuple[tuple[int, ...], ...]:
    """By dimension of a nest (parallel, then reduced): its weights over the digits (x, then r) of the space.

    dimension value = sum of weight * digit. The space must be refined at the fit's cut points.
    """
    line = (*space.x_line, *(Digit(1, 0) for _ in space.r)) if fitting.on_x else (*space.x, *space.r)
    return tuple(tuple(_weight(pieces, digit) for digit in line) for pieces in cover.dimensions)


def _weight(pieces: Iterable[Piece], digit: Digit) -> int:
    for piece in pieces:
        low, high = piece.digit.stride, piece.digit.stride * piece.digit.size
        if digit.size > 1 and low <= digit.stride < high:
            return piece.weight * (digit.stride // low)
    return 0


def address(access: Access, rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The coefficients of an affine access over the digits (x, then r), from the weights of its nest's dimensions."""
    coefficients = access.coefficients or ()
    width = len(rows[0]) if rows else 0
    return tuple(sum(c * row[k] for c, row in zip(coefficients, rows, strict=True)) for k in range(width))
