"""Conflicts between rules: each rule that is named is needed for the conflict, and the message says which."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings

from optfuse.errors import InvalidInstanceError, RuleConflictError, RuleError
from optfuse.problem.instance import Edge, Instance, Rules
from optfuse.problem.rules import Rule, barrier, fuse, joined, no_fuse, single_kernel
from optfuse.problem.serialize import digest
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.rules.conflict import as_written, find_conflict, under_rules
from optfuse.solver.solve import solve
from tests.layered import layered
from tests.problem.cases import GELU, SUM, example
from tests.solver.test_rules import QUIET, oracle, ruled
from tests.strategies import instances, share


def single_rules(rules: Rules) -> list[Rules]:
    """Each of some rules on its own."""
    return [
        *(Rules(fuse=(pair,)) for pair in rules.fuse),
        *(Rules(no_fuse=(pair,)) for pair in rules.no_fuse),
        *(Rules(single_kernel=(group,)) for group in rules.single_kernel),
        *(Rules(barrier=(op,)) for op in rules.barrier),
    ]


def names_a_minimal_conflict(instance: Instance) -> None:
    parts = single_rules(instance.rules)
    free = replace(instance, rules=Rules())

    def obeyed(chosen: tuple[int, ...]) -> bool:
        return oracle(replace(free, rules=joined(parts[k] for k in chosen))) is not None

    if obeyed(tuple(range(len(parts)))):
        return
    found = find_conflict(free, parts, time.monotonic() + 60)
    assert found.minimal
    assert not obeyed(found.rules)
    assert all(obeyed(rest) for rest in combinations(found.rules, len(found.rules) - 1))


@settings(QUIET, max_examples=share(120))
@given(ruled(instances(min_ops=3, max_ops=6, variants=True)))
def test_a_minimal_conflict_of_odd_problems(instance: Instance) -> None:
    names_a_minimal_conflict(instance)


@settings(QUIET, max_examples=share(120))
@given(ruled(layered(5, 7)))
def test_a_minimal_conflict_of_layered_problems(instance: Instance) -> None:
    names_a_minimal_conflict(instance)


def conflict(*rules: Rule) -> str:
    with pytest.raises(RuleConflictError) as caught:
        solve(example(), SolveOptions(workers=1, rules=rules))
    return str(caught.value)


def test_only_the_rules_that_conflict_are_named() -> None:
    text = conflict(
        barrier("scale"), fuse("add", "gelu"), no_fuse("add", "sum"), fuse("gelu", "sum"), no_fuse("scale", "sum")
    )
    assert "these 3 together" in text
    assert 'fuse("add", "gelu"); no_fuse("add", "sum"); fuse("gelu", "sum")' in text
    assert "scale" not in text


def test_a_rule_that_nothing_obeys_says_why() -> None:
    text = conflict(fuse("scale", "add"), barrier("gelu"))
    assert 'obeys fuse("scale", "add")' in text
    assert "matmul" in text
    assert "gelu" not in text


def test_single_kernels_that_overlap() -> None:
    text = conflict(single_kernel(["add", "gelu"]), single_kernel(["gelu", "sum"]))
    assert 'single_kernel(["add", "gelu"]); single_kernel(["gelu", "sum"])' in text


def test_rules_of_the_instance_count_too() -> None:
    instance = replace(example(), rules=Rules(no_fuse=((GELU, SUM),)))
    with pytest.raises(RuleConflictError, match=r'no_fuse\("gelu", "sum"\); fuse\("gelu", "sum"\)'):
        solve(instance, SolveOptions(workers=1, rules=(fuse("gelu", "sum"),)))


def test_rules_of_the_instance_alone_are_named_by_op() -> None:
    rules = Rules(single_kernel=((GELU, SUM),), fuse=((3, 4),))
    with pytest.raises(RuleConflictError, match=r'fuse\("add", "gelu"\); single_kernel\(\["gelu", "sum"\]\)'):
        solve(replace(example(), rules=rules), SolveOptions(workers=1))


def test_what_is_obeyed_is_solved_under_the_rules() -> None:
    rules = (fuse("gelu", "sum"), barrier("scale"))
    ruled_instance = under_rules(example(), rules)
    result = solve(example(), SolveOptions(workers=1, rules=rules))
    kernels = {kernel.ops for kernel in result.solution.kernels}
    assert (0,) in kernels
    assert any({GELU, SUM} <= set(ops) for ops in kernels)
    assert result.solution.instance_digest == digest(ruled_instance)
    assert under_rules(ruled_instance, rules) == ruled_instance
    assert set(as_written(ruled_instance)) == set(rules)


def test_a_rule_that_matches_nothing_and_a_broken_instance_are_refused_first() -> None:
    with pytest.raises(RuleError, match=r"'gleu' matches no op.*'gelu'"):
        solve(example(), SolveOptions(rules=(barrier("gleu"),)))
    broken = replace(example(), edges=(*example().edges, Edge(SUM, 0)))
    with pytest.raises(InvalidInstanceError):
        solve(broken, SolveOptions(rules=(barrier("gelu"),)))
