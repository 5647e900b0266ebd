"""The master problem: cuts, the relaxation's certificate, and each family of the model by itself."""

from __future__ import annotations

import random
import time

from hypothesis import HealthCheck, given, settings
from ortools.sat.python import cp_model

from optfuse.problem.instance import Instance
from optfuse.solver.columns.atoms import Atoms, find_atoms
from optfuse.solver.columns.candidates import Candidate, enumerate_candidates
from optfuse.solver.master.cpsat_model import Variables, add_cover, add_cuts, add_objective, add_variables, add_variants
from optfuse.solver.master.cycle_repair import split_cycles
from optfuse.solver.master.cycles import find_cuts, find_cycles
from optfuse.solver.master.master import Anchor, Cover, CycleCut, Master, covers_of
from optfuse.solver.master.relaxation import UNIT, LinearMaster
from tests.layered import build, layered
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def master_of(instance: Instance) -> tuple[Master, Atoms]:
    atoms = find_atoms(instance)
    pool = enumerate_candidates(instance, atoms, 1_000_000, time.monotonic() + 60)
    covers, variants = covers_of(instance, atoms)
    return Master(pool.candidates, covers, variants), atoms


def random_partition(master: Master, rng: random.Random) -> list[int]:
    """Masks of candidates that cover every atom once; rather large ones, so that some wait for each other."""
    left = (1 << len(master.covers)) - 1
    chosen = []
    while left:
        fitting = [c.mask for c in master.candidates if c.mask & -c.mask == left & -left and not c.mask & ~left]
        chosen.append(max(rng.choices(fitting, k=2), key=int.bit_count))
        left &= ~chosen[-1]
    return chosen


@settings(QUIET, max_examples=share(100))
@given(layered(6, 11))
def test_cuts_forbid_what_they_were_made_from_and_nothing_acyclic(instance: Instance) -> None:
    master, atoms = master_of(instance)
    rng = random.Random(len(instance.edges))
    partitions = [random_partition(master, rng) for _ in range(30)]
    found = {tuple(masks): find_cuts(atoms, masks) for masks in partitions}
    cuts = [cut for several in found.values() for cut in several]
    for masks, mine in found.items():
        for cut in mine:
            assert sum(map(cut.weight, masks)) > cut.limit
        if not mine:
            assert all(sum(map(cut.weight, masks)) <= cut.limit for cut in cuts)
        for cut in cuts:
            assert all(mask & cut.touches for mask in masks if cut.weight(mask))


def test_some_partitions_of_convex_kernels_are_cycles() -> None:
    """Otherwise the test above would hold of cuts never made."""
    cycles = 0
    for seed in range(60):
        master, atoms = master_of(build(seed, 10))
        rng = random.Random(seed)
        cycles += any(find_cuts(atoms, random_partition(master, rng)) for _ in range(30))
    assert cycles > 3


@settings(QUIET, max_examples=share(100))
@given(layered(6, 14))
def test_cycles_are_repaired_by_splitting(instance: Instance) -> None:
    master, atoms = master_of(instance)
    known = {candidate.mask: candidate for candidate in master.candidates}
    rng = random.Random(len(instance.edges))
    for _ in range(20):
        masks = random_partition(master, rng)
        kernels = split_cycles(instance, atoms, [known[mask] for mask in masks], known)
        assert kernels is not None
        assert not find_cuts(atoms, [kernel.mask for kernel in kernels])
        assert sum(kernel.mask for kernel in kernels) == (1 << len(atoms.ops)) - 1
        assert all(any(kernel.mask | mask == mask for mask in masks) for kernel in kernels)
        assert all(kernel.cost == known[kernel.mask].cost for kernel in kernels)
        if not find_cuts(atoms, masks):
            assert [kernel.mask for kernel in kernels] == masks


def test_cycles_are_shortest_and_found_once() -> None:
    graph = {0: {1}, 1: {2, 0}, 2: {3}, 3: {1}, 4: {0}, 5: set()}
    assert sorted(find_cycles(graph)) == [[0, 1], [1, 2, 3]]
    assert find_cycles({0: {1}, 1: set()}) == []


