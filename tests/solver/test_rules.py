"""Rules against exhaustive search: obeyed by every solver, refused exactly when no schedule obeys them."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.errors import InfeasibleError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance, Rules
from optfuse.problem.legality import common_schemes, is_legal
from optfuse.problem.presolve import presolve
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.rules.groups import rules_status
from optfuse.solver.solve import solve
from tests.layered import layered
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ONE_WORKER = SolveOptions(workers=1, deterministic=True)


def legal_sets(instance: Instance) -> list[tuple[int, ...]]:
    """Sets of two to four ops that may be a kernel."""
    found = [ops for size in (2, 3, 4) for ops in combinations(range(len(instance.ops)), size)]
    return [ops for ops in found if any(is_legal(instance, ops, s) for s in common_schemes(instance, ops))]


@st.composite
def ruled(draw: st.DrawFn, problems: st.SearchStrategy[Instance]) -> Instance:
    """An instance under some rules of every kind. Most ask for what may be, if need be with others; some contradict."""
    instance = draw(problems)
    op = st.integers(0, len(instance.ops) - 1)
    any_pair = st.lists(op, min_size=2, max_size=2, unique=True)
    sets = legal_sets(instance)
    some = st.sampled_from(sets) if sets else any_pair
    close = some.flatmap(lambda ops: st.permutations(ops)).map(lambda ops: ops[:2])
    pair = (close | close | close | any_pair).map(lambda ops: (min(ops), max(ops)))
    group = (some | some | st.lists(op, min_size=1, max_size=3, unique=True)).map(lambda ops: tuple(sorted(ops)))
    rules = Rules(
        fuse=tuple(draw(st.lists(pair, min_size=1, max_size=3, unique=True))),
        no_fuse=tuple(draw(st.lists(pair, max_size=1, unique=True))),
        single_kernel=tuple(draw(st.lists(group, max_size=1)) if draw(st.booleans()) else ()),
        barrier=tuple(draw(st.lists(op, max_size=1)) if draw(st.booleans()) else ()),
    )
    return replace(instance, rules=rules)


def oracle(instance: Instance) -> int | None:
    """The cost of a best schedule by exhaustive search; None when there is none."""
    try:
        outcome = exhaustive(instance)
    except InfeasibleError:
        return None
    assert outcome.solution is not None
    assert check(instance, outcome.solution) == ()
    return outcome.solution.objective


def agrees(instance: Instance) -> None:
    best = oracle(instance)
    assert rules_status(instance, time.monotonic() + 60) == ("impossible" if best is None else "possible")
    if best is None:
        return
    assert check(instance, greedy(instance)) == ()
    result = solve(instance, ONE_WORKER)
    assert (result.objective, result.bound, result.status) == (best, best, "OPTIMAL")
    assert oracle(presolve(instance).problem) == best


@settings(QUIET, max_examples=share(160))
@given(ruled(instances(min_ops=3, max_ops=7)))
def test_rules_on_odd_problems(instance: Instance) -> None:
    agrees(instance)


@settings(QUIET, max_examples=share(120))
@given(ruled(instances(min_ops=3, max_ops=7, variants=True)))
def test_rules_on_problems_with_variants(instance: Instance) -> None:
    agrees(instance)


@settings(QUIET, max_examples=share(160))
@given(ruled(layered(5, 8)))
def test_rules_on_layered_problems(instance: Instance) -> None:
    agrees(instance)
