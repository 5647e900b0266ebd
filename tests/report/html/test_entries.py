from __future__ import annotations

from typing import Any

from optfuse.report.html.entries import KEPT_RECORDS, entries, failures, main_solver, thinned


def row(solver: str, **figures: Any) -> dict[str, Any]:
    return {"graph": "net.backward", "solver": solver, "outcome": "ok", "mode": "training", **figures}


def test_the_solver_with_a_proof_is_shown() -> None:
    assert main_solver(["greedy", "inductor", "cpsat"]) == "cpsat"
    assert main_solver(["greedy", "inductor"]) == "inductor"
    assert main_solver(["greedy"]) == "greedy"


def test_a_graph_is_one_entry_with_the_other_solvers_beside() -> None:
    rows = [
        row("cpsat", objective=90, greedy_objective=100, proven=True),
        row("greedy", objective=100, greedy_objective=100),
        row("inductor", objective=95),
    ]

    (entry,) = entries(rows)

    assert (entry["graph"], entry["model"], entry["kind"]) == ("net.backward", "net", "backward")
    assert (entry["objective"], entry["greedy"], entry["proven"]) == (90, 100, True)
    assert entry["others"] == {"inductor": 95}
    assert failures(rows) == []


def test_of_a_failed_solve_greedy_is_still_known() -> None:
    failed = {"outcome": "timeout", "stage": "solve", "reason": "no end", "objective": None, "greedy_objective": None}
    rows = [row("cpsat", **failed), row("greedy", objective=100, greedy_objective=100)]

    (entry,) = entries(rows)

    assert (entry["objective"], entry["greedy"], entry["outcome"], entry["reason"]) == (None, 100, "timeout", "no end")
    assert [found["reason"] for found in failures(rows)] == ["no end"]


def test_a_reason_that_holds_for_several_solvers_is_told_once() -> None:
    refused = {"outcome": "refused", "stage": "capture", "reason": "no inputs()"}
    rows = [row("cpsat", **refused), row("greedy", **refused), row("inductor", **{**refused, "stage": "solve"})]

    assert [(found["solver"], found["stage"]) for found in failures(rows)] == [
        ("cpsat, greedy", "capture"),
        ("inductor", "solve"),
    ]


def test_an_instance_of_a_library_has_no_kind_in_its_name() -> None:
    (entry,) = entries([{**row("cpsat"), "graph": "some.instance.v2", "mode": "instance"}])

    assert (entry["model"], entry["kind"]) == ("some.instance.v2", "instance")


def test_records_are_thinned_to_a_few_with_both_ends() -> None:
    records = [[float(k), 10, 1] for k in range(1000)]

    kept = thinned(records)

    assert len(kept) == KEPT_RECORDS
    assert (kept[0], kept[-1]) == (records[0], records[-1])
    assert thinned(records[:3]) == records[:3]
