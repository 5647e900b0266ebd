"""Proofs on tiny instances with all that the format allows: solve() against exhaustive search and a second pricer."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.problem.instance import Instance
from optfuse.problem.serialize import instance_from_json, instance_to_json
from optfuse.solver.joint.peak_bound import least_peak_bound
from tests.fuzzing import build, features, fuzzed
from tests.oracle.agreeing import assert_agrees, best_cost, capped

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
#: All with ``--hypothesis-profile=nightly``.
MANY = settings.default.max_examples >= 100
EXAMPLES = 2000 if MANY else 20
#: What ``features`` can find; each occurs, and so does each pair but for those that exclude each other.
FEATURES = frozenset(
    "access alias alone_or_not alternatives barrier compute constant donated edge_of_rivals empty_alternative fixed "
    "footprints fuse heavy l2_writes launch library looped max_ops max_weight mutated never_together no_bytes no_fuse "
    "optional_use order_edge outer output places ramp reads_by_scheme recompute reduces several_writers "
    "shared_alternatives single_kernel two_devices two_variants unconnected unused_donated".split()
)
#: Caps on memory: none, or between what inputs take and the peak of greedy, in percent.
PERCENTS = (None, None, 0, 25, 50, 75, 90, 100)


@settings(QUIET, max_examples=EXAMPLES)
@given(fuzzed(6), st.booleans(), st.sampled_from(PERCENTS))
def test_solve_agrees_with_the_oracles(instance: Instance, recompute: bool, percent: int | None) -> None:
    if percent is not None:
        instance = capped(instance, percent)
    assert_agrees(instance, recompute=recompute)


def test_all_statuses_are_met() -> None:
    """A fuzzer that meets no infeasible instance says nothing of false proofs.

    Fixed seeds: what hypothesis draws depends on the constants of all modules.
    """
    count, rng = 200 if MANY else 30, random.Random(0)
    statuses = Counter[str]()
    for seed in range(count):
        percent = rng.choice(PERCENTS)
        instance = build(random.Random(seed))
        instance = instance if percent is None else capped(instance, percent)
        statuses[assert_agrees(instance, recompute=rng.random() < 0.5)] += 1
    assert statuses["OPTIMAL"] > (50 if MANY else 10), statuses
    assert statuses["INFEASIBLE"] >= (5 if MANY else 1), statuses
    assert statuses["CONFLICT"] >= (2 if MANY else 1), statuses


def test_each_feature_and_each_pair_of_features_occurs() -> None:
    single = Counter[str]()
    missing = set(map(frozenset, combinations(sorted(FEATURES), 2)))
    for seed in range(3000):
        found = features(build(random.Random(seed)))
        single.update(found)
        missing.difference_update(map(frozenset, combinations(sorted(found), 2)))
        if not missing and not MANY:
            break
    assert set(single) == FEATURES
    assert missing == set()


@settings(QUIET, max_examples=300 if MANY else 10)
@given(fuzzed(6))
def test_files_say_all_of_an_instance(instance: Instance) -> None:
    assert instance_from_json(instance_to_json(instance)) == instance


@settings(QUIET, max_examples=500 if MANY else 10)
@given(fuzzed(5 if MANY else 4), st.booleans())
def test_no_schedule_has_a_lower_peak_than_the_bound(instance: Instance, recompute: bool) -> None:
    bound = least_peak_bound(instance, recompute=recompute)
    below = replace(instance, rules=replace(instance.rules, peak_memory=bound - 1)) if bound else None
    assert below is None or best_cost(below, recompute=recompute) is None
