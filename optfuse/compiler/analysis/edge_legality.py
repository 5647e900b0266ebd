"""Which walks allow two dependent ops to share a kernel, and the reason where one does not."""

from __future__ import annotations

from optfuse.compiler.analysis.access import NestAccesses
from optfuse.compiler.analysis.dependence import Dependence
from optfuse.compiler.analysis.mixed_radix import point_count
from optfuse.compiler.analysis.placement import Placed, Placements

#: Above this many inner points a kernel may loop over r more than once, and a store could come before a later read.
ONE_PASS_POINTS = 4096


def shared_walks(
    dependence: Dependence, placements: Placements, touched: tuple[NestAccesses | None, ...]
) -> tuple[int, ...]:
    """The walks in which src and dst access the buffer at the same points, so that they may share a kernel."""
    if dependence.buffer is None:
        return ()
    src, dst = dependence.src, dependence.dst
    return tuple(
        w
        for w in sorted(placements.places[src].keys() & placements.places[dst].keys())
        if why_apart(dependence, w, placements, touched) is None
    )


def why_apart(
    dependence: Dependence, walk: int, placements: Placements, touched: tuple[NestAccesses | None, ...]
) -> str | None:
    """Why the two ends of a dependence cannot share a kernel in a walk; None when they can."""
    src, dst = placements.places[dependence.src].get(walk), placements.places[dependence.dst].get(walk)
    if src is None or dst is None:
        return "scheme: one of the two cannot run in it"
    before, after = touched[dependence.src], touched[dependence.dst]
    assert before is not None, "only nests are placed"
    assert after is not None, "only nests are placed"
    buffer = str(dependence.buffer)
    written = _layouts(before, src, buffer, of="stores" if dependence.value else "loads")
    used = _layouts(after, dst, buffer, of="loads" if dependence.value else "stores")
    if any(access.terms > 1 for access in after.loads):
        return f"product: {buffer} is an operand of a product of matrices, which takes its operands from memory"
    if None in written or None in used:
        return f"index: {buffer} is gathered, padded or windowed, so its elements are not met one by one"
    if len(written | used) != 1:
        return f"index: {buffer} is not read at the point where it is computed"
    if not dependence.value:
        if point_count(placements.walks[walk].r) > ONE_PASS_POINTS:
            return f"mutation: {buffer} could be overwritten before a later pass reads it"
        together = {"full": ("full", "reduces"), "outer": ("outer",), "reduces": ("outer",)}
        if src.fit.role not in together[dst.fit.role]:
            return f"mutation: {buffer} is read and overwritten by different parts of the kernel"
    return None


def _layouts(touched: NestAccesses, placed: Placed, buffer: str, *, of: str) -> set[tuple[int, ...] | None]:
    accesses, layouts = (touched.loads, placed.loads) if of == "loads" else (touched.stores, placed.stores)
    return {layout for access, layout in zip(accesses, layouts, strict=True) if access.buffer == buffer}
