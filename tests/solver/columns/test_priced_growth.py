"""Grown by prices: legal kernels around the start, at their true price, below what their atoms are worth."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import is_legal
from optfuse.problem.op_masks import bits
from optfuse.solver.columns.atoms import find_atoms
from optfuse.solver.columns.candidates import Candidate, price_alone
from optfuse.solver.columns.compatibility import compatible_atoms
from optfuse.solver.columns.growth import Growth
from optfuse.solver.columns.priced_growth import improving
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
PLENTY = 10_000


def growths(instance: Instance, prices: list[int]) -> list[Growth]:
    """A growth for each scheme with loops, by given prices."""
    atoms = find_atoms(instance)
    alone: dict[int, tuple[int, int]] = {}
    for atom in range(len(atoms.ops)):
        price_alone(instance, atoms, atom, alone)
    found = []
    for scheme in range(1, len(instance.schemes)):
        compatibility = compatible_atoms(instance, atoms, scheme)
        if not compatibility.allowed & compatibility.allowed - 1:
            continue
        growth = Growth(instance, atoms, compatibility, alone, time.monotonic() + 60)
        growth.price_by(prices)
        found.append(growth)
    return found


@settings(QUIET, max_examples=share(150))
@given(instances(min_ops=2, max_ops=8, variants=True, rules=True), st.data())
def test_all_kernels_below_their_price_are_found_with_plenty_of_steps(instance: Instance, data: st.DataObject) -> None:
    count = len(find_atoms(instance).ops)
    prices = data.draw(st.lists(st.integers(0, 20_000_000), min_size=count, max_size=count))
    for growth in growths(instance, prices):
        enumerated: dict[int, tuple[int, int]] = {}
        growth.best = enumerated
        assert growth.grow(PLENTY)
        wanted = {
            Candidate(mask, scheme, cost)
            for mask, (cost, scheme) in enumerated.items()
            if cost < sum(prices[atom] for atom in bits(mask)) - 1
        }
        found: set[Candidate] = set()
        for atom in bits(growth.compatibility.allowed):
            for reduced, candidate in improving(growth, 1 << atom, PLENTY, 1):
                assert candidate.mask >> atom & 1
                assert reduced == candidate.cost - sum(prices[each] for each in bits(candidate.mask)) < -1
                ops = growth.atoms.ops_of(candidate.mask)
                assert is_legal(instance, ops, candidate.scheme)
                assert candidate.cost == kernel_cost(instance, ops, candidate.scheme)
                found.add(candidate)
        assert found == wanted


@settings(QUIET, max_examples=share(60))
@given(instances(min_ops=3, max_ops=8))
def test_a_kernel_grows_from_what_is_given(instance: Instance) -> None:
    prices = [10**9] * len(find_atoms(instance).ops)
    for growth in growths(instance, prices):
        allowed = growth.compatibility.allowed
        for atom in bits(allowed):
            for _, first in improving(growth, 1 << atom, 1, 1):
                assert all(
                    first.mask & found.mask == first.mask for _, found in improving(growth, first.mask, PLENTY, 1)
                )
        outside = (1 << len(prices)) - 1 & ~allowed
        assert not improving(growth, outside & -outside, PLENTY, 1) if outside else True
