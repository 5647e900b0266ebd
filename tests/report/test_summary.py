from __future__ import annotations

import json

import pytest

from optfuse.report.summary import certificate, change, summary
from tests.report.cases import example, result_of, solution_of

PROMISED = (
    "name status objective bound gap greedy_objective ops kernels greedy_kernels blocks unique_blocks candidates "
    "wall_s peak_memory_bytes library_ops"
).split()


def test_the_record_is_plain_data_with_every_promised_key() -> None:
    instance = example()
    greedy, chosen = solution_of(instance, ((0, 1), 1), ((2,), 2)), solution_of(instance, ((0, 1, 2), 2))

    record = summary(instance, result_of(greedy, chosen), ["aten.mm.default", "aten.mm.default"])

    assert set(PROMISED) <= record.keys()
    assert json.loads(json.dumps(record)) == record
    assert (record["ops"], record["kernels"], record["greedy_kernels"]) == (3, 1, 2)
    assert record["library_ops"] == ["aten.mm.default"]
    assert "decisions" not in record
    assert summary(instance, result_of(greedy, chosen), (), ["3 values moved"])["decisions"] == ["3 values moved"]


def test_only_a_proven_result_is_called_optimal() -> None:
    instance = example()
    solution = solution_of(instance, ((0, 1, 2), 2))

    assert certificate(result_of(solution, solution)).startswith("proven optimal for the stated model")
    unproven = certificate(result_of(solution, solution, "FEASIBLE", 0.0213))
    assert unproven.startswith("not proven optimal")
    assert "2.13%" in unproven


@pytest.mark.parametrize(
    ("before", "after", "text"), [(200, 150, "-25.00%"), (100, 100, "+0.00%"), (0, 0, "-"), (0, 5, "new")]
)
def test_change(before: int, after: int, text: str) -> None:
    assert change(before, after) == text
