"""The allocator's peak while a schedule runs, and the choice between one arena and separate buffers.

Temporaries lie in one *arena*, allocated for the whole call beside outputs and library results; its size is a maximum
over the call that rarely falls together with theirs. Or every buffer is allocated *apart*, from its first to its last
use, in the memory of a dying buffer of the same size where its kernel is the last to use that one; the peak is then the
maximum of the sum. An arena costs the host less, and programs that run one after the other can share it, so it is kept
unless separate buffers lower the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.memory.arena import Span
from optfuse.solver.memory.launch_order import in_launches
from optfuse.solver.memory.order_problem import lifetimes, order_problem, running_sum
from optfuse.solver.memory.reuse import inplace_pairs, join_spans, matched_pairs

#: Whether a buffer's memory (the first) may be another one's, as far as their sizes go.
Fits = Callable[[int, int], bool]

#: Bytes that a caching allocator rounds every allocation up to.
ROUNDING = 512
#: An arena that needs less than this share more, and fewer than so many bytes, is kept.
TOLERANCE, TOLERATED_BYTES = 1 / 64, 8 << 20


@dataclass(frozen=True, slots=True)
class Footprint:
    """The allocator's peak bytes, inputs and constants included, and how temporaries are held.

    ``arena``: they lie in one arena. ``heirs``: otherwise, each buffer that reuses another's memory, to that other.
    """

    peak_bytes: int
    arena: bool
    heirs: Mapping[int, int] = field(default_factory=dict)


def footprint(instance: Instance, solution: Solution, lent: Collection[int] = ()) -> Footprint:
    """The arena, or every buffer apart where this lowers the peak by more than is tolerated.

    ``lent``: buffers that a library allocates (``fixed``) and does not keep, so that others may reuse their memory.
    """
    arena, apart = arena_footprint(instance, solution), apart_footprint(instance, solution, lent)
    tolerated = min(TOLERANCE * arena.peak_bytes, TOLERATED_BYTES)
    return apart if apart.peak_bytes < arena.peak_bytes - tolerated else arena


def arena_footprint(instance: Instance, solution: Solution) -> Footprint:
    """The footprint with temporaries in one arena, where the solution places them."""
    kept, spans = _spans(instance, solution)
    outside = [span for span in spans if not _placed(instance, span.buffer)]
    length = len(solution.kernels)
    arena = [Span(-1, solution.arena_bytes, 0, max(0, length - 1))] if solution.arena_bytes else []
    return Footprint(_peak([*outside, *arena], kept, length), arena=True)


def apart_footprint(
    instance: Instance, solution: Solution, lent: Collection[int] = (), fits: Fits | None = None
) -> Footprint:
    """The footprint with separate buffers, as many as possible in the memory of another, where that one ``fits``."""
    joined, heirs, kept = separate_spans(instance, solution, lent, fits)
    return Footprint(_peak(joined, kept, len(solution.kernels)), arena=False, heirs=heirs)


def live_bytes_apart(instance: Instance, solution: Solution, lent: Collection[int] = ()) -> list[int]:
    """By kernel in order, the bytes that are live while it runs, with separate buffers as in ``apart_footprint``."""
    joined, _, kept = separate_spans(instance, solution, lent)
    return _live(joined, kept, len(solution.kernels))


def separate_spans(
    instance: Instance, solution: Solution, lent: Collection[int] = (), fits: Fits | None = None
) -> tuple[tuple[Span, ...], dict[int, int], int]:
    """Lifetimes of separate buffers, those joined that share memory; by buffer the one it reuses; bytes always live."""
    kept, spans = _spans(instance, solution)
    pairs = [
        (old, new)
        for old, new in inplace_pairs(instance, solution.kernels, spans, solution.launches)
        if _placed(instance, spans[old].buffer) or spans[old].buffer in lent
        if fits is None or fits(spans[old].buffer, spans[new].buffer)
    ]
    heirs = matched_pairs(pairs)
    reused = {spans[new].buffer: spans[old].buffer for old, new in heirs.items()}
    return join_spans(spans, heirs).spans, reused, kept


def _placed(instance: Instance, number: int) -> bool:
    buffer = instance.buffers[number]
    return buffer.kind == "temporary" and not buffer.output and not buffer.fixed


def _spans(instance: Instance, solution: Solution) -> tuple[int, list[Span]]:
    """Bytes that are live throughout, and the spans of all other buffers."""
    problem = order_problem(instance, solution.kernels)
    timed, steps = in_launches(problem, range(len(solution.kernels)), solution.launches)
    ends = lifetimes(timed, steps)
    spans = [Span(s.buffer, s.bytes, *end) for s, end in zip(timed.storages, ends, strict=True)]
    return problem.base, spans


def _peak(spans: Iterable[Span], base: int, length: int) -> int:
    return max(_live(spans, base, length))


def _live(spans: Iterable[Span], base: int, length: int) -> list[int]:
    rounded = ((-(-span.bytes // ROUNDING) * ROUNDING, span.first, span.last) for span in spans)
    return running_sum(rounded, base, length)
