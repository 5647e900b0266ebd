"""The inner loop of the tree search, compiled: on so few numbers a step of numpy's takes fifty times as long.

All that changes lives in arrays, so a search may be left after any step and taken up again. What a choice changes is
written to a trail, and undone from it. None of this needs the interpreter's lock.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import config

Ints = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., object])

#: Larger than any offset, small enough to be added to one.
NEVER = 1 << 60

#: What ``advance`` returns.
STOPPED, PACKED, INFEASIBLE, NEEDS_ROOM = 0, 1, 2, 3

#: A frame is a part of the problem and how far its search has come. The part is the open buffers up to HIGH, listed
#: after node ENTRY. CHOSEN is the one placed now, or UNDECIDED, or ROOT; the others are lengths of stacks below it.
CHOSEN, ENTRY, HIGH, CHOICES, PARTS, TRAIL, PLACED = range(7)
FRAME_FIELDS = 7
UNDECIDED, ROOT = -1, -2

#: Places in ``Search.lengths``. DEPTH counts frames.
DEPTH, N_CHOICES, N_PARTS, N_TRAIL, N_PLACED = range(5)
STACKS = 5

#: Which array a row of the trail is about.
OF_LOWEST, OF_LEFT, OF_FLOORS = range(3)


class Facts(NamedTuple):
    """The constant part of a search. Buffers are numbered by their first section.

    ``members[member_rows[s]:member_rows[s + 1]]`` are the buffers of section ``s``; ``overlapping`` are, in the
    same way, the buffers live together with each buffer. ``pins`` are given offsets and ``twins`` earlier equal
    buffers, -1 for none.
    """

    first: Ints
    last: Ints
    sizes: Ints
    aligns: Ints
    pins: Ints
    twins: Ints
    member_rows: Ints
    members: Ints
    overlap_rows: Ints
    overlapping: Ints
    capacity: int


class Search(NamedTuple):
    """What changes.

    Attributes:
        lowest: The lowest offset that placed buffers leave to each; ``NEVER`` once it is placed itself.
        left: Units of the open buffers of each section.
        floors: The lowest offset of the open buffers of each section.
        after: Open buffers as a list in both directions, ``after`` and ``before``: buffer b stands at b + 1.
        before: See there. 0 and ``count + 1`` are the list's ends.
        frames: One row a part under search, the deepest last.
        choices: Rows (buffer, offset) to try, the best of the deepest frame last.
        parts: Rows (first buffer, last buffer, how many) to search, those of the deepest frame last.
        trail: Rows (which array, place, old value).
        placed: Buffers in the order in which they were placed.
        lengths: Of these stacks.
        offsets: Of the placed buffers.
        blame: How often each section was the one without room.
        rank: The place of each buffer among choices.
        stale: Sections whose floor may have risen; none between steps.
    """

    lowest: Ints
    left: Ints
    floors: Ints
    after: Ints
    before: Ints
    frames: Ints
    choices: Ints
    parts: Ints
    trail: Ints
    placed: Ints
    lengths: Ints
    offsets: Ints
    blame: Ints
    rank: Ints
    stale: npt.NDArray[np.bool_]


def _compiled(function: F) -> F:
    """The function compiled at its first call, and kept on disk for later processes.

    Beside this file, or in the user's cache; where neither can be written, in a folder that goes with the process.
    """
    try:
        return cast("F", numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:
        folder = tempfile.TemporaryDirectory(prefix="optfuse-")
        atexit.register(folder.cleanup)
        os.environ["NUMBA_CACHE_DIR"] = folder.name
        config.reload_config()
        return cast("F", numba.njit(nogil=True, cache=True)(function))


@_compiled
def advance(p: Facts, s: Search, by_offset: bool, steps: int) -> tuple[int, int]:
    """Go on for some steps, a part opened each: what came of it, and the steps taken.

    ``STOPPED`` when all are used up, ``NEEDS_ROOM`` when a stack has to grow before it can go on.
    """
    n = s.lengths
    count, sections = len(p.sizes), len(s.left)
    left = steps
    while left > 0:
        if n[N_TRAIL] + count + 2 * sections > len(s.trail) or n[N_CHOICES] + count > len(s.choices):
            return NEEDS_ROOM, steps - left
        frame = s.frames[n[DEPTH] - 1]
        if frame[CHOSEN] == UNDECIDED:
            if n[N_CHOICES] == frame[CHOICES]:
                n[DEPTH] -= 1
                if _undo(s):
                    return INFEASIBLE, steps - left
                continue
            _choose(p, s, frame)
        if n[N_PARTS] == frame[PARTS]:
            n[N_CHOICES] = frame[CHOICES]
            n[DEPTH] -= 1
            if n[DEPTH] == 0:
                return PACKED, steps - left
            continue
        left -= 1
        n[N_PARTS] -= 1
        low, high = s.parts[n[N_PARTS], 0], s.parts[n[N_PARTS], 1]
        opened = _has_room(p, s, low, high, frame[CHOSEN]) and _open(p, s, low, high, frame[CHOSEN], by_offset)
        if not opened and _undo(s):
            return INFEASIBLE, steps - left
    return STOPPED, steps


@_compiled
def _undo(s: Search) -> bool:
    """Take back what the deepest frame chose; True when that is the root, which chose nothing."""
    n = s.lengths
    frame = s.frames[n[DEPTH] - 1]
    if frame[CHOSEN] == ROOT:
        return True
    while n[N_TRAIL] > frame[TRAIL]:
        n[N_TRAIL] -= 1
        row = s.trail[n[N_TRAIL]]
        which, place, old = row[0], row[1], row[2]
        if which == OF_LOWEST:
            s.lowest[place] = old
        elif which == OF_LEFT:
            s.left[place] = old
        else:
            s.floors[place] = old
    while n[N_PLACED] > frame[PLACED]:
        n[N_PLACED] -= 1
        node = s.placed[n[N_PLACED]] + 1
        s.after[s.before[node]] = node
        s.before[s.after[node]] = node
    n[N_PARTS] = frame[PARTS]
    frame[CHOSEN] = UNDECIDED
    return False


@_compiled
def _note(s: Search, which: int, place: int, old: int) -> None:
    """Write to the trail what was there before."""
    row = s.trail[s.lengths[N_TRAIL]]
    row[0], row[1], row[2] = which, place, old
    s.lengths[N_TRAIL] += 1


@_compiled
def _choose(p: Facts, s: Search, frame: Ints) -> None:
    """Place the next choice of a part, and split what is left of it."""
    n = s.lengths
    n[N_CHOICES] -= 1
    buffer, offset = s.choices[n[N_CHOICES], 0], s.choices[n[N_CHOICES], 1]
    frame[CHOSEN] = buffer
    s.offsets[buffer] = offset
    start, end = p.first[buffer], p.last[buffer]
    top = offset + p.sizes[buffer]
    reach_start, reach_end = start, end
    for row in range(p.overlap_rows[buffer], p.overlap_rows[buffer + 1]):
        other = p.overlapping[row]
        old = int(s.lowest[other])
        new = NEVER if other == buffer else max(old, top)
        if old == NEVER or new == old:
            continue
        _note(s, OF_LOWEST, other, old)
        s.lowest[other] = new
        for section in range(p.first[other], p.last[other]):
            if s.floors[section] == old:
                s.stale[section] = True
        reach_start, reach_end = min(reach_start, p.first[other]), max(reach_end, p.last[other])
    for section in range(start, end):
        _note(s, OF_LEFT, section, int(s.left[section]))
        s.left[section] -= p.sizes[buffer]
    for section in range(reach_start, reach_end):
        if s.stale[section]:
            s.stale[section] = False
            floor = NEVER
            for row in range(p.member_rows[section], p.member_rows[section + 1]):
                floor = min(floor, s.lowest[p.members[row]])
            if floor != s.floors[section]:
                _note(s, OF_FLOORS, section, s.floors[section])
                s.floors[section] = floor
    node = buffer + 1
    s.after[s.before[node]] = s.after[node]
    s.before[s.after[node]] = s.before[node]
    s.placed[n[N_PLACED]] = buffer
    n[N_PLACED] += 1
    _split(p, s, frame[ENTRY], frame[HIGH])


@_compiled
def _split(p: Facts, s: Search, entry: int, high: int) -> None:
    """Stack the parts of some open buffers, in which nothing joins one to another: that of fewest last."""
    n = s.lengths
    base = n[N_PARTS]
    end = np.int64(-1)
    node = s.after[entry]
    while node <= high + 1:
        buffer = node - 1
        if p.first[buffer] >= end:
            s.parts[n[N_PARTS], 0] = buffer
            s.parts[n[N_PARTS], 2] = 0
            n[N_PARTS] += 1
        end = max(end, p.last[buffer])
        s.parts[n[N_PARTS] - 1, 1] = buffer
        s.parts[n[N_PARTS] - 1, 2] += 1
        node = s.after[node]
    for right in range(base + 1, n[N_PARTS]):
        place = right
        while place > base and s.parts[place - 1, 2] < s.parts[place, 2]:
            for field in range(3):
                kept = s.parts[place, field]
                s.parts[place, field] = s.parts[place - 1, field]
                s.parts[place - 1, field] = kept
            place -= 1


@_compiled
def _has_room(p: Facts, s: Search, low: int, high: int, latest: int) -> bool:
    """Whether every section of a part can take its open buffers; those that cannot are blamed."""
    floor = s.offsets[latest] if latest >= 0 else 0
    end = p.last[low]
    node = s.after[low + 1]
    while node <= high + 1:
        end = max(end, p.last[node - 1])
        node = s.after[node]
    room = True
    for section in range(p.first[low], end):
        if s.left[section] > 0 and max(s.floors[section], floor) + s.left[section] > p.capacity:
            s.blame[section] += 1
            room = False
    return room


@_compiled
def _open(p: Facts, s: Search, low: int, high: int, latest: int, by_offset: bool) -> bool:
    """Open a frame for a part, with its choices in order; False when a pinned buffer cannot get its offset any more."""
    n = s.lengths
    floor = s.offsets[latest] if latest >= 0 else 0
    least_top = NEVER
    late = False
    node = low + 1
    while node <= high + 1:
        buffer = node - 1
        align, pin = p.aligns[buffer], p.pins[buffer]
        at = -(-max(s.lowest[buffer], floor) // align) * align
        if pin >= 0:
            if at > pin:
                s.blame[p.first[buffer]] += 1
                late = True
            at = pin
        least_top = min(least_top, at + p.sizes[buffer])
        node = s.after[node]
    if late:
        return False
    base = n[N_CHOICES]
    node = low + 1
    while node <= high + 1:
        _offer(p, s, node - 1, floor, latest, least_top, base, by_offset)
        node = s.after[node]
    frame = s.frames[n[DEPTH]]
    frame[CHOSEN], frame[ENTRY], frame[HIGH] = UNDECIDED, s.before[low + 1], high
    frame[CHOICES], frame[PARTS] = base, n[N_PARTS]
    frame[TRAIL], frame[PLACED] = n[N_TRAIL], n[N_PLACED]
    n[DEPTH] += 1
    return True


@_compiled
def _offer(
    p: Facts, s: Search, buffer: int, floor: int, latest: int, least_top: int, base: int, by_offset: bool
) -> None:
    """Put a buffer among the choices of a part if it may come next, in its place: the best is last."""
    align, pin = p.aligns[buffer], p.pins[buffer]
    lowest = -(-s.lowest[buffer] // align) * align
    at = max(lowest, -(-floor // align) * align)
    if pin >= 0:
        at = pin
    elif lowest < floor:
        return
    if at >= least_top or at + p.sizes[buffer] > p.capacity:
        return
    if p.twins[buffer] >= 0 and s.lowest[p.twins[buffer]] != NEVER:
        return
    rank = s.rank[buffer]
    if latest >= 0 and at == floor and rank <= s.rank[latest]:
        return
    place = s.lengths[N_CHOICES]
    s.lengths[N_CHOICES] += 1
    while place > base:
        other, other_at = s.choices[place - 1, 0], s.choices[place - 1, 1]
        worse = s.rank[other] > rank
        if by_offset and other_at != at:
            worse = other_at > at
        if worse:
            break
        s.choices[place, 0], s.choices[place, 1] = other, other_at
        place -= 1
    s.choices[place, 0], s.choices[place, 1] = buffer, at


@_compiled
def begin(p: Facts, s: Search) -> None:
    """Bring everything to where nothing is placed, and the root's parts on their stack."""
    count = len(p.sizes)
    s.lengths[:] = 0
    s.lowest[:] = 0
    s.floors[:] = 0
    s.left[:] = 0
    s.blame[:] = 0
    for buffer in range(count):
        s.left[p.first[buffer] : p.last[buffer]] += p.sizes[buffer]
    for node in range(count + 2):
        s.after[node] = min(node + 1, count + 1)
        s.before[node] = max(node - 1, 0)
    root = s.frames[0]
    root[:] = 0
    root[CHOSEN], root[HIGH] = ROOT, count - 1
    s.lengths[DEPTH] = 1
    _split(p, s, 0, count - 1)
