"""The offers of a nest: what it reads and writes in each walk, how it touches memory, and which reads coincide."""

from __future__ import annotations

from collections.abc import Mapping

from optfuse.compiler.analysis.access import Access, NestAccesses
from optfuse.compiler.analysis.edge_legality import ONE_PASS_POINTS
from optfuse.compiler.analysis.iteration_orders import DigitSpace, Walk
from optfuse.compiler.analysis.mixed_radix import Digit, is_dense
from optfuse.compiler.analysis.op_work import ITEM_BYTES, buffer_bytes, touched_bytes
from optfuse.compiler.analysis.placement import Layout, Placed, Placements
from optfuse.compiler.ir.nodes import Buffer, LoopNest
from optfuse.problem.instance import AccessClass, Offer, Read, Scheme, Write

#: Neighbouring points of one program's tile along the contiguous axis, when x walks it and r is reduced: as few as
#: make a memory transaction, which code generation falls back to where there are few points.
COLUMN_TILE = 8
#: Points of one program's tile.
TILE = 2048
#: A common read of fewer bytes (a seed, a scale, a bias of a thousand values) is no reason to share a kernel.
SHARED_BYTES = 4096


def scheme_of(walk: Walk) -> Scheme:
    """A walk as the solver sees it. Parallel programs are estimated from the tiles that code generation would take."""
    x = _points(walk.x)
    r = _points(walk.r)
    rows = COLUMN_TILE if walk.by_columns else max(1, TILE // r)
    return Scheme(walk.name, x, r, max(1, -(-x // rows)))


def _points(digits: tuple[Digit, ...]) -> int:
    points = 1
    for digit in digits:
        points *= digit.size
    return points


class Footprints:
    """Numbers for the distinct ways in which a buffer is read: equal number, same address at every point.

    Places are such numbers for any buffer, of addresses that are met at one point only.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._places: dict[tuple[object, ...], int] = {}

    def number(self, *key: object) -> int:
        """The number of a key, a new one when it was not seen before."""
        return self._numbers.setdefault(key, len(self._numbers))

    def place(self, layout: Layout | None, item: int, walk: Walk, space: DigitSpace) -> int:
        """The number of an address function over a walk, for elements of ``item`` bytes; 0 when it is no place.

        An element that is read at several points is none, nor are those of a walk in several passes: what is stored at
        one point, in one pass, could be read at the next.
        """
        sizes = [digit.size for digit in (*space.x, *space.r)]
        if layout is None or _points(walk.r) > ONE_PASS_POINTS or not is_dense(sizes, layout[: len(sizes)]):
            return 0
        return self._places.setdefault((walk, item, _shape(layout, space)), len(self._places) + 1)


def offer(
    nest: LoopNest,
    touched: NestAccesses,
    placed: Placed,
    scheme: int,
    walk: int,
    placements: Placements,
    buffers: Mapping[str, Buffer],
    ids: Mapping[str, int],
    footprints: Footprints,
) -> Offer:
    """What ``nest`` reads and writes when it runs in ``walk``."""
    walked, space = placements.walks[walk], placements.spaces[walk]
    sizes = tuple(int(s) for s in (*nest.sizes, *nest.rsizes))
    reads: dict[tuple[int, int], Read] = {}
    for access, inner, exact in zip(touched.loads, placed.inner, placed.loads, strict=True):
        buffer = buffers[access.buffer]
        size = touched_bytes(access, sizes, buffer)
        item = ITEM_BYTES.get(buffer.dtype, 8)
        common = exact is not None and size >= SHARED_BYTES
        shape = (walk, _shape(exact, space)) if common and exact is not None else (nest.name, _window(access))
        print_number = footprints.number(access.buffer, shape)
        key = (ids[access.buffer], print_number)
        if key in reads:  # a window's elements, together no more than there is
            size = min(size + reads[key].bytes, buffer_bytes(buffer))
        klass = _access_class(inner, space, item, indirect=access.indirect)
        if klass == "contiguous" and walked.by_columns:
            klass = "column"
        reads[key] = Read(key[0], size, klass, print_number, footprints.place(exact, item, walked, space))
    writes: list[Write] = []
    for access, exact in zip(touched.stores, placed.stores, strict=True):
        buffer = buffers[access.buffer]
        item = ITEM_BYTES.get(buffer.dtype, 8)
        klass = _access_class(exact, space, item, indirect=False)
        place = footprints.place(exact, item, walked, space)
        writes.append(Write(ids[access.buffer], touched_bytes(access, sizes, buffer), klass, place))
    return Offer(
        scheme,
        tuple(reads.values()),
        tuple(writes),
        full=placed.full,
        reduces=placed.fit.role == "reduces",
    )


def _window(access: Access) -> object:
    """What tells a read that is no walk of its own from others of its nest.

    Reads by position that are guarded, or go through quotients and remainders, are of windows that overlap: a buffer
    is fetched for all of them once. So are those that are affine and apart by a constant.
    """
    return access.load if access.exact or access.indirect else None


def _shape(layout: Layout, space: DigitSpace) -> tuple[object, ...]:
    """An address function in normal form: runs of (points skipped, stride), independent of how digits were refined."""
    runs: list[tuple[int, int]] = []
    for digits, coefficients in (
        (space.x, layout[: len(space.x)]),
        (space.r, layout[len(space.x) : len(space.x) + len(space.r)]),
    ):
        joined: list[tuple[int, int]] = []
        for digit, coefficient in zip(digits, coefficients, strict=True):
            if joined and joined[-1][1] == coefficient * digit.size:
                joined[-1] = (joined[-1][0] * digit.size, coefficient)
            else:
                joined.append((digit.size, coefficient))
        runs.extend((*joined, (0, 0)))
    return (*runs, layout[-1])


def _access_class(layout: Layout | None, space: DigitSpace, item: int, *, indirect: bool) -> AccessClass:
    """Contiguous along the digit that memory runs along; strided when neighbours are apart; gather by data."""
    if layout is None:
        return "gather"
    digits = (*space.x, *space.r)
    moving = [(d.stride, d.size, c) for d, c in zip(digits, layout, strict=False) if d.size > 1]
    if not moving:
        return "gather" if indirect else "contiguous"
    _, size, coefficient = min(moving)
    if coefficient == 1:
        return "contiguous"
    if indirect:
        return "gather"
    if coefficient == 0:
        return "broadcast"
    return "contiguous" if size * item < 4 else "strided"
