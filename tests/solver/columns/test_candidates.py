"""Candidates are all legal kernels, each once, at the price of the cost function."""

from __future__ import annotations

import random
import time

from hypothesis import HealthCheck, given, settings

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal
from optfuse.problem.op_masks import bits, mask_of
from optfuse.problem.presolve import presolve
from optfuse.solver.columns.atoms import find_atoms
from optfuse.solver.columns.candidates import Pool, enumerate_candidates
from optfuse.solver.columns.incremental_cost import incremental_cost
from optfuse.solver.columns.pricing import pricer
from tests.layered import build, layered
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
PLENTY = 1_000_000


def listed(instance: Instance, **options: int) -> Pool:
    limit = options.pop("limit", PLENTY)
    return enumerate_candidates(instance, find_atoms(instance), limit, time.monotonic() + 60, **options)


def by_ops(instance: Instance, pool: Pool) -> dict[int, int]:
    """Costs by bitmask of ops."""
    atoms = find_atoms(instance)
    return {mask_of(atoms.ops_of(candidate.mask)): candidate.cost for candidate in pool.candidates}


def legal_kernels(instance: Instance) -> dict[int, int]:
    """The least cost of every legal kernel, by trying all sets."""
    found: dict[int, int] = {}
    for mask in range(1, 1 << len(instance.ops)):
        ops = tuple(bits(mask))
        costs = [kernel_cost(instance, ops, s) for s in common_schemes(instance, ops) if is_legal(instance, ops, s)]
        if costs:
            found[mask] = min(costs)
    return found


@settings(QUIET, max_examples=share(150))
@given(instances(min_ops=2, max_ops=8, variants=True, rules=True))
def test_candidates_are_the_legal_kernels(instance: Instance) -> None:
    pool = listed(instance)
    assert pool.complete
    assert by_ops(instance, pool) == legal_kernels(instance)


@settings(QUIET, max_examples=share(60))
@given(layered(3, 9))
def test_candidates_of_layered_problems_are_the_legal_kernels(instance: Instance) -> None:
    pool = listed(instance)
    assert len({candidate.mask for candidate in pool.candidates}) == len(pool.candidates)
    # Atoms that depend on each other in a cycle are one: no solution takes one without the other.
    assert by_ops(instance, pool) == legal_kernels(instance)


@settings(QUIET, max_examples=share(100))
@given(layered(4, 13))
def test_candidates_of_tied_ops_are_legal_and_priced_right(instance: Instance) -> None:
    reduced = presolve(instance).problem
    atoms = find_atoms(reduced)
    for candidate in listed(reduced).candidates:
        ops = atoms.ops_of(candidate.mask)
        assert is_legal(reduced, ops, candidate.scheme)
        assert candidate.cost == kernel_cost(instance, ops, candidate.scheme)


@settings(QUIET, max_examples=share(100))
@given(instances(min_ops=2, max_ops=7, variants=True))
def test_the_pricer_is_the_cost_function(instance: Instance) -> None:
    prices = pricer(instance)
    for mask in range(1, 1 << len(instance.ops)):
        ops = tuple(bits(mask))
        for scheme in common_schemes(instance, ops):
            assert prices.price(mask, scheme) == kernel_cost(instance, ops, scheme)


def test_layered_problems_have_prices_that_add_up() -> None:
    """Otherwise the tests above would not see the incremental prices."""
    tables = 0
    for seed in range(30):
        instance = build(seed, 8)
        atoms = find_atoms(instance)
        for scheme in range(1, len(instance.schemes)):
            allowed = mask_of(a for a, ops in enumerate(atoms.ops) if scheme in pricer(instance).terms[ops[0]])
            tables += bool(allowed) and incremental_cost(pricer(instance), atoms, scheme, allowed) is not None
    assert tables > 60


def test_limits_are_kept_and_told() -> None:
    instance = build(3, 12)
    everything = listed(instance)
    assert everything.complete
    count = len(everything.candidates)
    few = listed(instance, limit=count - 1)
    assert not few.complete
    assert len(few.candidates) == count - 1


def test_no_time_is_told() -> None:
    instance = build(3, 30)
    pool = enumerate_candidates(instance, find_atoms(instance), PLENTY, 0.0)
    assert not pool.complete


def test_fuse_rules_make_atoms_and_cycles_join_them() -> None:
    seeds = random.Random(0)
    for _ in range(20):
        instance = build(seeds.randrange(1000), 8)
        atoms = find_atoms(instance)
        assert sorted(op for ops in atoms.ops for op in ops) == list(range(8))
        assert all(earlier < atom for atom in range(len(atoms.ops)) for earlier in bits(atoms.before[atom]))
