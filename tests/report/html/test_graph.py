from __future__ import annotations

import json
from itertools import combinations

from optfuse.report.html.graph import graph_data
from tests.report.html.pages import contrast


def test_both_sides_hold_every_op_and_boxes_stay_apart() -> None:
    instance, result = contrast(2, 60, "g")

    data = graph_data(instance, result)

    json.dumps(data, allow_nan=False)
    for side, solution in zip(data["sides"], (result.greedy_solution, result.solution), strict=True):
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

    assert sum(saved for _, _, saved in data["differences"]) == result.greedy_objective - result.objective
    for before, after, _ in data["differences"]:
        ops = [
            sorted(op for number in numbers for op in data["sides"][side]["kernels"][number]["ops"])
            for side, numbers in enumerate((before, after))
        ]
        assert ops[0] == ops[1]


def test_a_module_of_another_schedule_is_not_shown() -> None:
    instance, result = contrast(2, 60, "g")

    data = graph_data(instance, result, "def call(inputs, constants):\n\n    # one step\n    aten.mm(a, b)\n")

    assert {kernel["code"] for side in data["sides"] for kernel in side["kernels"]} == {0}
    assert data["texts"][0] == ""
