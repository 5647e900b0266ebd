"""Grow kernels that cost less than the dual prices of their atoms: columns that may improve the master problem.

Unlike an enumeration this one takes the step that lowers the reduced cost most, from any kernel, and stops after some
steps. It finds few kernels, and it may miss some of negative reduced cost.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from optfuse.problem.op_masks import bits
from optfuse.solver.columns.candidates import Candidate
from optfuse.solver.columns.growth import Growth, State


def improving(growth: Growth, kernel: int, steps: int, least: int) -> list[tuple[int, Candidate]]:
    """Kernels that hold the atoms of ``kernel`` and cost less than they are worth: (reduced cost, kernel), least first.

    Args:
        growth: The growth of the kernels' scheme; what an atom is worth is its dual price.
        kernel: The atoms to start from, a bitmask; nothing grows where the scheme does not allow them.
        steps: How many kernels are tried with each of their neighbours.
        least: By how many picoseconds a kernel must cost less.
    """
    allowed, scheme = growth.compatibility.allowed, growth.compatibility.scheme
    start = _state(growth, kernel)
    if start is None:
        return []
    found: list[tuple[int, Candidate]] = []
    seen, order = {kernel}, count()
    heap = [(0, next(order), start)]
    while heap and steps:
        steps -= 1
        growth.steps += 1
        state = heappop(heap)[-1]
        mask, banned, *_ = state
        for atom in bits(state[4] & ~mask & ~banned & allowed):
            added = growth.hull(state, atom)
            if added & (banned | ~allowed) or mask | added in seen:
                continue
            seen.add(mask | added)
            grown = growth.joined(state, added, banned)
            if grown is None:
                continue
            price = growth.price(grown)
            reduced = 0 if price is None else price - grown[-1]
            if price is not None and reduced < -least:
                found.append((reduced, Candidate(grown[0], scheme, price)))
            heappush(heap, (reduced, next(order), grown))
    return sorted(found, key=lambda pair: pair[0])


def _state(growth: Growth, kernel: int) -> State | None:
    """A kernel as a state to grow from; None where the scheme does not allow it."""
    if kernel & ~growth.compatibility.allowed:
        return None
    first = kernel & -kernel
    state = growth.start(first.bit_length() - 1)
    return state if kernel == first else growth.joined(state, kernel ^ first, state[1])
