from __future__ import annotations

from hypothesis import given

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal
from optfuse.report.flow import flow
from optfuse.report.html.reasons import Separations
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.layered import layered
from tests.report.cases import example, solution_of


def why(instance: Instance, *parts: tuple[tuple[int, ...], int]) -> str:
    """The reason on the last arrow of some kernels."""
    solution = solution_of(instance, *parts)
    arrows = flow(instance, solution).arrows
    return Separations(instance, solution, arrows).why(arrows[-1].src, arrows[-1].dst)


def test_what_greedy_would_have_missed_has_its_price() -> None:
    instance = example()
    parts = (((0, 1), 2), ((2,), 2))
    apart = sum(kernel_cost(instance, *part) for part in parts)
    together = kernel_cost(instance, (0, 1, 2), 2)

    found = why(instance, *parts)

    assert found.startswith(f"as one kernel they would be cheaper by {(apart - together) / 1e6:.2f} us")


@given(layered(4, 30))
def test_every_arrow_has_a_reason_that_legality_bears_out(instance: Instance) -> None:
    solution = solve(instance, SolveOptions(solver="greedy", order="program")).solution
    arrows = flow(instance, solution).arrows
    separations = Separations(instance, solution, arrows)

    for arrow in arrows:
        found = separations.why(arrow.src, arrow.dst)

        pair = [solution.kernels[k] for k in (arrow.src, arrow.dst)]
        ops = sorted({op for kernel in pair for op in kernel.ops})
        alone = any(instance.ops[kernel.ops[0]].kind != "loop" for kernel in pair)
        legal = [scheme for scheme in common_schemes(instance, ops) if is_legal(instance, ops, scheme)]
        assert (found == "a library call always runs alone") == alone
        assert found.startswith("illegal as one kernel") == (not legal and not alone)
        if "dearer" in found:
            apart = sum(kernel_cost(instance, kernel.ops, kernel.scheme, kernel.writes) for kernel in pair)
            assert min(kernel_cost(instance, ops, scheme) for scheme in legal) > apart
