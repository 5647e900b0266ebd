"""A whole instance as one CP-SAT model that stands alone: for those who tune solvers.

The solver proper goes block by block, relaxes first and cuts cycles when they appear. Here everything is there at
once: every candidate kernel of every block, and levels that keep kernels from waiting for each other in a cycle,
wherever that is possible at all. The optimum is that of the instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import networkx as nx
from ortools.sat.python import cp_model

from optfuse.errors import TooLargeError
from optfuse.problem.cost import default_writes, kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, common_schemes, is_legal, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solve.clock import NEVER
from optfuse.solve.cpsat.atoms import Atoms, find_atoms
from optfuse.solve.cpsat.blocks import Block, cut_out, find_blocks
from optfuse.solve.cpsat.candidates import Candidate, Pool, enumerate_candidates
from optfuse.solve.cpsat.constraints import add_cover, add_variants
from optfuse.solve.cpsat.limits import fits, without_limits
from optfuse.solve.cpsat.master import Master, covers_of
from optfuse.solve.cpsat.variables import Variables
from optfuse.solve.optional import optional_uses

#: Candidate kernels in one model, at most.
MAX_CANDIDATES = 500_000
#: Candidates among which it is worth to look whether they can form a cycle at all; more of them get levels unseen.
MAX_LOOK = 2000

#: An op of the instance that stands for its atom: the first.
Head = int
Pair = tuple[Head, Head]


@dataclass(frozen=True, slots=True)
class _Part:
    """One block's model, and how to speak of it in the ids of the whole."""

    block: Block
    atoms: Atoms
    master: Master
    variables: Variables

    def heads(self, mask: int) -> list[Head]:
        """The atoms of a candidate, in a topological order."""
        return [self.block.ops[self.atoms.ops[atom][0]] for atom in bits(mask)]


@dataclass(slots=True)
class _Whole:
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    parts: list[_Part] = field(default_factory=list)
    candidates: int = 0


def whole_model(instance: Instance, limit: int = MAX_CANDIDATES) -> cp_model.CpModel:
    """The model of an instance: its optimum is the least cost of any schedule in picoseconds.

    Variables, all ids being those of the instance: ``kernel SCHEME: OP OP ...`` is 1 when these ops are a kernel in
    this scheme, ``variant NAME: NUMBER`` when that alternative runs. ``level OP`` orders kernels, ``together OP OP``
    says that two ops share one, ``runs OP`` that an op of an alternative runs.

    Raises:
        TooLargeError: When there are more than ``limit`` candidate kernels.
    """
    whole = _Whole()
    for group in find_blocks(instance):
        _add_block(whole, instance, cut_out(instance, group), limit)
    _add_levels(whole, instance)
    terms = [
        (part.variables.chosen[column], candidate.cost)
        for part in whole.parts
        for column, candidate in enumerate(part.master.candidates)
    ]
    whole.model.minimize(cp_model.LinearExpr.weighted_sum([t[0] for t in terms], [t[1] for t in terms]))
    return whole.model


def _add_block(whole: _Whole, instance: Instance, block: Block, limit: int) -> None:
    """A block's candidates, each op covered once."""
    reduced, atoms, pool = _listed(block, limit - whole.candidates)
    whole.candidates += len(pool.candidates)
    if not pool.complete:
        raise TooLargeError(
            f"instance {instance.name!r} has more than {limit} candidate kernels, too many for one model; "
            f"a block of {len(block.ops)} ops from {instance.ops[block.ops[0]].name!r} is what cannot be listed"
        )
    versions = [version for candidate in pool.candidates for version in _versions(reduced, atoms, candidate)]
    whole.candidates += len(versions) - len(pool.candidates)
    master = Master(tuple(candidate for candidate, _ in versions), *covers_of(reduced, atoms))
    chosen: dict[int, cp_model.IntVar] = {}
    for column, candidate in enumerate(master.candidates):
        ops = " ".join(str(block.ops[op]) for op in atoms.ops_of(candidate.mask))
        chosen[column] = whole.model.new_bool_var(f"kernel {block.schemes[candidate.scheme]}: {ops}")
    inside = set(block.ops)
    own = [v for v in instance.variants if any(op in inside for ops in v.alternatives for op in ops)]
    taken = tuple(
        whole.model.new_bool_var(f"variant {variant.name}: {number}")
        for variant in own
        for number in range(len(variant.alternatives))
    )
    variables = Variables(chosen, taken)
    add_cover(whole.model, variables, master)
    add_variants(whole.model, variables, master)
    for column, (_, needed) in enumerate(versions):
        for variant, alternative in needed:
            whole.model.add_implication(chosen[column], taken[master.variants[variant][alternative]])
    whole.parts.append(_Part(block, atoms, master, variables))


