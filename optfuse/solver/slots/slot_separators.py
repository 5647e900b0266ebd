"""Separators: ops without which a kernel of a block falls apart, and what it costs at least to split a part."""

from __future__ import annotations

from collections.abc import Iterable

from ortools.sat.python import cp_model

from optfuse.problem.cost import MIB, topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, mask_of
from optfuse.solver.bounds.cost_bound import cost_bound
from optfuse.solver.reduce.size_limits import without_launches, without_limits
from optfuse.solver.reduce.union_find import Components
from optfuse.solver.slots.slot_model import Mode, Separator, SlotModel, links_of, pieces_of

#: An op that is linked to so many is looked at as what may hold a kernel together.
MANY_LINKS = 8


def high_degree_separators(problem: Instance, modes: Iterable[Mode], many_links: int = MANY_LINKS) -> list[Separator]:
    """In each scheme the ops that are linked to ``many_links`` others, where without them it falls apart."""
    found: list[Separator] = []
    for scheme in sorted({mode.scheme for mode in modes if mode.scheme}):
        links = links_of(problem, scheme)
        offering = 0
        for mode in modes:
            offering |= mode.ops if mode.scheme == scheme else 0
        high_degree = mask_of(op for op in bits(offering) if (links[op] & offering).bit_count() >= many_links)
        parts = pieces_of(links, offering & ~high_degree)
        if high_degree and len(parts) > 1:
            found.append(Separator(scheme, high_degree, tuple(parts)))
    return found


def add_parts(model: SlotModel, parts: Iterable[int]) -> None:
    """Beside what must cross memory in any case, each of some disjoint parts that is not whole hands something on."""
    problem, cp = model.problem, model.cp
    launch = problem.devices[problem.ops[0].device].launch_ps
    total: list[cp_model.LinearExprT] = [cost_bound(without_launches(without_limits(problem)), recompute=False)]
    for part in parts:
        least = least_split(problem, part)
        if not least:
            continue
        whole = [cp.new_bool_var("") for _ in range(model.count)]
        cp.add_at_most_one(whole)
        for slot, here in enumerate(whole):
            for op in bits(part):
                mine = [model.at[op, slot, n] for n, mode in enumerate(model.modes) if mode.ops >> op & 1]
                cp.add(sum(mine) >= here)
        total.append(least * (1 - sum(whole)))
    cp.add(model.objective >= model.count * launch + sum(total))


def least_split(problem: Instance, part: int) -> int:
    """What it costs at least to have a part's ops in several kernels, beside what ``cost_bound`` counts; 0: unknown."""
    index = topology(problem)
    components = Components(len(problem.ops))
    least: int | None = None
    for op in bits(part):
        edges = [problem.edges[position] for position in index.outs[op]]
        gone = {edge.buffer for edge in edges if not edge.schemes}
        for edge in edges:
            if edge.buffer is None or not edge.schemes or not part >> edge.dst & 1:
                continue
            components.join((op, edge.dst))
            written = min(
                sum(price // MIB for b, price, _, always in offer.writes if b == edge.buffer and not always)
                for offer in index.priced[op].values()
            )
            read = min(
                min((price // MIB for b, _, price, _, _ in offer.reads if b == edge.buffer), default=0)
                for offer in index.priced[edge.dst].values()
            )
            handed_on = read + (0 if edge.buffer in gone else written)
            least = handed_on if least is None else min(least, handed_on)
    joined = len({components.find(op) for op in bits(part)}) == 1
    return least if least is not None and joined else 0
