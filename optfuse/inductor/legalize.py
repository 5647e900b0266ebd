"""Turns another compiler's kernels, as sets of ops, into a schedule of ours that the checker accepts.

A set that is not a legal kernel here is split into single ops, which are joined again pair by pair, largest saving
first, as far as that is legal. Ops of no set join the neighbouring kernel where they cost least, so that the other
compiler is not charged for launches that it does not make.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import networkx

from optfuse.errors import IllegalKernelError
from optfuse.problem.cost import kernel_cost, topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal, is_legal_but_for_paths, legal_index, refusal
from optfuse.problem.op_masks import bits, mask_of
from optfuse.problem.recompute import recomputable_ops
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.assemble import arrange
from optfuse.solver.memory.order_problem import order_problem, precedences, program_order


@dataclass(frozen=True, slots=True)
class Legalized:
    """The schedule, and how it differs from the sets given.

    Attributes:
        splits: For each set that is not a legal kernel: its index, the code of the refusal
            (``problem.legality.RefusalCode``, or "cycle"), and the number of kernels that it became.
        once: Ops that are in several sets but must not be recomputed here.
        redundant: Indices of sets without a kernel: other kernels compute all their ops, and no value they store is
            needed.
    """

    solution: Solution
    splits: tuple[tuple[int, str, int], ...]
    once: tuple[int, ...]
    redundant: tuple[int, ...]


@dataclass(slots=True)
class _Draft:
    """Kernels under construction, as op masks; ``sources`` has the set that each comes from (None if of no set)."""

    masks: list[int]
    sources: list[int | None]
    reasons: dict[int, str] = field(default_factory=dict)


def legalize(instance: Instance, sets: Sequence[Collection[int]]) -> Legalized:
    """Return a schedule whose kernels are the sets, as far as legal. Ops of no set join a kernel or are kernels alone.

    Of each variant the alternative runs that has most ops in the sets, the first among equals.
    """
    running = _running(instance, mask_of(op for members in sets for op in members))
    given, once = _without_recompute(instance, sets)
    given = [mask & running for mask in given]
    draft = _Draft([], [])
    for place, mask in enumerate(given):
        pieces, reason = _legal_pieces(instance, mask, given)
        if reason:
            draft.reasons[place] = reason
        draft.masks += pieces
        draft.sources += [place] * len(pieces)
    placed = mask_of(op for mask in draft.masks for op in bits(mask))
    for op in bits(running & ~placed):
        _attach_op(instance, draft, op)
    places, kernels = _break_cycles(instance, draft)
    left = {draft.sources[place] for place in places}
    redundant = tuple(place for place, mask in enumerate(given) if mask and place not in left)
    problem = order_problem(instance, kernels)
    solution = arrange(instance, kernels, problem, program_order(problem))
    splits = tuple((place, code, draft.sources.count(place)) for place, code in sorted(draft.reasons.items()))
    return Legalized(solution, splits, once, redundant)


def _running(instance: Instance, placed: int) -> int:
    """The ops that run, as a mask, where those of ``placed`` are in a set: see ``legalize``."""
    index = legal_index(instance)
    active = index.mandatory
    for options in index.alternatives:
        active |= max(options, key=lambda option: (option & placed).bit_count())
    return active


def _without_recompute(instance: Instance, sets: Sequence[Collection[int]]) -> tuple[list[int], tuple[int, ...]]:
    """Return the sets as masks, with each op that must not be recomputed kept in its first set only; and these ops."""
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


def _legal_pieces(instance: Instance, mask: int, every: Sequence[int]) -> tuple[list[int], str]:
    """Return a set as legal kernels, and the code of why it is not one itself ("" if it is)."""
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
            return parts, _refusal_code(instance, mask)
        _, left, right = min(legal)
        parts = [part for part in parts if part not in (left, right)]
        changes = {pair: found for pair, found in changes.items() if left not in pair and right not in pair}
        changes |= {(part, left | right): change(part, left | right) for part in parts}
        parts.append(left | right)


def _linked(instance: Instance, one: int, other: int) -> bool:
    """Whether two sets of ops share an edge, or a buffer that both read."""
    index = topology(instance)
    near = mask_of(op for member in bits(one) for op, _ in (*index.users[member], *index.sources[member]))
    return bool(near & other) or bool(_read(instance, one) & _read(instance, other))


def _read(instance: Instance, mask: int) -> set[int]:
    index = topology(instance)
    return {read.buffer for op in bits(mask) for offer in index.offers[op].values() for read in offer.reads}


def _schemes(instance: Instance, mask: int, repeated: int) -> list[int]:
    """The schemes in which ops are a legal kernel, given the ops that other kernels recompute."""
    ops = tuple(bits(mask))
    if len(ops) == 1:
        return [offer.scheme for offer in instance.ops[ops[0]].offers]
    if mask & repeated and _path(instance, mask, repeated):
        return []
    legal = is_legal_but_for_paths if mask & repeated else is_legal
    return [scheme for scheme in common_schemes(instance, ops) if legal(instance, ops, scheme)]


def _path(instance: Instance, mask: int, repeated: int) -> bool:
    """Whether a path leaves the ops and returns to them, starting at one that no other kernel computes."""
    reach = legal_index(instance).reach()
    below = above = 0
    for op in bits(mask):
        above |= reach.ancestors[op]
        if not repeated >> op & 1:
            below |= reach.descendants[op]
    return bool(below & above & ~mask)


def _cost(instance: Instance, mask: int, repeated: int) -> int | None:
    """The least cost of ops as one kernel, in picoseconds; None if they are not a legal kernel."""
    ops = tuple(bits(mask))
    return min((kernel_cost(instance, ops, scheme) for scheme in _schemes(instance, mask, repeated)), default=None)


def _refusal_code(instance: Instance, mask: int) -> str:
    """The code of the first condition that a set breaks, in the first scheme that its ops share."""
    ops = tuple(bits(mask))
    shared = common_schemes(instance, ops)
    if not shared:
        return "scheme"
    found = refusal(instance, ops, shared[0])
    return "path" if found is None else found.code


def _repeated(masks: Iterable[int]) -> int:
    """The ops that are in more than one mask."""
    seen = again = 0
    for mask in masks:
        again |= seen & mask
        seen |= mask
    return again


# --- all kernels together


def _attach_op(instance: Instance, draft: _Draft, op: int) -> None:
    """Add an op of no set to the neighbouring kernel where it costs least, or as a kernel of its own if cheaper."""
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
    """Return kernels without cycles, and the index of each in the draft.

    While there is a cycle, its kernel with the most ops is split into single ops.

    Raises:
        IllegalKernelError: If single ops form a cycle.
    """
    recomputed_before = _repeated(draft.masks)
    while True:
        places, kernels = _kernels(instance, draft.masks, recomputed_before)
        try:
            program_order(order_problem(instance, kernels))
            return places, kernels
        except IllegalKernelError:
            cycles = networkx.strongly_connected_components(networkx.DiGraph(precedences(instance, kernels)))
            cycle = next(part for part in cycles if len(part) > 1)
            largest = max((len(kernels[number].ops), -places[number]) for number in cycle)
            if largest[0] == 1:
                raise
        place = -largest[1]
        mask, source = draft.masks.pop(place), draft.sources.pop(place)
        others = mask_of(op for other in draft.masks for op in bits(other))
        parts = [1 << op for op in bits(mask & ~others)]
        draft.masks[place:place] = parts
        draft.sources[place:place] = [source] * len(parts)
        if source is not None:
            draft.reasons.setdefault(source, "cycle")


def _kernels(instance: Instance, masks: Sequence[int], recomputed_before: int) -> tuple[list[int], list[Kernel]]:
    """Return kernels with their cheapest schemes, and the index of each in ``masks``.

    Legality uses ``recomputed_before``, the ops that several kernels held before any was split, so that splitting one
    kernel never makes another illegal; a cycle that this leaves is found and split later. A value that several kernels
    compute is stored by the first of them.
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
        made = _made(instance, mask)
        makes = {buffer for buffer in made if buffer in taken or _must_be_stored(instance, buffer)} - written
        if not makes and mask & repeated == mask:
            continue  # other kernels recompute all of its ops
        written |= makes & _made(instance, mask & repeated)
        writes = tuple(sorted(makes))
        costs = {s: kernel_cost(instance, ops, s, writes) for s in _schemes(instance, mask, recomputed_before)}
        places.append(place)
        kernels.append(Kernel(ops, min(costs, key=lambda s: (costs[s], s)), writes))
    return places, kernels


def _made(instance: Instance, mask: int) -> set[int]:
    """The buffers that ops write."""
    return {write.buffer for op in bits(mask) for write in instance.ops[op].offers[0].writes}


def _must_be_stored(instance: Instance, number: int) -> bool:
    buffer = instance.buffers[number]
    return buffer.output or buffer.kind != "temporary"