def _versions(problem: Instance, atoms: Atoms, candidate: Candidate) -> list[tuple[Candidate, tuple[Pair, ...]]]:
    """A candidate at each of its prices, with the alternatives (variant, number) that must be taken for it.

    What a kernel leaves in memory may depend on which alternatives run elsewhere.
    """
    ops = atoms.ops_of(candidate.mask)
    users = {user for op, user in optional_uses(problem) if op in ops}
    members = [{op for ops in variant.alternatives for op in ops} for variant in problem.variants]
    open_variants = [number for number, mine in enumerate(members) if users & mine]
    if not open_variants:
        return [(candidate, ())]
    found: list[tuple[Candidate, tuple[Pair, ...]]] = []
    for numbers in product(*(range(len(problem.variants[variant].alternatives)) for variant in open_variants)):
        needed = tuple(zip(open_variants, numbers, strict=True))
        running = set(range(len(problem.ops))).difference(*(members[variant] for variant in open_variants))
        running = running.union(*(problem.variants[variant].alternatives[number] for variant, number in needed))
        prices = [
            (kernel_cost(problem, ops, scheme, default_writes(problem, ops, scheme, running)), scheme)
            for scheme in common_schemes(problem, ops)
            if is_legal(problem, ops, scheme)
        ]
        cost, scheme = min(prices)
        found.append((Candidate(candidate.mask, scheme, cost), needed))
    return found


def _listed(block: Block, limit: int) -> tuple[Instance, Atoms, Pool]:
    """A block presolved, with all its candidates.

    Presolve proves more where a kernel's size has no limit. If then no candidate is as large as the limit, none was
    needed, and the optimum is the same; otherwise the block is presolved as it is.
    """
    shape = block.shape
    problem = without_limits(shape.problem)
    while True:
        reduced = presolve(problem, shape.fed, shape.used).instance
        atoms = find_atoms(reduced)
        pool = enumerate_candidates(reduced, atoms, limit, NEVER)
        if problem is shape.problem or all(fits(shape.problem, atoms.ops_of(c.mask)) for c in pool.candidates):
            return reduced, atoms, pool
        problem = shape.problem


