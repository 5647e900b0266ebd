"""Pack buffers into a given capacity, or into the least that can be found, and say what was proved."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from optfuse.errors import InfeasibleError, InvalidOptionError, InvalidPackingError
from optfuse.lab.packing.first_fit import best_first_fit
from optfuse.lab.packing.layout import Layout, layout
from optfuse.problem.packing import LARGEST, Lifetime, check_packing
from optfuse.solver.control.options import SolveOptions

#: Without a capacity: the share of the time spent on the lower bound itself before capacities between are tried.
FLOOR_SHARE = 0.5
BETWEEN_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class PackResult:
    """Offsets and what is known of them. Sizes are bytes.

    Attributes:
        status: OPTIMAL when ``height == bound``: no smaller memory holds the buffers. FEASIBLE otherwise.
        offsets: One a buffer, in the order given.
        height: The end of the highest buffer.
        capacity: What was asked for, if anything.
        bound: No packing is lower: the largest sum of sizes live at once, or better.
        method: What found it: "first_fit", "tree", "cpsat", "windows".
        nodes: Choices that the tree search tried.
        wall_s: Seconds.
        given_up: What was left out of the search, and the way out; empty when nothing was.
    """

    status: Literal["OPTIMAL", "FEASIBLE"]
    offsets: tuple[int, ...]
    height: int
    capacity: int | None
    bound: int
    method: str
    nodes: int
    wall_s: float
    given_up: tuple[str, ...] = ()


def pack(
    buffers: Sequence[Lifetime],
    capacity: int | None = None,
    *,
    time_limit: float = 60.0,
    workers: int | None = None,
    seed: int = 0,
) -> PackResult:
    """Give each buffer an offset so that none overlap in time and memory. The answer is checked before it is returned.

    Args:
        buffers: Lifetimes, sizes and alignments.
        capacity: Bytes to stay within; None: the least that can be found.
        time_limit: Seconds.
        workers: Threads; None: one a core.
        seed: Of the searches.

    Raises:
        InfeasibleError: When no packing within ``capacity`` was found; the message says whether there can be one.
        InvalidOptionError: When an argument is out of range.
        InvalidPackingError: When the buffers together are beyond 2**56 bytes.
    """
    start = time.monotonic()
    workers = (os.cpu_count() or 1) if workers is None else workers
    _check_options(capacity, time_limit, workers, seed)
    _check_sum(buffers)
    # By time: the tree search looks at fewer buffers at a step.
    by_time = sorted(range(len(buffers)), key=lambda number: (buffers[number].lower, buffers[number].upper))
    solid = [number for number in by_time if buffers[number].size]
    if not solid:
        return PackResult("OPTIMAL", (0,) * len(buffers), 0, capacity, 0, "first_fit", 0, time.monotonic() - start)
    problem = layout([buffers[number] for number in solid])
    deadline = start + time_limit
    if capacity is None:
        found = least_height(problem, workers, seed, deadline)
    else:
        found = _within(problem, capacity, workers, seed, deadline)
    offsets = [0] * len(buffers)
    for number, offset in zip(solid, found.offsets, strict=True):
        offsets[number] = offset * problem.unit
    wrong = check_packing(buffers, offsets, capacity)
    if wrong:
        raise AssertionError(f"the {found.method} search returned an invalid packing: {wrong[0].message}")
    height, bound = found.height * problem.unit, found.bound * problem.unit
    return PackResult(
        "OPTIMAL" if height == bound else "FEASIBLE",
        tuple(offsets),
        height,
        capacity,
        bound,
        found.method,
        found.nodes,
        time.monotonic() - start,
        found.given_up,
    )


@dataclass(frozen=True, slots=True)
class Heights:
    """A packing in units, its height, and a lower bound on any packing's height."""

    offsets: tuple[int, ...]
    height: int
    bound: int
    method: str
    nodes: int = 0
    given_up: tuple[str, ...] = ()


