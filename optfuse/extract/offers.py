"""The offers of a nest: what it reads and writes in each walk, how it touches memory, and which reads coincide."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from optfuse.extract.access import Access, NestAccesses
from optfuse.extract.digits import Digit, is_dense
from optfuse.extract.legality import ONE_PASS_POINTS
from optfuse.extract.placement import Layout, Placed, Placements
from optfuse.extract.walks import DigitSpace, Walk
from optfuse.extract.work import ITEM_BYTES, buffer_bytes, touched_bytes
from optfuse.ir.nodes import Buffer, LoopNest
from optfuse.problem.instance import AccessClass, Offer, Read, Scheme, Write

#: Neighbouring points of one program's tile along the contiguous axis, when x walks it and r is reduced.
COLUMN_TILE = 16
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
    """Numbers for the distinct ways in which a buffer is read: equal number, same address at every point."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, *key: object) -> int:
        """The number of a key, a new one when it was not seen before."""
        return self._numbers.setdefault(key, len(self._numbers))


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
    space = placements.spaces[walk]
    sizes = tuple(int(s) for s in (*nest.sizes, *nest.rsizes))
    reads: dict[tuple[int, int], Read] = {}
    for access, inner, exact in zip(touched.loads, placed.inner, placed.loads, strict=True):
        buffer = buffers[access.buffer]
        size = touched_bytes(access, sizes, buffer)
        common = exact is not None and size >= SHARED_BYTES
        shape = (walk, _shape(exact, space)) if common and exact is not None else (nest.name, access.load)
        print_number = footprints.number(access.buffer, shape)
        key = (ids[access.buffer], print_number)
        klass = _access_class(inner, space, ITEM_BYTES.get(buffer.dtype, 8), indirect=access.indirect)
        reads[key] = Read(key[0], size, klass, print_number)
    in_one_pass = _points(placements.walks[walk].r) <= ONE_PASS_POINTS
    writes = tuple(
        Write(
            ids[access.buffer],
            touched_bytes(access, sizes, buffers[access.buffer]),
            _access_class(layout, space, ITEM_BYTES.get(buffers[access.buffer].dtype, 8), indirect=False),
            tuple(ids[name] for name in _met(access, layout, nest, touched, placed, buffers)) if in_one_pass else (),
        )
        for access, layout in zip(touched.stores, placed.stores, strict=True)
    )
    return Offer(
        scheme,
        tuple(reads.values()),
        writes,
        full=placed.full,
        reduces=placed.fit.role == "reduces",
    )


def _met(
    store: Access,
    layout: Layout | None,
    nest: LoopNest,
    touched: NestAccesses,
    placed: Placed,
    buffers: Mapping[str, Buffer],
) -> tuple[str, ...]:
    """Temporaries of the same size that the nest reads, element by element, at the very addresses where it writes.

    Only for ops that run once at every point: an outer op's elements are met by all points of a row, a projected op's
    wherever it is computed again.
    """
    sizes = tuple(int(s) for s in nest.sizes)
    if placed.fit.role != "full" or layout is None or not is_dense(sizes, store.coefficients or ()):
        return ()
    layouts: dict[str, set[Layout | None]] = {}
    for access, found in zip(touched.loads, placed.loads, strict=True):
        layouts.setdefault(access.buffer, set()).add(found)
    written = buffers[store.buffer]
    return tuple(
        name
        for name, found in layouts.items()
        if found == {layout}
        and name != store.buffer
        and written.kind == buffers[name].kind == "temporary"
        and _filled(written, prod(sizes)) == _filled(buffers[name], prod(sizes)) != 0
    )


def _filled(buffer: Buffer, elements: int) -> int:
    """The buffer's bytes when so many elements fill it, else 0."""
    size = elements * ITEM_BYTES.get(buffer.dtype, 8)
    return size if size == buffer_bytes(buffer) else 0


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