def _add_levels(whole: _Whole, instance: Instance) -> None:
    """Kernels have levels that rise along edges, wherever kernels could wait for each other in a cycle at all."""
    head = {part.block.ops[op]: part.block.ops[ops[0]] for part in whole.parts for ops in part.atoms.ops for op in ops}
    edges = dict.fromkeys((head[e.src], head[e.dst]) for e in instance.edges if head[e.src] != head[e.dst])
    shared = [
        heads
        for part in whole.parts
        for candidate in part.master.candidates
        if len(heads := part.heads(candidate.mask)) > 1
    ]
    neighbours = dict.fromkeys(pair for heads in shared for pair in pairwise(heads))
    graph: nx.DiGraph = nx.DiGraph([*edges, *neighbours, *((right, left) for left, right in neighbours)])
    components = [members for members in nx.strongly_connected_components(graph) if len(members) > 1]
    component = {op: number for number, members in enumerate(components) for op in members}
    # The atoms of one candidate are all in one component.
    kernels: list[list[list[Head]]] = [[] for _ in components]
    for heads in shared:
        kernels[component[heads[0]]].append(heads)
    inside: list[list[Pair]] = [[] for _ in components]
    for left, right in edges:
        if component.get(left, -1) == component.get(right, -2):
            inside[component[left]].append((left, right))
    levels: dict[Head, cp_model.IntVar] = {}
    rising: list[Pair] = []
    for number, members in enumerate(components):
        if _may_form_cycle(inside[number], kernels[number]):
            rising += inside[number]
            for op in sorted(members):
                levels[op] = whole.model.new_int_var(0, len(members) - 1, f"level {op}")
    level = [pair for pair in neighbours if pair[0] in levels]
    together = _add_together(whole, {*level, *rising})
    runs = _running(whole)
    for left, right in level:
        whole.model.add(levels[left] == levels[right]).only_enforce_if(together[left, right])
    for left, right in rising:
        conditions: list[cp_model.LiteralT] = [*runs.get(left, ()), *runs.get(right, ())]
        if (left, right) in together:
            conditions.append(together[left, right].negated())
        whole.model.add(levels[left] < levels[right]).only_enforce_if(conditions)


def _may_form_cycle(edges: Sequence[Pair], kernels: Sequence[Sequence[Head]]) -> bool:
    """Whether some kernels of several atoms could wait for each other in a cycle; True when there are many of them.

    A kernel of one atom only hands on, so a cycle is one of disjoint larger kernels, each before the next.
    """
    if len(kernels) > MAX_LOOK:
        return True
    order: nx.DiGraph = nx.DiGraph(edges)
    behind = {op: mask_of(nx.descendants(order, op)) for op in order}
    masks = [mask_of(kernel) for kernel in kernels]
    waits: nx.DiGraph = nx.DiGraph()
    for number, kernel in enumerate(kernels):
        reached = 0
        for op in kernel:
            reached |= behind.get(op, 0)
        waits.add_edges_from(
            (number, other) for other, mask in enumerate(masks) if reached & mask and not masks[number] & mask
        )
    return not nx.is_directed_acyclic_graph(waits)


def _add_together(whole: _Whole, pairs: Iterable[Pair]) -> dict[Pair, cp_model.IntVar]:
    """A Boolean for each pair of atoms that some candidate holds: whether a chosen one does."""
    wanted: dict[Head, list[Head]] = {}
    for left, right in sorted(pairs):
        wanted.setdefault(left, []).append(right)
    holding: dict[Pair, list[cp_model.IntVar]] = {}
    for part in whole.parts:
        for column, candidate in enumerate(part.master.candidates):
            members = set(heads) if len(heads := part.heads(candidate.mask)) > 1 else set()
            for left in sorted(members):
                for right in wanted.get(left, ()):
                    if right in members:
                        holding.setdefault((left, right), []).append(part.variables.chosen[column])
    together: dict[Pair, cp_model.IntVar] = {}
    for (left, right), columns in holding.items():
        together[left, right] = whole.model.new_bool_var(f"together {left} {right}")
        whole.model.add(sum(columns) == together[left, right])
    return together


def _running(whole: _Whole) -> dict[Head, tuple[cp_model.IntVar, ...]]:
    """For atoms of alternatives, a Boolean that says whether they run."""
    found: dict[Head, tuple[cp_model.IntVar, ...]] = {}
    for part in whole.parts:
        for cover in part.master.covers:
            if cover.alternatives is None:
                continue
            head = part.block.ops[part.atoms.ops[cover.atom][0]]
            runs = whole.model.new_bool_var(f"runs {head}")
            whole.model.add(sum(part.variables.taken[number] for number in cover.alternatives) == runs)
            found[head] = (*found.get(head, ()), runs)
    return found
