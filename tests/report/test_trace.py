"""The trace against the rules of the trace-event format ("Trace Event Format", the document of Chrome's catapult)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from optfuse.errors import OutputError
from optfuse.report.summary import communication
from optfuse.report.table import kernel_rows
from optfuse.report.trace import save_trace, trace
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve
from tests.layered import build
from tests.report.cases import example, result_of, solution_of
from tests.solver.overlap.test_overlap import OPTIONS, TWO_GRADIENTS, instance_of

#: Metadata that viewers know, and the argument that each has.
METADATA = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def judge(document: dict[str, Any]) -> None:
    """Fail where a document breaks the format: the JSON object form, with complete, counter and metadata events."""
    assert isinstance(document["traceEvents"], list)
    assert document.get("displayTimeUnit", "ms") in ("ms", "ns")
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        match event["ph"]:
            case "M":
                assert METADATA[event["name"]] in event["args"]
            case "X":
                assert isinstance(event["cat"], str)
                assert event["ts"] >= 0
                assert event["dur"] >= 0
                assert isinstance(event["args"], dict)
                assert (event["pid"], event["tid"]) in named
            case "C":
                assert event["ts"] >= 0
                assert event["args"]
                assert all(isinstance(value, (int, float)) for value in event["args"].values())
            case other:
                pytest.fail(f"no phase of ours: {other}")


def one(document: dict[str, Any], phase: str, process: int) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == phase and e["pid"] == process]


def solved() -> tuple[Any, SolveResult]:
    instance = build(7, 40)
    return instance, solve(instance, SolveOptions(solver="greedy"))


def test_the_trace_is_of_the_format_and_plain_json(tmp_path: Path) -> None:
    instance, result = solved()

    save_trace(instance, result, tmp_path / "trace.json")

    document = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)
    judge(document)
    assert document == trace(instance, result)


def test_kernels_follow_each_other_and_take_the_predicted_time() -> None:
    instance, result = solved()

    document = trace(instance, result)

    slices = one(document, "X", 1)
    assert len(slices) == len(result.solution.kernels)
    assert {event["tid"] for event in slices} == {1, 2}
    for event, after in pairwise(slices):
        assert event["ts"] + event["dur"] == pytest.approx(after["ts"])
    assert slices[-1]["ts"] + slices[-1]["dur"] == pytest.approx(result.objective / 1e6)


def test_the_counter_is_live_memory() -> None:
    instance, result = solved()

    counters = one(trace(instance, result), "C", 1)

    rows = kernel_rows(instance, result.solution)
    assert [event["args"]["bytes"] for event in counters[:-1]] == [row.live_bytes for row in rows]
    assert max(event["args"]["bytes"] for event in counters) == result.solution.peak_bytes
    assert counters[-1]["ts"] == pytest.approx(result.objective / 1e6)


def test_greedy_is_a_process_of_its_own() -> None:
    instance = example()
    greedy, chosen = solution_of(instance, ((0, 1), 1), ((2,), 2)), solution_of(instance, ((0, 1, 2), 2))

    document = trace(instance, result_of(greedy, chosen))

    judge(document)
    assert [len(one(document, "X", process)) for process in (1, 2)] == [1, 2]


def test_a_file_in_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    instance, result = solved()

    with pytest.raises(OutputError, match="No such file"):
        save_trace(instance, result, tmp_path / "missing" / "trace.json")


def test_a_graph_that_communicates_has_a_thread_for_the_device_and_for_each_communicator() -> None:
    ops = [*TWO_GRADIENTS]
    ops[4] = ("collective", 6, 2, (3,))
    instance = instance_of(ops, slowdown=30)
    result = solve(instance, OPTIONS)
    assert result.statistics.overlap is not None

    document = trace(instance, result)

    judge(document)
    assert document["otherData"]["communication"] == communication(result)
    for process, makespan, exposed in ((1, result.statistics.overlap.makespan, 6.0), (2, 22_000_000, 12.0)):
        slices = one(document, "X", process)
        named = [e["args"]["name"] for e in one(document, "M", process) if e["name"] == "thread_name"]
        assert named == ["kernels", "communicator 1", "communicator 2"]
        for thread in (1, 2, 3):
            spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == thread)
            assert all(end <= then + 1e-6 for (_, end), (then, _) in pairwise(spans))
        assert sorted(e["name"] for e in slices if e["tid"] > 1) == sorted(
            e["name"] for e in slices if e["cat"] == "collective"
        )
        assert sum(e["dur"] for e in slices if e["cat"] == "exposed") == pytest.approx(exposed)
        assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(makespan / 1e6)
        counters = one(document, "C", process)
        assert max(event["ts"] for event in counters) == pytest.approx(makespan / 1e6)