@settings(QUIET, max_examples=share(100))
@given(instances(min_ops=3, max_ops=8, variants=True))
def test_the_relaxation_is_a_certificate(instance: Instance) -> None:
    """No candidate costs less than the prices of what it covers, whatever floating point did."""
    master, _ = master_of(instance)
    relaxation = LinearMaster(master, ()).relax(time.monotonic() + 60)
    assert min(relaxation.slack) >= 0
    for candidate, slack in zip(master.candidates, relaxation.slack, strict=True):
        paid = sum(
            price
            for cover, price in zip(master.covers, relaxation.prices, strict=True)
            if candidate.mask >> cover.atom & 1
        )
        assert candidate.cost * UNIT - paid == slack
    assert relaxation.bound == -(-relaxation.level // UNIT)


def test_without_time_the_certificate_is_weak_and_true() -> None:
    master, _ = master_of(build(5, 10))
    late = LinearMaster(master, ()).relax(0.0)
    assert late.bound == 0
    assert list(late.slack) == [candidate.cost * UNIT for candidate in master.candidates]


def test_columns_join_the_relaxation_as_they_are_wanted() -> None:
    master, _ = master_of(build(5, 14))
    whole = LinearMaster(master, ()).relax(time.monotonic() + 60)
    few = LinearMaster(master, (), columns=(5, 3))
    assert few.relax(time.monotonic() + 60).bound == whole.bound


CANDIDATES = (Candidate(0b01, 0, 5), Candidate(0b10, 0, 7), Candidate(0b11, 0, 10))


def solved(master: Master, fixed: dict[int, int], *families: object) -> int:
    """The status of a model of some families with some variables fixed."""
    model = cp_model.CpModel()
    variables = add_variables(model, master, range(len(master.candidates)))
    for family in families:
        family(model, variables, master)  # type: ignore[operator]
    for column, value in fixed.items():
        model.add(variables.chosen[column] == value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return solver.solve(model)


def test_cover_wants_every_atom_once() -> None:
    master = Master(CANDIDATES, (Cover(0, None), Cover(1, None)), ())
    assert solved(master, {0: 1, 1: 1, 2: 0}, add_cover) == cp_model.OPTIMAL
    assert solved(master, {2: 1}, add_cover) == cp_model.OPTIMAL
    assert solved(master, {0: 1, 2: 1}, add_cover) == cp_model.INFEASIBLE
    assert solved(master, {0: 0, 2: 0}, add_cover) == cp_model.INFEASIBLE


def test_variants_take_one_alternative_and_cover_it() -> None:
    master = Master(CANDIDATES[:2], (Cover(0, (0,)), Cover(1, (1,))), ((0, 1),))
    assert solved(master, {0: 1, 1: 0}, add_cover, add_variants) == cp_model.OPTIMAL
    assert solved(master, {0: 0, 1: 0}, add_cover, add_variants) == cp_model.INFEASIBLE
    assert solved(master, {0: 1, 1: 1}, add_cover, add_variants) == cp_model.INFEASIBLE


def test_a_cycle_cut_leaves_the_merged_kernel_alone() -> None:
    """Two kernels that wait for each other are forbidden; both in one are not."""
    candidates = (Candidate(0b1001, 0, 1), Candidate(0b0110, 0, 1), Candidate(0b1111, 0, 1))
    cut = CycleCut((Anchor(0, 1, 0b1000), Anchor(1, 0, 0b0100)))
    master = Master(candidates, tuple(Cover(atom, None) for atom in range(4)), (), (cut,))
    assert solved(master, {0: 1, 1: 1}, add_cover, add_cuts) == cp_model.INFEASIBLE
    assert solved(master, {2: 1}, add_cover, add_cuts) == cp_model.OPTIMAL


def test_the_objective_is_the_cost_of_the_chosen() -> None:
    master = Master(CANDIDATES, (Cover(0, None), Cover(1, None)), ())
    model = cp_model.CpModel()
    variables: Variables = add_variables(model, master, range(3))
    add_cover(model, variables, master)
    add_objective(model, variables, master)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.objective_value == 10
    assert [solver.boolean_value(variables.chosen[column]) for column in range(3)] == [False, False, True]
