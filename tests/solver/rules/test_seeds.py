"""Where greedy starts: the kernels that rules ask for, or a line that says why they may not be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import Edge, Instance, Rules
from optfuse.solver.rules.seeds import seed_groups
from tests.problem.cases import ADD, FLAT, GELU, MATMUL, ROWS, SCALE, SHIFT, SUM, example


def groups(instance: Instance) -> list[tuple[int, ...]]:
    return [group.ops for group in seed_groups(instance)]


def under(rules: Rules) -> Instance:
    return replace(example(), rules=rules)


def test_without_rules_every_op_is_a_group() -> None:
    assert groups(example()) == [(SCALE,), (SHIFT,), (MATMUL,), (ADD,), (GELU,), (SUM,)]


def test_fuse_joins_and_takes_in_what_lies_between() -> None:
    assert (ADD, GELU, SUM) in groups(under(Rules(fuse=((ADD, SUM),))))
    assert (ADD, GELU, SUM) in groups(under(Rules(fuse=((ADD, GELU), (GELU, SUM)))))


def test_groups_keep_their_legal_schemes() -> None:
    by_ops = {group.ops: group for group in seed_groups(under(Rules(fuse=((GELU, SUM),), barrier=(SCALE,))))}
    assert by_ops[(GELU, SUM)].schemes == {ROWS}
    assert not by_ops[(GELU, SUM)].closed
    assert by_ops[(SHIFT,)].schemes == {ROWS, FLAT}
    assert by_ops[(SCALE,)].closed


def test_single_kernels_are_closed() -> None:
    by_ops = {group.ops: group for group in seed_groups(under(Rules(single_kernel=((ADD, GELU),))))}
    assert by_ops[(ADD, GELU)].closed


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(fuse=((SCALE, ADD),)), ("matmul", "no scheme in common")),
        (Rules(single_kernel=((SCALE, ADD),)), ("path", "shift, matmul")),
        (Rules(fuse=((SHIFT, MATMUL),)), ("shift, matmul", "no scheme in common")),
        (Rules(single_kernel=((SHIFT, GELU),)), ("links", "gelu")),
    ],
)
def test_kernels_that_may_not_be(rules: Rules, words: tuple[str, ...]) -> None:
    with pytest.raises(IllegalKernelError) as caught:
        seed_groups(under(rules))
    assert all(word in str(caught.value) for word in words)


def test_two_rules_that_wait_for_each_other() -> None:
    plain = example()
    crossed = tuple(e for e in plain.edges if (e.src, e.dst) not in {(SHIFT, MATMUL), (MATMUL, ADD)})
    instance = replace(plain, edges=(*crossed, Edge(SHIFT, GELU)), limits=replace(plain.limits, connected=False))
    rules = Rules(single_kernel=((SCALE, GELU), (SHIFT, ADD)))
    with pytest.raises(IllegalKernelError):
        seed_groups(replace(instance, rules=rules))
