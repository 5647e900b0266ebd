"""Savings by the model against savings on the clock: signs, noise, and the tables."""

from __future__ import annotations

from typing import Any

import pytest

from optfuse.lab.bench.thesis import thesis, thesis_markdown


def ran(ms: float, *, spread: float = 0.0, **more: Any) -> dict[str, Any]:
    low, high = ms * (1 - spread / 2), ms * (1 + spread / 2)
    return {"status": "ok", "median_ms": ms, "low_ms": low, "high_ms": high, "runs": 25, **more}


def planned(greedy: int, objective: int) -> dict[str, Any]:
    return {"schedules": [{"greedy_objective": greedy, "objective": objective}]}


def graph(priced: int | None, *, whole: int = 0) -> dict[str, Any]:
    counts = {"whole": whole, "part": 1, "apart": 0, "absent": 0, "buffers": 9, "free": 1}
    return {"on_our_graph": [{"greedy": 110, "ours": 100, "priced": priced, "imposed": counts}]}


def document(**rows: dict[str, Any]) -> dict[str, Any]:
    return {"rows": [{"row": name, "systems": systems} for name, systems in rows.items()]}


def test_a_saving_is_held_against_the_clock() -> None:
    systems = {
        "optfuse-greedy-graphs": ran(10.0, triton_ms=4.0),
        "optfuse-graphs": ran(9.0, triton_ms=3.0, **planned(200, 190)),
        "inductor-own": ran(12.0, **graph(125)),
        "inductor-imposed": ran(12.6, **graph(None, whole=7)),
        "inductor-imposed-greedy": ran(14.0, **graph(None)),
    }
    (row,) = thesis(document(a=systems))
    assert row.ours is not None
    assert row.own is not None
    assert row.inductor is not None
    assert (row.ours.predicted, row.ours.measured, row.ours.fused) == pytest.approx((0.05, 0.1, 0.25))
    assert (row.own.predicted, row.own.measured) == pytest.approx((0.2, -0.05))
    assert (row.inductor.predicted, row.inductor.measured) == pytest.approx((0.05, 0.1))
    assert [trial.agrees for trial in (row.ours, row.own, row.inductor)] == ["yes", "no", "yes"]
    assert row.imposed["whole"] == 7


def test_what_the_runs_cannot_tell_apart_is_a_tie() -> None:
    noisy = {"optfuse-greedy-graphs": ran(10.0, spread=0.2), "optfuse-graphs": ran(9.9, spread=0.2, **planned(20, 19))}
    alike = {"optfuse-greedy-graphs": ran(10.0), "optfuse-graphs": ran(9.0, **planned(20, 20))}
    (first, second) = thesis(document(noisy=noisy, alike=alike))
    assert first.ours is not None
    assert second.ours is not None
    assert first.ours.noise > first.ours.measured > 0
    assert (first.ours.agrees, second.ours.agrees) == ("tie", "tie")


def test_a_row_without_a_pair_is_left_out_and_what_is_not_priced_has_no_sign() -> None:
    failed = {"status": "failed", "reason": "no"}
    half = {"optfuse-graphs": ran(1.0, **planned(2, 1)), "optfuse-greedy-graphs": failed}
    unpriced = {"inductor-own": ran(2.0, **graph(None)), "inductor-imposed": ran(1.0, **graph(90))}
    rows = thesis(document(half=half, unpriced=unpriced))
    assert [row.row for row in rows] == ["unpriced"]
    assert rows[0].own is not None
    assert (rows[0].own.predicted, rows[0].own.agrees) == (None, "-")


def test_tables() -> None:
    systems = {"inductor-own": ran(12.0, **graph(125)), "inductor-imposed": ran(9.0, **graph(None, whole=7))}
    ours = {"optfuse-greedy-graphs": ran(10.0), "optfuse-graphs": ran(9.0, **planned(200, 190))}
    text = thesis_markdown(thesis(document(a=systems, b=ours)))
    assert "| b | 10.000 | 9.000 | +5.0% | +10.0% | 0.3% | - | yes |" in text
    assert "| a | 12.000 | - | 9.000 | +20.0% | +25.0% | yes | - | - | - | - | - | 7 / 1 / 0 / 0 |" in text
    assert "same in 1 of 1 rows" in text
    for line in text.splitlines():
        if line.startswith("| a") or line.startswith("| row | Ind"):
            assert line.count("|") == 14
    assert thesis_markdown(()) == ""
