"""The certificate that kernels are memory-bound, against every set of ops; and the flow beneath it."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import HealthCheck, given, settings

from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.problem.max_flow import Network
from optfuse.problem.memory_bound import is_memory_bound
from tests.layered import build, layered
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def exceptions(instance: Instance, scheme: int) -> list[tuple[int, ...]]:
    """Sets of ops that compute for longer than they move bytes."""
    ops = [n for n, op in enumerate(instance.ops) if any(offer.scheme == scheme for offer in op.offers)]
    sets = (chosen for size in range(1, len(ops) + 1) for chosen in combinations(ops, size))
    prices = ((chosen, kernel_price(instance, chosen, scheme)) for chosen in sets)
    return [chosen for chosen, price in prices if price.compute > price.memory]


def check(instance: Instance) -> None:
    for scheme in range(1, len(instance.schemes)):
        if is_memory_bound(instance, scheme):
            assert not exceptions(instance, scheme)


@settings(QUIET, max_examples=share(80))
@given(layered(4, 8))
def test_a_certificate_is_true_of_every_set(instance: Instance) -> None:
    check(instance)


@settings(QUIET, max_examples=share(80))
@given(instances(min_ops=3, max_ops=7))
def test_a_certificate_is_true_of_odd_problems(instance: Instance) -> None:
    check(instance)


def test_most_of_what_is_memory_bound_is_certified() -> None:
    found = certified = 0
    for seed in range(60):
        instance = build(seed, random.Random(seed).randint(4, 7))
        for scheme in range(1, len(instance.schemes)):
            bound = not exceptions(instance, scheme)
            found += bound
            certified += bound and is_memory_bound(instance, scheme)
    assert 0.8 * found < certified <= found


def test_the_flow_is_that_of_the_least_cut() -> None:
    network = Network()
    left, right = network.node(), network.node()
    for tail, head, capacity in ((0, left, 3), (0, right, 2), (left, right, 2), (left, 1, 1), (right, 1, 9)):
        network.arc(tail, head, capacity)
    assert network.maximum_flow() == 5
