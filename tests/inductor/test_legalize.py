"""Any grouping of ops becomes a schedule that the checker accepts, changed no more than legality asks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.inductor.legalize import legalize
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.problem.recompute import recomputable_ops
from optfuse.solver.baseline.greedy import greedy, greedy_partition
from tests.inductor.models import rows_added, small
from tests.strategies import instances, share


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Instance, list[set[int]]]:
    """An instance and sets of its ops: some ops in none, some in several."""
    instance = draw(instances(recompute=True))
    ops = st.sets(st.sampled_from(range(len(instance.ops))), max_size=6)
    return instance, draw(st.lists(ops, max_size=4))


@given(grouped())
@settings(max_examples=share(150), deadline=None)
def test_every_grouping_becomes_a_schedule(case: tuple[Instance, list[set[int]]]) -> None:
    instance, sets = case
    found = legalize(instance, sets)
    assert check(instance, found.solution) == ()
    held = {op for kernel in found.solution.kernels for op in kernel.ops}
    assert held == set(range(len(instance.ops)))
    several = [op for op in held if sum(op in kernel.ops for kernel in found.solution.kernels) > 1]
    assert all(recomputable_ops(instance) >> op & 1 for op in several)


@given(instances())
@settings(max_examples=share(60), deadline=None)
def test_a_legal_partition_is_kept(instance: Instance) -> None:
    partition = [ops for ops, _ in greedy_partition(instance).partition]
    found = legalize(instance, partition)
    assert sorted(kernel.ops for kernel in found.solution.kernels) == sorted(partition)
    assert (found.splits, found.once) == ((), ())
    assert found.solution.objective == greedy(instance).objective


def test_what_cannot_share_a_kernel_is_split_and_said() -> None:
    _, extraction = small()
    instance = extraction.instance
    everything = set(range(len(instance.ops)))
    found = legalize(instance, [everything])
    ((place, _, kernels),) = found.splits
    assert (place, kernels) == (0, len(found.solution.kernels))
    assert [set(kernel.ops) for kernel in found.solution.kernels] == [
        set(kernel.ops) for kernel in greedy(instance).kernels
    ]


def test_an_op_of_no_set_joins_a_neighbour() -> None:
    _, extraction = small()
    instance = extraction.instance
    whole = [set(kernel.ops) for kernel in greedy(instance).kernels]
    largest = max(whole, key=len)
    first = min(largest)
    found = legalize(instance, [kernel - {first} for kernel in whole])
    assert largest in [set(kernel.ops) for kernel in found.solution.kernels]


def test_an_op_given_twice_is_computed_twice_only_where_it_may_be() -> None:
    _, extraction = small()
    instance = extraction.instance
    names = {op.name: number for number, op in enumerate(instance.ops)}
    rsqrt, norm, sub = names["rsqrt"], names["var_mean"], names["sub"]
    found = legalize(instance, [{norm, names["add"], rsqrt}, {norm, rsqrt, sub, names["mul"], names["mul_1"]}])
    assert found.once == (norm,)
    assert sum(rsqrt in kernel.ops for kernel in found.solution.kernels) == 2
    assert check(instance, found.solution) == ()


def test_what_is_written_in_two_steps_keeps_its_first_step_beside_recomputed_producers() -> None:
    instance = rows_added().instance
    op = {found.name: number for number, found in enumerate(instance.ops)}
    rows = {op["add"], op["tanh"]}
    found = legalize(instance, [{*rows, op["index_add_1"]}, {op["index_add"]}, {*rows, op["exp"]}])
    assert check(instance, found.solution) == ()
    assert sum(op["tanh"] in kernel.ops for kernel in found.solution.kernels) == 2
