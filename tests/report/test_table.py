from __future__ import annotations

from dataclasses import replace

from optfuse.problem.instance import Variant
from optfuse.problem.solution import Kernel
from optfuse.report.table import differences, kernel_rows
from tests.report.cases import example, solution_of

MIB = 1 << 20
APART = (((0,), 0), ((1,), 0), ((2,), 0))


def test_a_row_says_what_the_kernel_reads_writes_and_costs() -> None:
    instance = example()
    solution = solution_of(instance, ((0, 1), 1), ((2,), 2))

    first, second = kernel_rows(instance, solution)

    assert first.ops == ("exp", "add")
    assert (first.read_bytes, first.write_bytes) == (4 * MIB, 4 * MIB)
    assert (second.read_bytes, second.write_bytes) == (4 * MIB, 4096)
    assert (second.scheme, second.x, second.r) == ("1024x1024", 1024, 1024)
    assert first.predicted_ps + second.predicted_ps == solution.objective


def test_live_bytes_count_inputs_outputs_and_what_waits_for_a_reader() -> None:
    instance = example()

    rows = kernel_rows(instance, solution_of(instance, *APART))

    # the input throughout, b and c from their writer to their reader, d at the end
    assert [row.live_bytes for row in rows] == [8 * MIB, 12 * MIB, 8 * MIB + 4096]


def test_equal_solutions_do_not_differ() -> None:
    instance = example()
    solution = solution_of(instance, *APART)

    assert differences(instance, solution, replace(solution, kernels=solution.kernels[::-1])) == ()


def test_a_difference_holds_the_kernels_that_share_ops_and_what_they_save() -> None:
    instance = example()
    before = solution_of(instance, *APART)
    after = solution_of(instance, ((0,), 0), ((1, 2), 2))

    (found,) = differences(instance, before, after)

    assert found.before == before.kernels[1:]
    assert found.after == after.kernels[1:]
    assert found.saved_ps == before.objective - after.objective


def test_alternatives_of_a_variant_are_one_difference() -> None:
    instance = replace(example(), variants=(Variant("either", ((0,), (1,))),))
    before = replace(solution_of(instance), kernels=(Kernel((0,), 0, (1,)),))
    after = replace(solution_of(instance), kernels=(Kernel((1,), 0, (2,)),))

    (found,) = differences(instance, before, after)

    assert (found.before, found.after) == (before.kernels, after.kernels)
