from __future__ import annotations

from hypothesis import given

from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.report.flow import Arrow, flow
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.layered import layered
from tests.report.cases import example, solution_of


def test_arrows_carry_what_one_kernel_writes_and_another_reads() -> None:
    instance = example()
    solution = solution_of(instance, ((0, 1), 1), ((2,), 2))
    (written,) = solution.kernels[0].writes
    size = instance.buffers[written].bytes

    found = flow(instance, solution)

    assert found.arrows == (Arrow(0, 1, size, (written,)),)
    assert found.inputs == (instance.buffers[0].bytes, 0)
    assert found.outputs == (0, instance.buffers[solution.kernels[1].writes[0]].bytes)


@given(layered(4, 30))
def test_arrows_and_inputs_are_what_the_price_says_is_read(instance: Instance) -> None:
    solution = solve(instance, SolveOptions(solver="greedy")).solution

    found = flow(instance, solution)

    read = list(found.inputs)
    for arrow in found.arrows:
        assert arrow.src < arrow.dst
        read[arrow.dst] += arrow.bytes
    prices = [kernel_price(instance, k.ops, k.scheme, k.writes) for k in solution.kernels]
    assert read == [price.read_bytes for price in prices]
