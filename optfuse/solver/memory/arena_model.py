"""Offsets by CP-SAT: a packing of rectangles, each as long as a buffer's lifetime and as high as its bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortools.sat.python import cp_model

from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.control.native import configured, run
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import ALIGNMENT, Packing, Span, aligned, arena_floor

#: With more buffers the model takes longer to build and presolve than any limit that a user would set.
MAX_SPANS = 400


def improve_packing(
    spans: Sequence[Span], start: Packing, options: SolveOptions, deadline: float, clock: Clock = WALL
) -> Packing:
    """A packing into a smaller arena than ``start``'s, if one is found by the deadline, a time of ``clock``.

    Returns ``start`` itself when it is already as small as the live bytes, when there are more than ``MAX_SPANS``
    spans, or when there is no time.
    """
    floor = arena_floor(spans)
    if start.arena_bytes <= floor or len(spans) > MAX_SPANS or deadline - clock.now() < 0.05:
        return start
    unit = math.gcd(*(aligned(span.bytes) for span in spans)) or ALIGNMENT
    model = cp_model.CpModel()
    height = model.new_int_var(floor // unit, start.arena_bytes // unit, "height")
    offsets, times, places = [], [], []
    for span, hint in zip(spans, start.offsets, strict=True):
        size = aligned(span.bytes) // unit
        offset = model.new_int_var(0, start.arena_bytes // unit - size, f"offset_{span.buffer}")
        offsets.append(offset)
        if not size:
            continue
        model.add_hint(offset, hint // unit)
        model.add(offset + size <= height)
        times.append(model.new_fixed_size_interval_var(span.first, span.last - span.first + 1, f"time_{span.buffer}"))
        places.append(model.new_fixed_size_interval_var(offset, size, f"place_{span.buffer}"))
    model.add_no_overlap_2d(times, places)
    model.minimize(height)
    solver = configured(options, clock, deadline)
    status = run(solver, model, clock)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or solver.value(height) * unit >= start.arena_bytes:
        return start
    return Packing(tuple(solver.value(offset) * unit for offset in offsets), solver.value(height) * unit)
