"""In-place reuse: a buffer that a kernel writes takes the memory of one that the kernel is the last to read.

Such pairs join to chains, each with one span in the arena. The pairs of a kernel are a maximum matching, since the
buffers of a pair are of equal size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel
from optfuse.solver.control.clock import WALL, Clock
from optfuse.solver.memory.arena import Packing, Span, arena_floor, pack
from optfuse.solver.memory.launch_order import all_launches


@dataclass(frozen=True, slots=True)
class Cells:
    """Spans joined where buffers follow each other in place. ``cell[i]`` is the joined span that holds span ``i``."""

    spans: tuple[Span, ...]
    cell: tuple[int, ...]

    def apart(self, packing: Packing) -> Packing:
        """A packing of the joined spans as one of the single spans."""
        return Packing(tuple(packing.offsets[k] for k in self.cell), packing.arena_bytes)


def arena_cells(
    instance: Instance, kernels: Sequence[Kernel], spans: Sequence[Span], launches: Sequence[Sequence[int]] = ()
) -> tuple[Cells, ...]:
    """The spans of kernels in order with as much in-place reuse as possible, then (if there is any) without.

    The live bytes of the first are a lower bound on every arena. ``launches``: positions of kernels that share one.
    """
    none = Cells(tuple(spans), tuple(range(len(spans))))
    heirs = matched_pairs(inplace_pairs(instance, kernels, spans, launches))
    return (join_spans(spans, heirs), none) if heirs else (none,)


def pack_cells(choices: Sequence[Cells], deadline: float | None = None, clock: Clock = WALL) -> tuple[Cells, Packing]:
    """The choice of ``arena_cells`` that packs smallest (the first among equals), and the packing of its spans.

    ``deadline`` is a time of ``clock``.
    """
    first, *others = choices
    best = first, pack(first.spans, deadline, clock)
    for cells in others:
        if best[1].arena_bytes <= arena_floor(first.spans):
            break
        best = min(best, (cells, pack(cells.spans, deadline, clock)), key=lambda found: found[1].arena_bytes)
    return best


def inplace_pairs(
    instance: Instance, kernels: Sequence[Kernel], spans: Sequence[Span], launches: Sequence[Sequence[int]] = ()
) -> list[tuple[int, int]]:
    """All pairs (dying span, born span), as positions in ``spans``, in which the second may take the first's memory.

    ``kernels`` are in the order of the spans' lifetimes, which count launches: ``launches`` has the positions of
    kernels that share one. Of these one alone uses the two buffers.
    """
    dying: dict[int, list[int]] = {}
    born: dict[int, list[int]] = {}
    for position, span in enumerate(spans):
        if span.bytes:
            born.setdefault(span.first, []).append(position)
            if span.first < span.last:
                dying.setdefault(span.last, []).append(position)
    pairs: list[tuple[int, int]] = []
    for step, at in enumerate(all_launches(len(kernels), launches)):
        if step not in dying or step not in born:
            continue
        users = Counter(buffer for k in at for buffer in _used(instance, kernels[k])) if len(at) > 1 else Counter()
        for k in at:
            read, written = _places(instance, kernels[k])
            for old in dying[step]:
                place = read.get(spans[old].buffer, 0)
                for new in born[step] if place else ():
                    fits = place == written.get(spans[new].buffer) and spans[old].bytes == spans[new].bytes
                    if fits and users[spans[old].buffer] <= 1 and users[spans[new].buffer] <= 1:
                        pairs.append((old, new))
    return pairs


def _used(instance: Instance, kernel: Kernel) -> set[int]:
    """The buffers that a kernel may read or writes."""
    index = topology(instance)
    used = set(kernel.writes)
    for op in kernel.ops:
        used.update(read.buffer for read in index.offers[op][kernel.scheme].reads)
        used.update(buffer for _, buffer in index.sources[op] if buffer is not None)
    return used


def _places(instance: Instance, kernel: Kernel) -> tuple[dict[int, int], dict[int, int]]:
    """The places at which a kernel reads buffers that it does not make, and at which it writes buffers.

    A buffer accessed at several places, or at an unknown one, is left out or 0.
    """
    index = topology(instance)
    found: dict[int, set[int]] = {}
    made: dict[int, list[int]] = {}
    for op in kernel.ops:
        offer = index.offers[op][kernel.scheme]
        for read in offer.reads:
            found.setdefault(read.buffer, set()).add(read.place)
        for buffer in {carried for _, carried in index.sources[op] if carried is not None}:
            if all(read.buffer != buffer for read in offer.reads):
                found.setdefault(buffer, set()).add(0)
        for write in offer.writes:
            made.setdefault(write.buffer, []).append(write.place)
    read = {buffer: max(places) for buffer, places in found.items() if len(places) == 1 and buffer not in made}
    written = {buffer: places[0] for buffer, places in made.items() if len(places) == 1 and buffer in kernel.writes}
    return read, written


def matched_pairs(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """A maximum matching of ``inplace_pairs``, by augmenting paths: {dying: born}."""
    options: dict[int, list[int]] = {}
    for dying, born in pairs:
        options.setdefault(born, []).append(dying)
    heirs: dict[int, int] = {}

    def settle(born: int, tried: set[int]) -> bool:
        for dying in options[born]:
            if dying not in tried:
                tried.add(dying)
                if dying not in heirs or settle(heirs[dying], tried):
                    heirs[dying] = born
                    return True
        return False

    for born in options:
        settle(born, set())
    return heirs


def join_spans(spans: Sequence[Span], heirs: Mapping[int, int]) -> Cells:
    """One span a chain of buffers that reuse each other's memory; all its buffers are of equal size."""
    joined: list[Span] = []
    cell = [0] * len(spans)
    for head in sorted(set(range(len(spans))) - set(heirs.values())):
        tail = head
        cell[tail] = len(joined)
        while tail in heirs:
            tail = heirs[tail]
            cell[tail] = len(joined)
        joined.append(Span(spans[head].buffer, spans[head].bytes, spans[head].first, spans[tail].last))
    return Cells(tuple(joined), tuple(cell))
