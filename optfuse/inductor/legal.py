"""Sets of ops that another fuser put together, as a schedule of ours: legal, priced, and accepted by the checker.

What is no legal kernel here is split: its ops are joined again, pair by pair, the largest saving first, as far as that
is legal. Ops that the other fuser does not compute at all join the kernel of a neighbour where that is cheapest, so
that it is not charged for launches that it does not make.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import networkx

from optfuse.errors import IllegalKernelError
from optfuse.problem.cost import kernel_cost, topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import (
    bits,
    common_schemes,
    is_legal,
    is_legal_but_for_paths,
    legal_index,
    mask_of,
    refusal,
)
from optfuse.problem.recompute import recomputable_ops
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.assemble import arrange
from optfuse.solver.memory.order_problem import order_problem, precedences, program_order


@dataclass(frozen=True, slots=True)
class Legalized:
    """The schedule, and what had to change.

    Attributes
    ----------
    splits
        For each set that is no legal kernel: its place among the sets given, the code of the refusal
        (``problem.legality.RefusalCode``, or "cycle"), and in how many kernels it came out.
    once
        Ops that were given in several sets and may not be computed twice here.
    redundant
        Sets of which nothing is left: others compute all that they do, and nothing that they write is needed here.
    """

    solution: Solution
    splits: tuple[tuple[int, str, int], ...]
    once: tuple[int, ...]
    redundant: tuple[int, ...]


@dataclass(slots=True)
class _Draft:
    """Kernels as op masks, each with the set that it comes from (None: of no set)."""

    masks: list[int]
    sources: list[int | None]
    reasons: dict[int, str] = field(default_factory=dict)


def legalize(instance: Instance, sets: Sequence[Collection[int]]) -> Legalized:
    """The schedule nearest to some sets of ops, in their order. Ops of no set are kernels of their own, or join one.

    The first alternative of each variant runs.
    """
    given, once = _allowed_copies(instance, sets)
    draft = _Draft([], [])
    for place, mask in enumerate(given):
        pieces, reason = _pieces(instance, mask, given)
        if reason:
            draft.reasons[place] = reason
        draft.masks += pieces
        draft.sources += [place] * len(pieces)
    placed = mask_of(op for mask in draft.masks for op in bits(mask))
    for op in bits(_running(instance) & ~placed):
        _give_home(instance, draft, op)
    places, kernels = _break_cycles(instance, draft)
    left = {draft.sources[place] for place in places}
    redundant = tuple(place for place, mask in enumerate(given) if mask and place not in left)
    problem = order_problem(instance, kernels)
    solution = arrange(instance, kernels, problem, program_order(problem))
    came_to = {place: draft.sources.count(place) for place in draft.reasons}
    splits = tuple((place, reason, came_to[place]) for place, reason in sorted(draft.reasons.items()))
    return Legalized(solution, splits, once, redundant)


def _running(instance: Instance) -> int:
    """The ops that run: those of no variant, and of each variant the first alternative's."""
    index = legal_index(instance)
    active = index.mandatory
    for options in index.alternatives:
        active |= options[0]
    return active


def _allowed_copies(instance: Instance, sets: Sequence[Collection[int]]) -> tuple[list[int], tuple[int, ...]]:
    """The sets as masks; an op that may not be computed twice stays in the first of its sets."""
    twice = recomputable_ops(instance)
    seen = 0
    once: set[int] = set()
    masks: list[int] = []
    for members in sets:
        mask = mask_of(members)
        refused = mask & seen & ~twice
        once.update(bits(refused))
        seen |= mask
        masks.append(mask & ~refused)
    return masks, tuple(sorted(once))


# --- one set


def _pieces(instance: Instance, mask: int, every: Sequence[int]) -> tuple[list[int], str]:
    """A set as legal kernels, and why it is not one; "" where it is."""
    if not mask:
        return [], ""
    repeated = _repeated(every)
    if _schemes(instance, mask, repeated):
        return [mask], ""
    parts = [1 << op for op in bits(mask)]
    costs: dict[int, int | None] = {}

    def cost(part: int) -> int | None:
        if part not in costs:
            costs[part] = _cost(instance, part, repeated)
        return costs[part]

    def change(left: int, right: int) -> int | None:
        joined = cost(left | right) if _linked(instance, left, right) else None
        return None if joined is None else joined - (cost(left) or 0) - (cost(right) or 0)

    changes = {pair: change(*pair) for pair in combinations(parts, 2)}
    while True:
        legal = [(found, *pair) for pair, found in changes.items() if found is not None]
        if not legal:
            return parts, _why(instance, mask)
        _, left, right = min(legal)
        parts = [part for part in parts if part not in (left, right)]
        changes = {pair: found for pair, found in changes.items() if left not in pair and right not in pair}
        changes |= {(part, left | right): change(part, left | right) for part in parts}
        parts.append(left | right)


def _linked(instance: Instance, one: int, other: int) -> bool:
    """Whether an edge ties two sets of ops, or a buffer that both read."""
    index = topology(instance)
    near = mask_of(op for member in bits(one) for op, _ in (*index.users[member], *index.sources[member]))
    return bool(near & other) or bool(_read(instance, one) & _read(instance, other))


def _read(instance: Instance, mask: int) -> set[int]:
    index = topology(instance)
    return {read.buffer for op in bits(mask) for offer in index.offers[op].values() for read in offer.reads}


