"""What the allocator will have handed out at most while a schedule runs, and the way to hold memory that keeps it low.

Temporaries lie in one *arena*, which is there for the whole call beside what is allocated by itself: outputs, and
results that libraries allocate. Its size is a maximum over the call, theirs another, and the two rarely fall together.
Or every buffer lives *apart*: by itself from its first to its last use, and where the kernel that makes it is the last
to use another of the same size, in that one's place. Then the peak is the maximum of the sum. An arena costs the host
less, and programs that run one after the other can share it; so it is kept where it takes as little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.memory.arena import Span
from optfuse.solver.memory.order_problem import lifetimes, order_problem
from optfuse.solver.memory.reuse import inplace_pairs, matched_pairs

#: Bytes that a caching allocator rounds every allocation up to.
ROUNDING = 512
#: An arena that needs less than this share more is kept.
TOLERANCE = 1 / 64


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that the allocator has handed out at most, inputs and constants included, and how they are held.

    ``heirs``: each buffer that takes over another's memory, to that other. ``arena``: temporaries lie in one.
    """

    peak_bytes: int
    arena: bool
    heirs: Mapping[int, int] = field(default_factory=dict)


def footprint(instance: Instance, solution: Solution, lent: Collection[int] = ()) -> Footprint:
    """The arena, or every buffer apart where this lowers the peak by more than ``TOLERANCE``.

    ``lent``: buffers that a library allocates (``fixed``) and that are nobody else's, so that others may take over
    their memory.
    """
    arena, apart = arena_footprint(instance, solution), apart_footprint(instance, solution, lent)
    return apart if apart.peak_bytes < (1 - TOLERANCE) * arena.peak_bytes else arena


def arena_footprint(instance: Instance, solution: Solution) -> Footprint:
    """Temporaries where the solution places them."""
    kept, spans = _spans(instance, solution)
    outside = [span for span in spans if not _placed(instance, span.buffer)]
    length = len(solution.kernels)
    arena = [Span(-1, solution.arena_bytes, 0, max(0, length - 1))] if solution.arena_bytes else []
    return Footprint(kept + _peak([*outside, *arena], length), arena=True)


def apart_footprint(instance: Instance, solution: Solution, lent: Collection[int] = ()) -> Footprint:
    """Every buffer by itself, as many as can be in the place of another."""
    kept, spans = _spans(instance, solution)
    pairs = [
        (old, new)
        for old, new in inplace_pairs(instance, solution.kernels, spans)
        if _placed(instance, spans[old].buffer) or spans[old].buffer in lent
    ]
    heirs = matched_pairs(pairs)
    joined: list[Span] = []
    for head in sorted(set(range(len(spans))) - set(heirs.values())):
        tail = head
        while tail in heirs:
            tail = heirs[tail]
        joined.append(Span(spans[head].buffer, spans[head].bytes, spans[head].first, spans[tail].last))
    taken = {spans[new].buffer: spans[old].buffer for old, new in heirs.items()}
    return Footprint(kept + _peak(joined, len(solution.kernels)), arena=False, heirs=taken)


def _placed(instance: Instance, number: int) -> bool:
    buffer = instance.buffers[number]
    return buffer.kind == "temporary" and not buffer.output and not buffer.fixed


def _spans(instance: Instance, solution: Solution) -> tuple[int, list[Span]]:
    """Bytes that are there throughout, and all else from the first to the last kernel that needs it."""
    problem = order_problem(instance, solution.kernels)
    ends = lifetimes(problem, range(len(solution.kernels)))
    spans = [Span(s.buffer, s.bytes, *end) for s, end in zip(problem.storages, ends, strict=True)]
    return problem.base, spans


def _peak(spans: Iterable[Span], length: int) -> int:
    change = [0] * (length + 2)
    for span in spans:
        size = -(-span.bytes // ROUNDING) * ROUNDING
        change[span.first] += size
        change[max(span.last, 0) + 1] -= size
    live = peak = 0
    for step in change:
        live += step
        peak = max(peak, live)
    return peak
