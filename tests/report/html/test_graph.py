from __future__ import annotations

import json
from itertools import combinations

from optfuse.report.html.graph import graph_data
from optfuse.solver.solve import solve
from tests.report.html.pages import contrast
from tests.solver.overlap.test_overlap import OPTIONS, TWO_GRADIENTS, US, instance_of


def test_both_sides_hold_every_op_and_boxes_stay_apart() -> None:
    instance, result = contrast(2, 60, "g")

    data = graph_data(instance, result)

    json.dumps(data, allow_nan=False)
    sides = (data["beside"][0]["side"], data["chosen"])
    for side, solution in zip(sides, (result.greedy_solution, result.solution), strict=True):
        assert [kernel["ops"] for kernel in side["kernels"]] == [list(kernel.ops) for kernel in solution.kernels]
        assert sum(kernel["cost"] for kernel in side["kernels"]) == solution.objective
        assert max(kernel["live"] for kernel in side["kernels"]) >= 0
        for a, b in combinations([kernel["box"] for kernel in side["kernels"]], 2):
            assert a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3] <= a[1]
        for source, target, size, buffers, reason, bends in side["arrows"]:
            assert source < target
            assert (size > 0) == bool(buffers)
            assert data["texts"][reason]
            assert len(bends) % 2 == 0


def test_differences_name_kernels_of_each_side() -> None:
    instance, result = contrast(2, 60, "g")

    data = graph_data(instance, result)

    (greedy,) = data["beside"]
    assert sum(saved for _, _, saved in greedy["differences"]) == result.greedy_objective - result.objective
    for before, after, _ in greedy["differences"]:
        ops = [
            sorted(op for number in numbers for op in side["kernels"][number]["ops"])
            for side, numbers in ((greedy["side"], before), (data["chosen"], after))
        ]
        assert ops[0] == ops[1]


def test_a_module_of_another_schedule_is_not_shown() -> None:
    instance, result = contrast(2, 60, "g")

    data = graph_data(instance, result, "def call(inputs, constants):\n\n    # one step\n    aten.mm(a, b)\n")

    assert {kernel["code"] for side in (data["beside"][0]["side"], data["chosen"]) for kernel in side["kernels"]} == {0}
    assert data["texts"][0] == ""


def test_other_solutions_may_stand_beside_the_chosen_one() -> None:
    instance, result = contrast(2, 60, "g")

    data = graph_data(instance, result, others={"inductor": result.solution})

    assert [other["name"] for other in data["beside"]] == ["greedy", "inductor"]
    assert data["beside"][1]["differences"] == []
    assert data["beside"][1]["objective"] == result.objective


def test_a_graph_that_communicates_has_its_lanes_and_no_other_has() -> None:
    instance = instance_of(TWO_GRADIENTS)

    data = graph_data(instance, solve(instance, OPTIONS))

    sides = (data["beside"][0]["side"], data["chosen"])
    assert [side["lanes"]["makespan"] for side in sides] == [22 * US, 17 * US]
    assert [side["lanes"]["exposed_ps"] for side in sides] == [12 * US, 7 * US]
    assert data["overlap"] == {"bound": 17 * US}
    assert all(len(side["lanes"]["launches"]) == 7 for side in sides)
    assert sides[0]["lanes"]["communicators"] == [[1, [[1, 4 * US, 10 * US], [4, 15 * US, 21 * US]]]]
    plain = graph_data(*contrast(2, 60, "g"))
    assert "overlap" not in plain
    assert "lanes" not in plain["chosen"]
