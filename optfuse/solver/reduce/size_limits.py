"""Relax the limits on a kernel's size: the bound without limits holds, and its partitions are cut to fit them.

Presolve and the relaxation know nothing of sizes: a block is first solved without the limits. Where the answer breaks
them, it is still worth something: cut to size it is a solution, and a bound follows from how many kernels there must be
at least. Of every kernel's price take the launch away; what the block then costs without limits, plus a launch for each
kernel that there must be, no solution can undercut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import component, legal_index
from optfuse.problem.op_masks import bits, mask_of

Kernel = tuple[tuple[int, ...], int]


def without_limits(problem: Instance) -> Instance:
    """The block without limits on a kernel's size, if one could bind at all."""
    weight = sum(op.weight for op in problem.ops)
    if len(problem.ops) <= problem.limits.max_ops and weight <= problem.limits.max_weight:
        return problem
    return replace(problem, limits=replace(problem.limits, max_ops=len(problem.ops), max_weight=weight))


def without_launches(problem: Instance) -> Instance:
    """The block on devices that launch kernels in no time."""
    return replace(
        problem,
        devices=tuple(replace(device, launch_ps=0) for device in problem.devices),
        ops=tuple(replace(op, launch_ps=0) for op in problem.ops),
    )


def fits(problem: Instance, ops: Sequence[int]) -> bool:
    """Whether a kernel keeps the limits on its size."""
    weight = sum(problem.ops[op].weight for op in ops)
    return len(ops) == 1 or (len(ops) <= problem.limits.max_ops and weight <= problem.limits.max_weight)


def fewest_kernels(problem: Instance) -> int:
    """How many kernels every solution has at least: a kernel has one scheme, and room for so many ops.

    Ops of variants need not run and do not count; those that offer several schemes count wherever there is room left.
    """
    mandatory = legal_index(problem).mandatory
    most, heaviest = problem.limits.max_ops, problem.limits.max_weight
    tied: dict[int, list[int]] = {}
    alone = 0
    for op in bits(mandatory):
        offered = [offer.scheme for offer in problem.ops[op].offers]
        if offered == [ALONE]:
            alone += 1
        elif len(offered) == 1:
            tied.setdefault(offered[0], []).append(op)

    def least(ops: Sequence[int]) -> int:
        # An op above the limit on weight may still run, alone.
        weight = sum(min(problem.ops[op].weight, heaviest) for op in ops)
        return max(-(-len(ops) // max(1, most)), -(-weight // max(1, heaviest)))

    together = [op for op in bits(mandatory) if any(offer.scheme != ALONE for offer in problem.ops[op].offers)]
    return alone + max(least(together), sum(map(least, tied.values())))


def launches(problem: Instance) -> int:
    """Picoseconds that the fewest kernels take to launch."""
    return fewest_kernels(problem) * min(device.launch_ps for device in problem.devices)


def cut_to_size(problem: Instance, kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels, those that break the limits cut into pieces that keep them; no cycle is added.

    A piece takes ops in their order, which is topological, as long as there is room; what is not connected in it falls
    apart into pieces of its own.
    """
    index = legal_index(problem)
    found: list[Kernel] = []
    for ops, scheme in kernels:
        if fits(problem, ops):
            found.append((ops, scheme))
            continue
        for piece in _pieces(problem, sorted(ops)):
            rest = mask_of(piece)
            while rest:
                part = component(index, rest, scheme) if problem.limits.connected else rest
                rest &= ~part
                found.append((tuple(bits(part)), scheme))
    return found


def _pieces(problem: Instance, ops: Sequence[int]) -> list[list[int]]:
    pieces: list[list[int]] = []
    for op in ops:
        if not pieces or not fits(problem, [*pieces[-1], op]):
            pieces.append([])
        pieces[-1].append(op)
    return pieces