def _schemes(instance: Instance, mask: int, repeated: int) -> list[int]:
    """The schemes in which some ops are a legal kernel, given the ops that are computed elsewhere too."""
    ops = tuple(bits(mask))
    if len(ops) == 1:
        return [offer.scheme for offer in instance.ops[ops[0]].offers]
    if mask & repeated and _path(instance, mask, repeated):
        return []
    legal = is_legal_but_for_paths if mask & repeated else is_legal
    return [scheme for scheme in common_schemes(instance, ops) if legal(instance, ops, scheme)]


def _path(instance: Instance, mask: int, repeated: int) -> bool:
    """Whether a path leaves the ops and comes back, from one that is computed nowhere else."""
    reach = legal_index(instance).reach()
    below = above = 0
    for op in bits(mask):
        above |= reach.ancestors[op]
        if not repeated >> op & 1:
            below |= reach.descendants[op]
    return bool(below & above & ~mask)


def _cost(instance: Instance, mask: int, repeated: int) -> int | None:
    """What some ops cost as one kernel; None where they are none."""
    ops = tuple(bits(mask))
    return min((kernel_cost(instance, ops, scheme) for scheme in _schemes(instance, mask, repeated)), default=None)


def _why(instance: Instance, mask: int) -> str:
    """The first condition that a set breaks in the scheme that most of its ops offer."""
    ops = tuple(bits(mask))
    shared = common_schemes(instance, ops)
    if not shared:
        return "scheme"
    found = refusal(instance, ops, shared[0])
    return "path" if found is None else found.code


def _repeated(masks: Iterable[int]) -> int:
    """Ops of several masks."""
    seen = again = 0
    for mask in masks:
        again |= seen & mask
        seen |= mask
    return again


# --- all kernels together


def _give_home(instance: Instance, draft: _Draft, op: int) -> None:
    """Put an op of no set into the kernel of a neighbour where that is legal and cheapest, or into one of its own."""
    repeated = _repeated(draft.masks)
    alone = _cost(instance, 1 << op, repeated)
    assert alone is not None, "an op alone is a kernel"
    best = (alone, -1)
    for place, mask in enumerate(draft.masks):
        joined = _cost(instance, mask | 1 << op, repeated) if _linked(instance, 1 << op, mask) else None
        if joined is not None:
            best = min(best, (joined - (_cost(instance, mask, repeated) or 0), place))
    if best[1] >= 0:
        draft.masks[best[1]] |= 1 << op
    else:
        draft.masks.append(1 << op)
        draft.sources.append(None)


def _break_cycles(instance: Instance, draft: _Draft) -> tuple[list[int], list[Kernel]]:
    """The kernels with the place of each in the draft.

    Those that wait for each other in a circle are taken apart, the one with the most ops first.

    Raises
    ------
    IllegalKernelError
        If single ops wait for each other.
    """
    copied = _repeated(draft.masks)
    while True:
        places, kernels = _kernels(instance, draft.masks, copied)
        try:
            program_order(order_problem(instance, kernels))
            return places, kernels
        except IllegalKernelError:
            circles = networkx.strongly_connected_components(networkx.DiGraph(precedences(instance, kernels)))
            circle = next(part for part in circles if len(part) > 1)
            largest = max((len(kernels[number].ops), -places[number]) for number in circle)
            if largest[0] == 1:
                raise
        place = -largest[1]
        mask, source = draft.masks.pop(place), draft.sources.pop(place)
        elsewhere = mask_of(op for other in draft.masks for op in bits(other))
        parts = [1 << op for op in bits(mask & ~elsewhere)]
        draft.masks[place:place] = parts
        draft.sources[place:place] = [source] * len(parts)
        if source is not None:
            draft.reasons.setdefault(source, "cycle")


def _kernels(instance: Instance, masks: Sequence[int], copied: int) -> tuple[list[int], list[Kernel]]:
    """Kernels with their cheapest schemes, and each one's mask. Of several that compute a value the first writes it.

    ``copied`` are the ops that several kernels held before any was taken apart: a kernel that was legal by them stays
    one, and is taken apart itself if it now waits for another in a circle.
    """
    index = topology(instance)
    repeated = _repeated(masks)
    taken = {
        buffer
        for mask in masks
        for op in bits(mask)
        for source, buffer in index.sources[op]
        if buffer is not None and not mask >> source & 1
    }
    written: set[int] = set()
    places: list[int] = []
    kernels: list[Kernel] = []
    for place, mask in enumerate(masks):
        ops = tuple(bits(mask))
        made = {write.buffer for op in ops for write in instance.ops[op].offers[0].writes}
        makes = {buffer for buffer in made if buffer in taken or _is_owed(instance, buffer)} - written
        if not makes and mask & repeated == mask:
            continue  # all that it computes, others compute for themselves
        written |= makes if mask & repeated else set()
        writes = tuple(sorted(makes))
        costs = {s: kernel_cost(instance, ops, s, writes) for s in _schemes(instance, mask, copied)}
        places.append(place)
        kernels.append(Kernel(ops, min(costs, key=lambda s: (costs[s], s)), writes))
    return places, kernels


def _is_owed(instance: Instance, number: int) -> bool:
    buffer = instance.buffers[number]
    return buffer.output or buffer.kind != "temporary"
