"""Check a solution's memory plan: its peak and the placement of its buffers.

The peak is the largest sum of live bytes over the launches in order, each of one kernel or several. Inputs and
constants are live throughout; a donated input until its last use; any other buffer that is written, from the launch
that first writes it to the one that last uses it, that launch included; outputs to the end. A
buffer that aliases an input counts as that input, once.

The arena holds the written temporaries that end within the call: no outputs, no aliases, no ``fixed`` buffers. Those
that are live together do not overlap, but for one that is written in place of another (see ``Write``). The peak
counts both, as if each had memory of its own: reuse in place makes the arena smaller than the live bytes, not the peak.
"""

from __future__ import annotations

from collections.abc import Iterator

from optfuse.problem.checker_case import Case, Violation

ALIGNMENT = 64


def check_memory(case: Case) -> Iterator[Violation]:
    """The violations of the memory plan."""
    lifetimes = _lifetimes(case)
    yield from _peak(case, lifetimes)
    yield from _placements(case, lifetimes)


def _lifetimes(case: Case) -> dict[int, tuple[int, int]]:
    """First and last launch during which each storage is live; aliases are counted with their input."""
    last_launch = max(case.step, default=-1)
    begins: dict[int, int] = {}
    last_use: dict[int, int] = {}
    ends: set[int] = set()
    alias = [number if buffer.alias is None else buffer.alias for number, buffer in enumerate(case.instance.buffers)]
    for position, kernel in enumerate(case.solution.kernels):
        for number in case.taken[position].union(kernel.writes):
            begins.setdefault(alias[number], case.step[position])
            last_use[alias[number]] = case.step[position]
    for number, buffer in enumerate(case.instance.buffers):
        if buffer.output:
            ends.add(alias[number])
    lifetimes: dict[int, tuple[int, int]] = {}
    for number, buffer in enumerate(case.instance.buffers):
        if buffer.alias is not None:
            continue
        if buffer.kind != "temporary":
            throughout = not buffer.donated or number in ends
            lifetimes[number] = (0, last_launch if throughout else last_use.get(number, 0))
        elif number in begins:
            lifetimes[number] = (begins[number], last_launch if number in ends else last_use[number])
    return lifetimes


def _peak(case: Case, lifetimes: dict[int, tuple[int, int]]) -> Iterator[Violation]:
    change = [0] * (max(case.step, default=-1) + 3)
    for number, (first, last) in lifetimes.items():
        change[first] += case.instance.buffers[number].bytes
        change[max(last, 0) + 1] -= case.instance.buffers[number].bytes
    live = peak = 0
    for step in change:
        live += step
        peak = max(peak, live)
    if peak != case.solution.peak_bytes:
        yield Violation("peak", f"the peak is {peak} bytes, but the solution says {case.solution.peak_bytes}")
    cap = case.instance.rules.peak_memory
    if cap is not None and peak > cap:
        yield Violation("peak_cap", f"the peak is {peak} bytes, above the cap of {cap}")


def _placements(case: Case, lifetimes: dict[int, tuple[int, int]]) -> Iterator[Violation]:
    buffers = case.instance.buffers
    belong = {
        number
        for number in lifetimes
        if buffers[number].kind == "temporary" and not buffers[number].output and not buffers[number].fixed
    }
    offsets: dict[int, int] = {}
    for placement in case.solution.placements:
        buffer = buffers[placement.buffer]
        if placement.buffer in offsets or placement.buffer not in belong:
            yield Violation("placement", f"buffer {buffer.name!r} is placed twice, or does not belong in the arena")
        offsets[placement.buffer] = placement.offset
        if placement.offset % ALIGNMENT:
            yield Violation("alignment", f"buffer {buffer.name!r} lies at {placement.offset}, no multiple of 64")
        if placement.offset < 0 or placement.offset + buffer.bytes > case.solution.arena_bytes:
            yield Violation(
                "arena",
                f"buffer {buffer.name!r} at {placement.offset} with {buffer.bytes} bytes is not inside the arena of "
                f"{case.solution.arena_bytes}",
            )
    end = max((offset + buffers[number].bytes for number, offset in offsets.items()), default=0)
    if case.solution.arena_bytes > end + ALIGNMENT:
        yield Violation("arena", f"the arena has {case.solution.arena_bytes} bytes, and its last buffer ends at {end}")
    for number in sorted(belong - offsets.keys()):
        yield Violation("placement", f"buffer {buffers[number].name!r} has no place in the arena")
    placed = sorted((lifetimes[number][0], number) for number in offsets if number in belong)
    live: list[int] = []
    for first, number in placed:
        live = [other for other in live if lifetimes[other][1] >= first and buffers[other].bytes]
        start, end = offsets[number], offsets[number] + buffers[number].bytes
        for other in live:
            if start < offsets[other] + buffers[other].bytes and offsets[other] < end and start < end:
                why = "they do not start together"
                if offsets[other] == start:
                    why = _not_in_place(case, lifetimes, other, number)
                if why:
                    yield Violation(
                        "overlap",
                        f"buffers {buffers[other].name!r} and {buffers[number].name!r} overlap in time and space, and "
                        f"the second does not take the first's place: {why}",
                    )
        live.append(number)


def _not_in_place(case: Case, lifetimes: dict[int, tuple[int, int]], old: int, new: int) -> str:
    """Why ``new`` may not be written in place of ``old``; "" when it may."""
    if lifetimes[old][1] != lifetimes[new][0] or lifetimes[old][0] == lifetimes[new][0]:
        return "the first does not end in the kernel where the second begins"
    at, *others = _users(case, lifetimes[new][0], old, new)
    if others:
        return f"{case.label(others[0])} is in the same launch"
    if case.instance.buffers[old].bytes != case.instance.buffers[new].bytes:
        return "they differ in size"
    offers = case.offers[at]
    if any(write.buffer == old for offer in offers.values() for write in offer.writes):
        return f"{case.label(at)} computes both"
    writes = [write for offer in offers.values() for write in offer.writes if write.buffer == new]
    if new not in case.solution.kernels[at].writes or len(writes) != 1 or not writes[0].place:
        return f"{case.label(at)} does not write the second once at a place"
    for op, offer in offers.items():
        places = {read.place for read in offer.reads if read.buffer == old}
        unknown = not places and any(edge.buffer == old for edge in case.into[op])
        if unknown or not places <= {writes[0].place}:
            return f"{case.names((op,))} reads the first elsewhere"
    return ""


def _users(case: Case, step: int, old: int, new: int) -> list[int]:
    """The kernels of a launch that use either of two buffers."""
    return [
        position
        for position, kernel in enumerate(case.solution.kernels)
        if case.step[position] == step and case.taken[position].union(kernel.writes) & {old, new}
    ]
