"""Packing window by window: buffers live in a span of time are placed, then pinned while the next span is packed.

Long problems have several places where packing is hard. A search of the whole has to be lucky at all of them at once;
here each is settled in turn. Windows end where little is live across. One that cannot be packed beside what is pinned
is packed anew together with the one before it. Tree search is tried first in each window, then CP-SAT.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from optfuse.lab.packing.layout import Layout, Outcome, mirrored, window
from optfuse.lab.packing.restarts import search
from optfuse.lab.packing.sections import SectionModel

#: New buffers of one window.
LEAST, MOST = 35, 90
#: How many windows before it are packed anew together with one, attempt by attempt.
WIDTHS = (0, 1, 1, 2)
#: Effort in a window: choices of the tree search and deterministic time of CP-SAT.
NODES = 30_000
EFFORT = 0.02

#: How far a direction is thought to get that was not tried: the share of the windows.
UNTRIED = 0.5

Placed = dict[int, int]


def sweeps(
    problem: Layout, capacity: int, seed: int, deadline: float, stop: Callable[[], bool] = lambda: False
) -> tuple[Outcome, tuple[int, ...]]:
    """Sweep after sweep until the deadline (``time.monotonic``): the outcome, and the offsets in units.

    Forwards first; then mostly in the direction that got further.
    """
    reached = [UNTRIED, UNTRIED]
    rng = random.Random(seed)
    turn = 0
    while time.monotonic() < deadline and not stop():
        backwards = (reached[1] > reached[0]) ^ (turn > 1 and rng.random() < 0.1)
        outcome, offsets, share = sweep(problem, capacity, 2 * (seed + turn) + backwards, deadline, stop)
        if outcome != "stopped":
            return outcome, offsets
        reached[backwards] = share if reached[backwards] == UNTRIED else max(reached[backwards], share)
        turn += 1
    return "stopped", ()


def sweep(
    problem: Layout, capacity: int, seed: int, deadline: float, stop: Callable[[], bool] = lambda: False
) -> tuple[Outcome, tuple[int, ...], float]:
    """One pass over all windows: offsets in units, or "stopped" when it got stuck; "infeasible" is proven.

    The last of the three is the share of the windows that were packed when it ended.

    Args:
        problem: The buffers, numbered by time.
        capacity: Units.
        seed: Of the cuts and the searches; time runs backwards where it is odd.
        deadline: By ``time.monotonic``.
        stop: Asked now and then; True ends the sweep.
    """
    if seed % 2:
        outcome, offsets, share = sweep(mirrored(problem), capacity, seed - 1, deadline, stop)
        return outcome, offsets[::-1], share
    ends = _cuts(problem, random.Random(seed))
    # states[k]: what is placed when the first k windows are packed.
    states: list[Placed] = [{}]
    attempts = [0] * len(ends)
    while len(states) <= len(ends):
        last = len(states) - 1
        if attempts[last] == len(WIDTHS) or time.monotonic() > deadline or stop():
            return "stopped", (), last / len(ends)
        width = WIDTHS[attempts[last]]
        attempts[last] += 1
        first = max(0, last - width)
        span = ends[first - 1] if first else 0, ends[last]
        shift = seed + 100 * last + attempts[last]
        outcome, found = _pack_window(problem, capacity, span, states[first], width, shift, deadline, stop)
        if outcome == "packed":
            placed = {**states[first], **found}
            del states[first + 1 :]
            states += [_before(problem, placed, end) for end in ends[first : last + 1]]
        elif outcome == "infeasible" and first == 0:
            return "infeasible", (), 0.0
    return "packed", tuple(states[-1][number] for number in range(problem.count)), 1.0


def _pack_window(
    problem: Layout,
    capacity: int,
    span: tuple[int, int],
    placed: Placed,
    width: int,
    seed: int,
    deadline: float,
    stop: Callable[[], bool],
) -> tuple[Outcome, Placed]:
    part, numbers = window(problem, *span)
    pinned = np.array([placed.get(number, -1) for number in numbers], np.int64)
    outcome, offsets, _ = search(part, capacity, seed, deadline, stop, pinned, NODES * (1 + width))
    if outcome == "stopped" and not stop():
        model = SectionModel(part, capacity, pinned)
        outcome = model.run(1, seed, deadline, EFFORT * (1 + width))
        offsets = model.offsets
    return outcome, dict(zip(numbers, offsets, strict=True)) if outcome == "packed" else {}


def _before(problem: Layout, placed: Placed, end: int) -> Placed:
    """Of what is placed, the buffers that begin before a section."""
    first = problem.first.tolist()
    return {number: offset for number, offset in placed.items() if first[number] < end}


def _cuts(problem: Layout, rng: random.Random) -> list[int]:
    """The sections after each window's last: where, among so many new buffers, the fewest units are live across."""
    sizes = problem.sizes.tolist()
    ends: list[int] = []
    count = problem.sections
    while not ends or ends[-1] < count:
        start = ends[-1] if ends else 0
        known = set(problem.members[start - 1]) if start else set[int]()
        new: set[int] = set()
        choices: list[tuple[float, int]] = []
        end = start
        while end < count and (end == start or len(new) <= MOST):
            new.update(number for number in problem.members[end] if number not in known)
            end += 1
            if LEAST <= len(new) <= MOST and end < count:
                across = sum(sizes[n] for n in set(problem.members[end - 1]).intersection(problem.members[end]))
                choices.append((across * rng.uniform(1.0, 1.2), end))
        if end == count and len(new) <= MOST:
            choices = [(0.0, count)]
        ends.append(min(choices)[1] if choices else end)
    return ends
