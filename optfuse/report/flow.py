"""The data flow between the kernels of a solution: bytes that each kernel reads of another's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.order_problem import precedences


@dataclass(frozen=True, slots=True)
class Arrow:
    """Kernel ``dst`` reads ``bytes`` of ``buffers`` that ``src`` writes; without buffers, it must only run later."""

    src: int
    dst: int
    bytes: int
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """The arrows between kernels, which are numbered in the order they run.

    ``inputs[k]`` are the bytes of inputs and constants that kernel k reads. With its arrows they add up to the bytes
    read by ``kernel_price``. ``outputs[k]`` are the bytes of results that it writes.
    """

    arrows: tuple[Arrow, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def flow(instance: Instance, solution: Solution) -> Flow:
    """Return the arrows from the kernel that writes each value to those that read it."""
    kernels = solution.kernels
    writers = _writers(kernels)
    found: dict[tuple[int, int], dict[int, int]] = {}
    inputs: list[int] = []
    for number, kernel in enumerate(kernels):
        outside = 0
        for (buffer, source), size in _reads(instance, kernel, number, writers).items():
            if source is None:
                outside += size
            else:
                mine = found.setdefault((source, number), {})
                mine[buffer] = mine.get(buffer, 0) + size
        inputs.append(outside)
    for pair in precedences(instance, kernels):
        found.setdefault(pair, {})
    arrows = (Arrow(src, dst, sum(read.values()), tuple(sorted(read))) for (src, dst), read in sorted(found.items()))
    return Flow(tuple(arrows), tuple(inputs), tuple(_results(instance, kernel) for kernel in kernels))


def _writers(kernels: Sequence[Kernel]) -> dict[tuple[int, int], list[int]]:
    """The kernels that compute an op and store one of its buffers, by (op, buffer)."""
    writers: dict[tuple[int, int], list[int]] = {}
    for number, kernel in enumerate(kernels):
        for op in kernel.ops:
            for buffer in kernel.writes:
                writers.setdefault((op, buffer), []).append(number)
    return writers


def _reads(
    instance: Instance, kernel: Kernel, number: int, writers: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int | None], int]:
    """Bytes by (buffer, kernel that wrote it or None), each footprint once."""
    index = topology(instance)
    inside = set(kernel.ops)
    sizes: dict[tuple[int, int], int] = {}
    source_of: dict[tuple[int, int], int | None] = {}
    for op in kernel.ops:
        made = {buffer: source for source, buffer in index.sources[op] if buffer is not None}
        for read in index.offers[op][kernel.scheme].reads:
            source = made.get(read.buffer)
            if source in inside:
                continue
            key = (read.buffer, read.footprint)
            sizes[key] = max(sizes.get(key, 0), read.bytes)
            found = writers.get((source, read.buffer), ()) if source is not None else ()
            # If several kernels write a value, it is read from the first one.
            earlier = [writer for writer in found if writer != number]
            source_of[key] = earlier[0] if earlier else None
    total: dict[tuple[int, int | None], int] = {}
    for key, size in sizes.items():
        place = (key[0], source_of[key])
        total[place] = total.get(place, 0) + size
    return total


def _results(instance: Instance, kernel: Kernel) -> int:
    """Bytes that a kernel writes of outputs, and of inputs that are changed in place."""
    offers = topology(instance).offers
    kept = {b for b in kernel.writes if instance.buffers[b].output or instance.buffers[b].kind != "temporary"}
    return sum(write.bytes for op in kernel.ops for write in offers[op][kernel.scheme].writes if write.buffer in kept)
