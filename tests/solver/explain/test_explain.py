"""Explanations against all partitions as the checker judges them, and in words on a small example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.errors import IllegalKernelError, RuleError
from optfuse.problem.checker import check
from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Limits, Offer, Op, Read, Rules, Variant, Write
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.explain.explain import explain
from optfuse.solver.explain.explanation import Explanation
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.rules.groups import rules_status
from optfuse.solver.solve import solve
from tests.problem.cases import ADD, GELU, MATMUL, SCALE, SHIFT, SUM, answer, claims, example, with_kernels
from tests.solver.baseline.test_exhaustive import partitions
from tests.solver.test_rules import ruled
from tests.strategies import SCHEMES, instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ONE_WORKER = SolveOptions(workers=1, deterministic=True)


def solutions(instance: Instance) -> Iterator[Solution]:
    """Every partition in every scheme that the checker accepts."""
    optional = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    always = [op for op in range(len(instance.ops)) if op not in optional]
    offered = [{offer.scheme for offer in op.offers} for op in instance.ops]
    for chosen in product(*(variant.alternatives for variant in instance.variants)):
        for groups in partitions(sorted([*always, *(op for alternative in chosen for op in alternative)])):
            schemes = [[s for s in range(len(SCHEMES)) if all(s in offered[op] for op in group)] for group in groups]
            for choice in product(*schemes):
                try:
                    found = assemble(instance, list(zip(groups, choice, strict=True)))
                except IllegalKernelError:
                    continue
                if not check(instance, found):
                    yield found


@dataclass
class Best:
    """The least cost of the solutions with a pair in one kernel, and of those without."""

    together: int | None = None
    apart: int | None = None


def best(instance: Instance, left: int, right: int) -> Best:
    found = Best()
    for solution in solutions(instance):
        side = "together" if any({left, right} <= set(kernel.ops) for kernel in solution.kernels) else "apart"
        known = getattr(found, side)
        setattr(found, side, solution.objective if known is None else min(known, solution.objective))
    return found


def agrees(instance: Instance, left: int, right: int, solution: Solution) -> None:
    expected = best(instance, left, right)
    found = explain(instance, solution, instance.ops[left].name, instance.ops[right].name, options=ONE_WORKER)
    assert found.together == any({left, right} <= set(kernel.ops) for kernel in solution.kernels)
    optimum = min(cost for cost in (expected.together, expected.apart) if cost is not None)
    assert (found.plan.objective, found.plan.bound) == (solution.objective, optimum)
    opposite = expected.apart if found.together else expected.together
    if opposite is None:
        assert found.verdict == ("required" if found.together else "illegal")
        assert found.reasons
        assert found.other is None
        return
    assert found.other is not None
    assert (found.other.objective, found.other.bound) == (opposite, opposite)
    difference = opposite - solution.objective
    assert found.verdict == ("dearer" if difference > 0 else "cheaper" if difference < 0 else "tie")


@settings(QUIET, max_examples=share(80))
@given(st.data())
def test_agrees_with_all_partitions(data: st.DataObject) -> None:
    instance = data.draw(instances(min_ops=2, max_ops=5, variants=True, rules=True))
    pairs(data, instance)


@settings(QUIET, max_examples=share(80))
@given(st.data())
def test_agrees_with_all_partitions_under_rules(data: st.DataObject) -> None:
    instance = data.draw(ruled(instances(min_ops=3, max_ops=5)))
    if rules_status(instance) == "possible":
        pairs(data, instance)


def pairs(data: st.DataObject, instance: Instance) -> None:
    op = st.integers(0, len(instance.ops) - 1)
    left, right = data.draw(st.lists(op, min_size=2, max_size=2, unique=True))
    options = replace(ONE_WORKER, solver=data.draw(st.sampled_from(["cpsat", "greedy"])))
    agrees(instance, left, right, solve(instance, options).solution)


def about(a: str, b: str, instance: Instance | None = None, solution: Solution | None = None) -> Explanation:
    instance = example() if instance is None else instance
    return explain(instance, solution or solve(instance, ONE_WORKER).solution, a, b, options=ONE_WORKER)


def test_a_library_op_between_two_is_named_with_the_path() -> None:
    found = about("scale", "add")
    assert (found.together, found.verdict, found.other) == (False, "illegal", None)
    (reason,) = found.reasons
    assert (reason.code, reason.schemes) == ("cycle", ("rows", "flat"))
    assert "matmul, a library call, lies between them and always runs alone" in reason.text
    assert reason.path == ("scale", "shift", "matmul", "add")
    assert "path: scale -> shift -> matmul -> add" in str(found)
    assert found.shared[0].buffer == "a"
    assert "1,048,576 bytes" in str(found)


def test_a_library_op_runs_alone() -> None:
    found = about("matmul", "add")
    assert [reason.code for reason in found.reasons] == ["scheme"]
    assert "matmul, a library call, always runs alone" in str(found)


def test_what_together_saves() -> None:
    found = about("gelu", "sum")
    assert (found.together, found.verdict) == (True, "dearer")
    assert found.difference is not None
    assert found.difference > 0
    assert "Together saves" in str(found)
    assert "Both are proven optimal" in str(found)


def test_no_scheme_in_common() -> None:
    plain = example()
    flat = replace(plain.ops[GELU], offers=plain.ops[GELU].offers[1:])
    edges = tuple(
        e if e.dst != GELU and e.src != GELU else replace(e, schemes=(2,)[: e.src == ADD]) for e in plain.edges
    )
    instance = replace(plain, ops=(*plain.ops[:GELU], flat, *plain.ops[SUM:]), edges=edges)
    found = about("gelu", "sum", instance)
    assert [reason.code for reason in found.reasons] == ["scheme"]
    assert "no scheme in common: gelu in flat and sum in rows can run" in str(found)


def test_the_most_specific_reason_is_given_for_a_value_that_cannot_pass() -> None:
    plain = example()
    edges = tuple(replace(e, schemes=()) if (e.src, e.dst) == (ADD, GELU) else e for e in plain.edges)
    instance = replace(plain, edges=edges)
    assert "cannot pass to gelu in registers" in str(about("add", "gelu", instance))

    class Known:
        def edge(self, source: int, target: int, scheme: int) -> str:
            return f"index: {source} {target} {scheme}"

        def no_scheme(self, left: int, right: int) -> None:
            return None

    found = explain(instance, solve(instance, ONE_WORKER).solution, "add", "gelu", options=ONE_WORKER, details=Known())
    assert [(r.code, r.text, r.schemes) for r in found.reasons] == [
        ("index", f"index: {ADD} {GELU} 1", ("rows",)),
        ("index", f"index: {ADD} {GELU} 2", ("flat",)),
    ]
    # add and sum would take gelu along, which add cannot feed.
    (reason,) = about("add", "sum", instance).reasons
    assert (reason.code, reason.path) == ("cycle", ("add", "gelu", "sum"))


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"limits": Limits(max_ops=2)}, "limit", "more than 2 ops"),
        ({"rules": Rules(barrier=(GELU,))}, "rule", "barrier"),
        ({"rules": Rules(no_fuse=((ADD, SUM),))}, "rule", "no_fuse"),
        ({"rules": Rules(single_kernel=((ADD, GELU),))}, "rule", "single_kernel"),
        ({"rules": Rules(no_fuse=((GELU, SUM),))}, "rule", "no_fuse"),
    ],
)
def test_limits_and_rules(change: dict[str, object], code: str, words: str) -> None:
    found = about("add", "sum", replace(example(), **change))  # type: ignore[arg-type]
    assert found.verdict == "illegal"
    assert {reason.code for reason in found.reasons} == {code}
    assert all(words in reason.text for reason in found.reasons)


def test_devices() -> None:
    plain = example()
    other = replace(plain.devices[0], name="other")
    ops = (*plain.ops[:SUM], replace(plain.ops[SUM], device=1))
    found = about("gelu", "sum", replace(plain, devices=(*plain.devices, other), ops=ops))
    assert [(reason.code, reason.text) for reason in found.reasons] == [("device", "gelu runs on tiny, sum on other")]


def test_nothing_links_two_ops() -> None:
    plain = example()
    buffers = (*plain.buffers, Buffer("y", 1 << 20, "input"), Buffer("z", 1 << 20, output=True))
    lone = Op("lone", "loop", tuple(Offer(s, (Read(8, 1 << 20),), (Write(9, 1 << 20),)) for s in (1, 2)))
    instance = replace(plain, buffers=buffers, ops=(*plain.ops, lone))
    found = about("gelu", "lone", instance)
    assert [reason.code for reason in found.reasons] == ["connection"]
    assert "no path leads from one to the other" in str(found)

    # Where both read a third op's input alike, that op can link them; it comes along when they are forced together.
    linking = Op(
        "linking", "loop", tuple(Offer(s, (Read(8, 1 << 20), Read(4, 1 << 20)), (Write(10, 64),)) for s in (2,))
    )
    third = replace(
        instance,
        buffers=(*buffers, Buffer("k", 64, output=True)),
        ops=(*instance.ops, linking),
        edges=(*plain.edges, Edge(ADD, 7, 4, (2,))),
    )
    found = about("gelu", "lone", third)
    assert found.other is not None or found.together
    assert found.together or "linking" in found.other_kernel


def test_a_rule_that_asks_for_it() -> None:
    found = about("gelu", "sum", replace(example(), rules=Rules(fuse=((GELU, SUM),))))
    assert (found.together, found.verdict) == (True, "required")
    assert 'fuse("gelu", "sum")' in str(found)


def test_an_op_and_itself() -> None:
    found = about("gelu", "gelu")
    assert (found.verdict, found.other) == ("same_op", None)
    assert "always with itself" in str(found)


def test_names_that_match_nothing_or_too_much() -> None:
    with pytest.raises(RuleError, match=r"'gleu' matches no op of 'example'; the nearest names are 'gelu'"):
        about("gleu", "sum")
    with pytest.raises(RuleError, match=r"'s\*' matches 3 ops"):
        about("s*", "add")


def test_a_schedule_that_is_not_optimal() -> None:
    found = about("gelu", "sum", solution=answer(example()))
    assert (found.together, found.verdict) == (False, "cheaper")
    assert "Not optimal" in str(found)


def test_over_the_cap() -> None:
    plain = example()
    wide = replace(plain, buffers=tuple(replace(b, bytes=8 << 20) if b.name == "e" else b for b in plain.buffers))
    least = solve(wide, ONE_WORKER).solution.peak_bytes
    found = about("gelu", "sum", replace(wide, rules=Rules(peak_memory=least)))
    assert (found.together, found.verdict, found.cap) == (True, "over_cap", least)
    assert found.other is not None
    assert found.other.peak_bytes > least
    assert f"Over the memory cap of {least:,} bytes" in str(found)


def test_ops_of_alternatives() -> None:
    plain = example()
    fast = Op("fast", "library", (replace(plain.ops[GELU].offers[0], scheme=ALONE),))
    ops = (*plain.ops[:SUM], fast, plain.ops[SUM])
    edges = [e if e.dst != SUM else replace(e, dst=SUM + 1) for e in plain.edges]
    edges += [Edge(ADD, SUM, 4), Edge(SUM, SUM + 1, 6)]
    instance = replace(plain, ops=ops, edges=tuple(edges), variants=(Variant("gelus", ((GELU,), (SUM,))),))
    found = about("gelu", "fast", instance)
    assert [reason.code for reason in found.reasons] == ["variant"]
    assert "fast does not run" in str(found)
    assert "of which one runs" in str(found)


def test_an_op_computed_twice() -> None:
    plain = example()
    twice = replace(plain, ops=(replace(plain.ops[SCALE], recompute=True), *plain.ops[SHIFT:]))
    solution = claims(
        twice,
        with_kernels(
            answer(plain),
            Kernel((SCALE, SHIFT), 2, (3,)),
            Kernel((MATMUL,), ALONE, (5,)),
            Kernel((SCALE, ADD, GELU), 2, (4, 6)),
            Kernel((SUM,), 1, (7,)),
        ),
    )
    found = about("scale", "gelu", twice, solution)
    assert found.together
    assert found.a.kernels == (0, 2)
    assert "computed in 2 kernels" in str(found)


def test_plain_data() -> None:
    data = about("scale", "add").to_plain()
    assert data["verdict"] == "illegal"
    assert data["reasons"][0]["path"] == ("scale", "shift", "matmul", "add")
    assert data["difference"] is None
