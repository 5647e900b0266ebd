"""The offers of a nest: by walk, its reads and writes with their access classes, and which reads coincide."""

from __future__ import annotations

from collections.abc import Mapping

from optfuse.compiler.analysis.access import Access, NestAccesses
from optfuse.compiler.analysis.edge_legality import ONE_PASS_POINTS
from optfuse.compiler.analysis.iteration_orders import DigitSpace, Walk
from optfuse.compiler.analysis.mixed_radix import is_dense, point_count
from optfuse.compiler.analysis.op_work import ITEM_BYTES, buffer_bytes, touched_bytes
from optfuse.compiler.analysis.placement import Layout, Placed, Placements
from optfuse.compiler.ir.nodes import Buffer, LoopNest
from optfuse.compiler.ir.sizes import hint, never_less
from optfuse.problem.instance import AccessClass, Offer, Read, Scheme, Write

#: Points of a column reduction's tile along the contiguous axis x: the fewest that fill a memory transaction, which
#: code generation uses where there are few points.
COLUMN_TILE = 8
#: Points of a tile.
TILE = 2048
#: A common read of fewer bytes (a seed, a scale, a bias of a thousand values) is no reason to share a kernel.
SHARED_BYTES = 4096


def scheme_of(walk: Walk) -> Scheme:
    """The instance's scheme of a walk. Its parallel programs are estimated from the tiles of code generation.

    In a frame, what a kernel reads and writes may run along x although the walk does not: it gets the fewer programs.
    """
    x, r = hint(point_count(walk.x)), hint(point_count(walk.r))
    rows = COLUMN_TILE if walk.by_columns or (walk.frame and walk.r) else max(1, TILE // r)
    return Scheme(walk.name, x, r, max(1, -(-x // rows)))


class Footprints:
    """Numbers the distinct read patterns of a buffer: reads of equal number have the same address at every point.

    Places number address functions alike for all buffers, where each address belongs to one point only.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._places: dict[tuple[object, ...], int] = {}

    def number(self, *key: object) -> int:
        """The number of a key; a new key gets the next one."""
        return self._numbers.setdefault(key, len(self._numbers))

    def place(self, layout: Layout | None, item: int, walk: Walk, space: DigitSpace) -> int:
        """The number of a walk's address function (elements of ``item`` bytes); 0 if a store could overtake a read.

        That is so where an element is read at several points, and in a walk of several passes over r.
        """
        sizes = [digit.size for digit in (*space.x, *space.r)]
        if (
            layout is None
            or not never_less(ONE_PASS_POINTS, point_count(walk.r))
            or not is_dense(sizes, layout[: len(sizes)])
        ):
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
    """The offer of ``nest`` for ``walk``: what it reads and writes there."""
    walked, space = placements.walks[walk], placements.spaces[walk]
    sizes = (*nest.sizes, *nest.rsizes)
    reads: dict[tuple[int, int], Read] = {}
    for access, inner, exact in zip(touched.loads, placed.inner, placed.loads, strict=True):
        buffer = buffers[access.buffer]
        kept = access.load is None  # what an indirect store leaves as it is, which no kernel reads
        size = 0 if kept else touched_bytes(access, sizes, buffer)
        item = ITEM_BYTES.get(buffer.dtype, 8)
        common = exact is not None and size >= SHARED_BYTES
        shape = (walk, _shape(exact, space)) if common and exact is not None else (nest.name, _window(access))
        print_number = footprints.number(access.buffer, shape)
        key = (ids[access.buffer], print_number)
        if key in reads:  # elements of a window, together at most the buffer
            size = min(size + reads[key].bytes, buffer_bytes(buffer))
        klass = _access_class(inner, space, item, indirect=access.indirect)
        if access.terms > 1:  # rows along the sum, or whole tiles
            klass = "contiguous"
        if klass == "contiguous" and walked.by_columns:
            klass = "column"
        reads[key] = Read(key[0], size, klass, print_number, footprints.place(exact, item, walked, space))
    writes: list[Write] = []
    updated = {a.buffer: inner for a, inner in zip(touched.loads, placed.inner, strict=True) if a.load is None}
    for access, exact in zip(touched.stores, placed.stores, strict=True):
        buffer = buffers[access.buffer]
        item = ITEM_BYTES.get(buffer.dtype, 8)
        klass = _access_class(updated.get(access.buffer, exact), space, item, indirect=access.indirect)
        place = footprints.place(exact, item, walked, space)
        writes.append(Write(ids[access.buffer], touched_bytes(access, sizes, buffer), klass, place))
    # a scan has one program a row, as a reduction has; where rows are long, this prices its consumers a pass too late
    serial = placed.fit.role == "reduces" or nest.scan is not None
    return Offer(scheme, tuple(reads.values()), tuple(writes), full=placed.full, reduces=serial)


def _window(access: Access) -> object:
    """A key for a read that coincides with no other nest's, distinct from the other reads of its nest.

    Guarded reads, and those with quotients or remainders in their index, belong to overlapping windows: the buffer is
    fetched once for all of them, hence None. So do affine reads that differ by a constant.
    """
    return access.load if access.exact or access.indirect else None


def _shape(layout: Layout, space: DigitSpace) -> tuple[object, ...]:
    """An address function in normal form: runs of (points, stride), independent of how digits were refined."""
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
    """The access class of an address, by its coefficient along the fastest digit; a gather where data decides."""
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
