"""Can the user's rules be obeyed at all? The kernels that they ask for as a constraint model, exact.

Only ``fuse`` and ``single_kernel`` ask for anything; what they do not name can run alone, since splitting a kernel
breaks no rule, limit or order. So it is enough to find a kernel for each set of ops that the rules tie together: those
ops, and whatever must come along because it lies on a path between them or links them. Two sets may share a kernel.

- ``lives[g][h]``: set g is in the kernel of set h, one of the sets before it or itself;
- ``holds[h][op]``: the kernel of set h holds an op; ``walks[h][s]``: it runs in scheme s;
- a level for every op, equal within a kernel, rising along every edge that leaves one: no cycle, all kernels convex;
- that kernels are connected is added where a solution was not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ortools.sat.python import cp_model

from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import component, legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.reduce.blocks import Block, cut_out, find_blocks
from optfuse.solver.reduce.union_find import Components


@dataclass(frozen=True, slots=True)
class Asked:
    """What the rules ask for: ``kernels`` as (ops, scheme), beside which every other running op may be alone.

    ``active`` are the ops that run, as a mask. Both mean nothing unless the status is "possible".
    """

    status: Literal["possible", "impossible", "undecided"]
    kernels: tuple[tuple[tuple[int, ...], int], ...] = ()
    active: int = 0


def ruled_part(instance: Instance) -> Block:
    """The part of an instance that its rules ask something of, cut out: they can be obeyed there or nowhere."""
    groups = find_blocks(instance)
    named = {op for group in (*instance.rules.fuse, *instance.rules.single_kernel) for op in group}
    named |= {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    return cut_out(instance, [op for group in groups if named.intersection(group) for op in group])


def kernels_asked_for(instance: Instance, deadline: float) -> Asked:
    """The smallest kernels that obey the rules of an instance, if there are any.

    Args:
        deadline: A ``time.monotonic`` value. After it the status is "undecided", unless an answer was found.
    """
    model = _Model(instance)
    while True:
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.0, deadline - time.monotonic())
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.solve(model.model)
        if status == cp_model.INFEASIBLE:
            return Asked("impossible")
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Asked("undecided")
        kernels = model.kernels(solver)
        if not model.cut_disconnected(kernels):
            found = tuple((tuple(bits(mask)), scheme) for _, mask, scheme in kernels)
            return Asked("possible", found, model.active(solver))


def _tied_sets(instance: Instance) -> list[tuple[int, ...]]:
    """The sets of several ops that rules tie together, directly or through others."""
    tied = Components(len(instance.ops))
    for group in (*instance.rules.fuse, *instance.rules.single_kernel):
        tied.join(group)
    return [group for group in tied.groups() if len(group) > 1]


@dataclass(slots=True)
class _Model:
    """Variables and constraint families of one instance."""

    instance: Instance
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    sets: list[tuple[int, ...]] = field(init=False)
    runs: list[cp_model.IntVar | int] = field(init=False)
    lives: list[dict[int, cp_model.IntVar]] = field(init=False)
    holds: list[dict[int, cp_model.IntVar]] = field(init=False)
    walks: list[dict[int, cp_model.IntVar]] = field(init=False)

    def __post_init__(self) -> None:
        self.sets = _tied_sets(self.instance)
        self._add_variants()
        self._add_kernels()
        self._add_schemes()
        self._add_limits()
        self._add_rules()
        self._add_levels()
        tied = {op for group in self.sets for op in group}
        self.model.minimize(sum(x for held in self.holds for op, x in held.items() if op not in tied))

    def _add_variants(self) -> None:
        """One alternative of each variant runs; what belongs to no variant always does."""
        self.runs = [1] * len(self.instance.ops)
        for variant in self.instance.variants:
            taken = [self.model.new_bool_var("") for _ in variant.alternatives]
            self.model.add_exactly_one(taken)
            for op in {op for alternative in variant.alternatives for op in alternative}:
                beside = [t for t, ops in zip(taken, variant.alternatives, strict=True) if op in ops]
                runs = self.model.new_bool_var("")
                self.model.add(sum(beside) == runs)
                self.runs[op] = runs

    def _add_kernels(self) -> None:
        """Each set lives in one kernel, that of itself or of an earlier set of the same block; others may join."""
        block_of = {op: number for number, block in enumerate(find_blocks(self.instance)) for op in block}
        members: dict[int, list[int]] = {}
        for op, block in block_of.items():
            members.setdefault(block, []).append(op)
        home = [block_of[group[0]] for group in self.sets]
        self.lives = [
            {h: self.model.new_bool_var("") for h in range(g + 1) if home[h] == home[g]} for g in range(len(self.sets))
        ]
        own = {op: g for g, group in enumerate(self.sets) for op in group}
        self.holds = []
        for h in range(len(self.sets)):
            held: dict[int, cp_model.IntVar] = {}
            for op in sorted(members[home[h]]):
                if op not in own:
                    held[op] = self.model.new_bool_var("")
                    self.model.add_implication(held[op], self.lives[h][h])
                elif own[op] >= h:
                    held[op] = self.lives[own[op]][h]
            self.holds.append(held)
        for g, group in enumerate(self.sets):
            for op in group:
                self.model.add(sum(self.lives[g].values()) == self.runs[op])
            for h, lives in self.lives[g].items():
                self.model.add_implication(lives, self.lives[h][h])
        for op in range(len(self.instance.ops)):
            if op not in own:
                self.model.add(sum(held[op] for held in self.holds if op in held) <= self.runs[op])

    def _add_schemes(self) -> None:
        """A kernel has one scheme, which its ops offer and its inside edges allow."""
        offered = [{offer.scheme for offer in op.offers} - {ALONE} for op in self.instance.ops]
        self.walks = []
        for h, group in enumerate(self.sets):
            common = set[int].intersection(*(offered[op] for op in group))
            walks = {scheme: self.model.new_bool_var("") for scheme in sorted(common)}
            self.model.add(sum(walks.values()) == self.lives[h][h])
            for op, held in self.holds[h].items():
                for scheme, walk in walks.items():
                    if scheme not in offered[op]:
                        self.model.add_bool_or(~held, ~walk)
            self.walks.append(walks)
        for edge in self.instance.edges:
            for held, walks in zip(self.holds, self.walks, strict=True):
                if edge.src in held and edge.dst in held:
                    for scheme, walk in walks.items():
                        if scheme not in edge.schemes:
                            self.model.add_bool_or(~held[edge.src], ~held[edge.dst], ~walk)

    def _add_limits(self) -> None:
        """Size, weight, and one device."""
        ops, limits = self.instance.ops, self.instance.limits
        for group, held in zip(self.sets, self.holds, strict=True):
            self.model.add(sum(held.values()) <= limits.max_ops)
            self.model.add(sum(ops[op].weight * x for op, x in held.items()) <= limits.max_weight)
            for op, x in held.items():
                if ops[op].device != ops[group[0]].device:
                    self.model.add(x == 0)

    def _add_rules(self) -> None:
        """Barriers are in no kernel of several ops, pairs of ``no_fuse`` not in one, single kernels hold no more."""
        rules = self.instance.rules
        alone = {*rules.barrier, *(group[0] for group in rules.single_kernel if len(group) == 1)}
        for held in self.holds:
            for op in alone & held.keys():
                self.model.add(held[op] == 0)
            for left, right in rules.no_fuse:
                if left in held and right in held:
                    self.model.add_bool_or(~held[left], ~held[right])
            for group in rules.single_kernel:
                if group[0] in held:
                    for op in held.keys() - set(group):
                        self.model.add_bool_or(~held[group[0]], ~held[op])

    def _add_levels(self) -> None:
        """Levels are equal within a kernel and rise along edges between kernels, among the ops that run."""
        count = len(self.instance.ops)
        levels = [self.model.new_int_var(0, count, "") for _ in range(count)]
        for held in self.holds:
            level = self.model.new_int_var(0, count, "")
            for op, x in held.items():
                self.model.add(levels[op] == level).only_enforce_if(x)
        for edge in self.instance.edges:
            inside: list[cp_model.IntVar] = []
            for held in self.holds:
                if edge.src in held and edge.dst in held:
                    both = self.model.new_bool_var("")
                    self.model.add_implication(both, held[edge.src])
                    self.model.add_implication(both, held[edge.dst])
                    inside.append(both)
            rises = self.model.add(levels[edge.dst] >= levels[edge.src] + 1 - sum(inside))
            optional = [runs for op in (edge.src, edge.dst) if not isinstance(runs := self.runs[op], int)]
            if optional:
                rises.only_enforce_if(optional)

    def kernels(self, solver: cp_model.CpSolver) -> list[tuple[int, int, int]]:
        """The kernels of a solution: number, ops as a mask, scheme."""
        found: list[tuple[int, int, int]] = []
        for h, (held, walks) in enumerate(zip(self.holds, self.walks, strict=True)):
            if solver.boolean_value(self.lives[h][h]):
                scheme = next(scheme for scheme, walk in walks.items() if solver.boolean_value(walk))
                found.append((h, mask_of(op for op, x in held.items() if solver.boolean_value(x)), scheme))
        return found

    def active(self, solver: cp_model.CpSolver) -> int:
        """The ops that run in a solution, as a mask."""
        return mask_of(
            op for op, runs in enumerate(self.runs) if (runs if isinstance(runs, int) else solver.boolean_value(runs))
        )

    def cut_disconnected(self, kernels: Sequence[tuple[int, int, int]]) -> bool:
        """Forbid kernels that do not hang together: what holds two of their parts must hold a link to the one."""
        if not self.instance.limits.connected:
            return False
        index = legal_index(self.instance)
        cut = False
        for h, mask, scheme in kernels:
            part = component(index, mask, scheme)
            if part == mask:
                continue
            cut = True
            held, walk = self.holds[h], self.walks[h][scheme]
            offering = [op for op in held if scheme in index.footprints[op] and not part >> op & 1]
            links = [held[op] for op in offering if component(index, part | 1 << op, scheme) == part | 1 << op]
            first, other = next(bits(part)), next(bits(mask & ~part))
            self.model.add_bool_or(~walk, ~held[first], ~held[other], *links)
        return cut
