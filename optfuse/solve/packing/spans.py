"""The arena of a schedule as a packing problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optfuse.problem.packing import Lifetime
from optfuse.solve.arena import Packing, Span, aligned
from optfuse.solve.options import SolveOptions
from optfuse.solve.packing.layout import layout
from optfuse.solve.packing.pack import least_height


def least_arena(
    spans: Sequence[Span], start: Packing, options: SolveOptions, deadline: float, stop: Callable[[], bool]
) -> Packing:
    """Offsets in a smaller arena than ``start``'s, or ``start``, at the deadline (``time.monotonic``) at the latest.

    Sizes are rounded up to the alignment, and offsets are multiples of their common divisor: all are aligned.
    ``stop`` is asked now and then; True ends the search.
    """
    solid = sorted((n for n, span in enumerate(spans) if span.bytes), key=lambda n: (spans[n].first, spans[n].last))
    problem = layout([Lifetime(str(n), spans[n].first, spans[n].last + 1, aligned(spans[n].bytes)) for n in solid])
    found = least_height(problem, options.workers, options.seed, deadline, stop)
    if found.height * problem.unit >= start.arena_bytes:
        return start
    offsets = [0] * len(spans)
    for number, offset in zip(solid, found.offsets, strict=True):
        offsets[number] = offset * problem.unit
    return Packing(tuple(offsets), found.height * problem.unit)