def least_height(
    problem: Layout, workers: int, seed: int, deadline: float, stop: Callable[[], bool] = lambda: False
) -> Heights:
    """The lowest packing found by the deadline (``time.monotonic``), or until ``stop``, asked now and then, says so.

    First fit gives one and the largest load a bound. The bound itself is tried first; then heights between it and the
    best packing, halving what is left.
    """
    # ortools takes most of a second to import: first fit does without.
    offsets = best_first_fit(problem, deadline, stop)
    best = Heights(offsets, _height(problem, offsets), int(problem.loads.max()), "first_fit")
    if best.height > best.bound and problem.searchable and time.monotonic() < deadline:
        from optfuse.lab.packing.fitting import fit, left_out

        tried = best.bound - 1
        share = FLOOR_SHARE
        target = best.bound
        while target < best.height and (left := deadline - time.monotonic()) > 0 and not stop():
            until = deadline if best.height - target == 1 and share != FLOOR_SHARE else deadline - (1 - share) * left
            found = fit(problem, target, workers, seed, until, stop)
            bound, nodes = best.bound, best.nodes + found.nodes
            if found.outcome == "packed":
                best = Heights(found.offsets, _height(problem, found.offsets), bound, found.method, nodes)
            else:
                tried = target
                bound = max(bound, target + 1) if found.outcome == "infeasible" else bound
                best = Heights(best.offsets, best.height, bound, best.method, nodes)
            share = BETWEEN_SHARE
            target = max(best.bound, (tried + best.height) // 2, tried + 1)
        best = replace(best, given_up=left_out())
    return best


def _within(problem: Layout, capacity_bytes: int, workers: int, seed: int, deadline: float) -> Heights:
    """A packing within a capacity.

    Raises:
        InfeasibleError: When none was found.
    """
    capacity = capacity_bytes // problem.unit
    bound = int(problem.loads.max())
    offsets = best_first_fit(problem, deadline)
    height = _height(problem, offsets)
    if height <= capacity:
        return Heights(offsets, height, bound, "first_fit")
    if bound > capacity:
        raise InfeasibleError(
            f"no packing within {capacity_bytes} bytes exists: {bound * problem.unit} bytes are live at once; raise "
            f"the capacity (first fit needs {height * problem.unit})"
        )
    from optfuse.lab.packing.fitting import fit, left_out

    found = fit(problem, capacity, workers, seed, deadline)
    if found.outcome == "infeasible":
        raise InfeasibleError(
            f"no packing within {capacity_bytes} bytes exists: proven by search; raise the capacity (first fit needs "
            f"{height * problem.unit})"
        )
    if found.outcome == "stopped":
        raise InfeasibleError(
            f"no packing within {capacity_bytes} bytes was found in time, and none was ruled out; raise the time limit "
            f"or the capacity (first fit needs {height * problem.unit})" + "".join(f"; {line}" for line in left_out())
        )
    return Heights(found.offsets, _height(problem, found.offsets), bound, found.method, found.nodes, left_out())


def _height(problem: Layout, offsets: Sequence[int]) -> int:
    return max(offset + size for offset, size in zip(offsets, problem.sizes.tolist(), strict=True))


def _check_options(capacity: int | None, time_limit: float, workers: int, seed: int) -> None:
    if capacity is not None and (not _is_whole(capacity) or capacity < 0):
        raise InvalidOptionError(f"capacity must be a whole number of bytes of at least 0, not {capacity!r}")
    # The options of a solve have the same ranges, and the same messages.
    SolveOptions(time_limit=time_limit, workers=workers, seed=seed)


def _check_sum(buffers: Sequence[Lifetime]) -> None:
    """Refuse what could reach offsets that 64 bits do not hold."""
    total = sum(buffer.size + buffer.alignment - 1 for buffer in buffers)
    if total > LARGEST:
        raise InvalidPackingError(
            f"the buffers take {total} bytes one after another, beyond 2**56; state sizes in larger units"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
