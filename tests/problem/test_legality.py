"""Legality on bitmasks says what the checker says, set by set; and says why, by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings

from optfuse.problem.checker import check
from optfuse.problem.instance import ALONE, Edge, Instance, Limits, Offer, Op, Rules, Variant
from optfuse.problem.legality import common_schemes, is_legal, legal_index, why_illegal
from optfuse.problem.op_masks import bits, mask_of
from optfuse.problem.reach import Reach
from optfuse.problem.serialize import digest
from optfuse.problem.solution import Kernel, Solution
from tests.problem.cases import ADD, FLAT, GELU, MATMUL, ROWS, SCALE, SHIFT, SUM, example
from tests.strategies import SCHEMES, instances, share

KERNEL_CODES = {"scheme", "edge", "convexity", "connectivity", "device", "limit", "rule", "variant"}


def checker_accepts(instance: Instance, ops: tuple[int, ...], scheme: int, running: set[int]) -> bool:
    """Whether the checker finds no fault with a kernel when the rest of the running ops are on their own."""
    kernels = [Kernel(ops, scheme)]
    kernels += [Kernel((op,), instance.ops[op].offers[0].scheme) for op in sorted(running - set(ops))]
    solution = Solution(instance.name, digest(instance), tuple(kernels))
    return not {violation.code for violation in check(instance, solution)} & KERNEL_CODES


def choices(instance: Instance) -> list[set[int]]:
    """Every set of ops that may run."""
    optional = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    always = set(range(len(instance.ops))) - optional
    return [always.union(*chosen) for chosen in product(*(variant.alternatives for variant in instance.variants))]


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(max_ops=6, rules=True))
def test_agrees_with_the_checker_on_every_set(instance: Instance) -> None:
    everything = set(range(len(instance.ops)))
    for size in range(1, len(instance.ops) + 1):
        for ops in combinations(range(len(instance.ops)), size):
            for scheme in range(len(SCHEMES)):
                assert is_legal(instance, ops, scheme) == checker_accepts(instance, ops, scheme, everything)


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(max_ops=6, variants=True, rules=True))
def test_never_refuses_what_some_choice_of_alternatives_allows(instance: Instance) -> None:
    for running in choices(instance):
        for size in range(1, len(running) + 1):
            for ops in combinations(sorted(running), size):
                for scheme in common_schemes(instance, ops):
                    if checker_accepts(instance, ops, scheme, running):
                        assert is_legal(instance, ops, scheme)


@pytest.mark.parametrize(
    ("ops", "scheme", "words"),
    [
        ((SUM,), FLAT, ("flat", "not offered", "sum")),
        ((SHIFT, MATMUL), FLAT, ("not offered", "matmul")),
        ((SCALE, SHIFT, ADD), FLAT, ("path", "matmul")),
        ((SHIFT, GELU), FLAT, ("links", "shift", "gelu")),
        ((GELU, SUM), FLAT, ("flat", "sum")),
        ((), FLAT, ("at least one",)),
    ],
)
def test_says_why(ops: tuple[int, ...], scheme: int, words: tuple[str, ...]) -> None:
    reason = why_illegal(example(), ops, scheme)
    assert reason is not None
    assert all(word in reason for word in words)


@pytest.mark.parametrize(
    ("rules", "ops", "word"),
    [
        (Rules(fuse=((GELU, SUM),)), (GELU,), "fuse"),
        (Rules(single_kernel=((ADD, GELU, SUM),)), (ADD, GELU), "single_kernel"),
        (Rules(barrier=(GELU,)), (ADD, GELU), "barrier"),
        (Rules(no_fuse=((ADD, GELU),)), (ADD, GELU), "no_fuse"),
    ],
)
def test_rules(rules: Rules, ops: tuple[int, ...], word: str) -> None:
    reason = why_illegal(replace(example(), rules=rules), ops, ROWS)
    assert reason is not None
    assert word in reason


def test_limits_spare_an_op_on_its_own() -> None:
    heavy = replace(example(), limits=Limits(max_weight=0))
    assert is_legal(heavy, (SCALE,), FLAT)
    assert not is_legal(heavy, (SCALE, SHIFT), FLAT)


def test_alone_holds_one_op() -> None:
    assert is_legal(example(), (MATMUL,), ALONE)
    assert common_schemes(example(), (SCALE, SHIFT)) == (ROWS, FLAT)


def test_reach_of_the_example() -> None:
    reach = Reach.of(example())
    assert set(bits(reach.descendants[SHIFT])) == {MATMUL, ADD, GELU, SUM}
    assert set(bits(reach.ancestors[MATMUL])) == {SCALE, SHIFT}
    assert set(bits(reach.between(mask_of((SCALE, ADD))))) == {SHIFT, MATMUL}
    assert reach.is_convex(mask_of((ADD, GELU, SUM)))


def paths(instance: Instance, running: set[int]) -> set[tuple[int, int]]:
    """The pairs of running ops that a path of running ops connects."""
    found: set[tuple[int, int]] = set()
    for op in sorted(running, reverse=True):
        after = {edge.dst for edge in instance.edges if edge.src == op and edge.dst in running}
        found |= {(op, other) for other in after} | {(op, far) for near, far in found if near in after}
    return found


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(instances(min_ops=5, max_ops=9, variants=True))
def test_what_is_reached_is_reached_whichever_alternatives_run(instance: Instance) -> None:
    """And what each choice's paths of running ops reach through ops that run in any case is found."""
    reach = legal_index(instance).reach()
    certain = {op for op in range(len(instance.ops)) if reach.active >> op & 1}
    found = {(op, far) for op in certain for far in bits(reach.descendants[op])}
    assert found == {(near, op) for op in certain for near in bits(reach.ancestors[op])}
    everywhere = [paths(instance, running) for running in choices(instance)]
    mandatory = legal_index(instance).mandatory
    assert {(a, b) for a, b in found if mandatory >> a & mandatory >> b & 1} <= set.intersection(*everywhere)
    assert {(a, b) for a, b in found if a in certain} >= paths(instance, certain)


def test_a_path_through_a_variant_whose_alternatives_all_lead_on_is_certain() -> None:
    """A value is concatenated by two ops or by one; ops on both sides of that are no kernel."""
    first, (part, whole, joined), last = 0, (1, 2, 3), 4
    edges = ((first, part), (part, whole), (whole, last), (first, joined), (joined, last))
    instance = bare(5, edges, Variant("cat", ((part, whole), (joined,))))
    reach = legal_index(instance).reach()
    assert set(bits(reach.descendants[first])) == {last}
    assert set(bits(reach.ancestors[last])) == {first}
    dead_end = bare(5, edges[:-1], Variant("cat", ((part, whole), (joined,))))
    assert not legal_index(dead_end).reach().descendants[first]


def bare(count: int, edges: tuple[tuple[int, int], ...], variant: Variant) -> Instance:
    """Ops without accesses."""
    ops = tuple(Op(str(op), "loop", (Offer(FLAT),)) for op in range(count))
    links = tuple(Edge(src, dst, None, (FLAT,)) for src, dst in edges)
    return Instance("bare", example().devices, SCHEMES, (), ops, links, (variant,))
