"""From a document to figures: ratios, prediction against measurement, tables."""

from __future__ import annotations

from typing import Any

import pytest

from optfuse.errors import InvalidOptionError
from optfuse.lab.bench.records import known_systems
from optfuse.lab.bench.statistics import geomean, relative_errors, spearman
from optfuse.lab.bench.summary import kernels_csv, markdown, prediction, summarize

MIB = 1 << 20


def good(ms: float, **more: Any) -> dict[str, Any]:
    return {"status": "ok", "median_ms": ms, "low_ms": ms, "high_ms": ms, "compile_s": 2.0, **more}


def kernel(name: str, predicted: float, measured: float, kind: str = "triton", moved: int = 32 * MIB) -> dict[str, Any]:
    return {
        "row": "a", "graph": "a.inference", "position": 0, "name": name, "kind": kind, "scheme": "s", "x": 4, "r": 1,
        "read_bytes": moved // 2, "write_bytes": moved // 2, "predicted_us": predicted, "measured_us": measured,
        "copy_us": 10.0, "copy_ratio": measured / 10.0, "ops": "exp",
    }  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    failed = {"status": "failed", "reason": "RuntimeError: no"}
    asked = ["eager", "inductor", "optfuse", "optfuse-graphs"]
    rows = [
        {
            "row": "a",
            "asked": asked,
            "systems": {
                "eager": good(4.0),
                "inductor": good(3.0, triton_ms=1.0, peak_bytes=200, gpu_ms=2.5),
                "optfuse": good(2.5, triton_ms=0.8, peak_bytes=100, gpu_ms=2.0, predicted_ms=1.9),
                "optfuse-graphs": good(2.0, triton_ms=0.5, check={"passed": True, "error": 0.1, "eager_error": 0.2}),
            },
        },
        {"row": "b", "asked": asked, "systems": {"eager": good(1.0), "inductor": failed, "optfuse": good(2.0)}},
    ]
    kernels = [
        kernel("k0", 9, 10),
        kernel("k1", 18, 30),
        kernel("mm", 50, 40, "library"),
        kernel("k2", 0.1, 2, moved=8),
    ]
    found = {"rows": rows, "kernels": kernels, "yardstick": {"tiny_us": 1.0}}
    return {**found, "summary": summarize(found)}


def test_rows_are_held_against_the_best_peer(document: dict[str, Any]) -> None:
    first, second = document["summary"]["rows"]
    assert (first["best_peer"], first["best_ours"], first["speedup"]) == ("inductor", "optfuse-graphs", 1.5)
    assert (first["triton_ratio"], first["memory_ratio"], first["compile_ratio"]) == (2.0, 2.0, 1.0)
    assert second["speedup"] == 0.5
    assert second["failed"] == {"inductor": "RuntimeError: no"}
    assert document["summary"]["geomean_speedup"] == pytest.approx(0.75**0.5)
    assert document["summary"]["worst_speedup"] == 0.5


def test_kernels_that_a_copy_beats_are_listed(document: dict[str, Any]) -> None:
    summary = document["summary"]
    assert summary["large_kernels"] == 2
    assert [k["name"] for k in summary["furthest_from_copy"]] == ["k1"]
    assert summary["large_kernels_copy_ratio"] == 2.0


def test_prediction_is_judged_by_rank_and_by_error(document: dict[str, Any]) -> None:
    found = prediction(document["kernels"], document["yardstick"])
    assert found["all"]["spearman"] == pytest.approx(1.0)
    assert found["triton"]["kernels"] == 3
    assert found["triton"]["median_relative_error"] == pytest.approx(0.4)
    assert prediction([], {})["all"]["spearman"] is None


def test_tables(document: dict[str, Any]) -> None:
    text = markdown(document)
    assert "| a | 4.000 (4.000-4.000) |" in text
    assert "b, inductor: failed: RuntimeError: no" in text
    lines = kernels_csv(document["kernels"]).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("row,graph,position,name")
    assert kernels_csv([]) == ""


def test_a_row_as_users_call_it() -> None:
    systems = {
        "inductor-max-autotune": good(1.0),
        "optfuse-compile": good(0.5, gpu_ms=0.4, triton_ms=0.1, predicted_ms=0.375),
    }
    found: dict[str, Any] = {"rows": [{"row": "a", "asked": list(systems), "systems": systems}], "kernels": []}
    found |= {"yardstick": {"tiny_us": 1.0}}
    found["summary"] = summarize(found)
    assert found["summary"]["rows"][0]["speedup"] == 2.0
    assert "0.40, 0.10" in markdown(found)
    assert "0.38" in markdown(found)


def test_statistics() -> None:
    assert geomean([2, 8]) == pytest.approx(4)
    assert geomean([]) is None
    assert spearman([1, 2, 3, 4], [10, 20, 15, 40]) == pytest.approx(0.8)
    assert spearman([1, 1], [1, 2]) is None
    assert relative_errors([1, 3], [2, 0]) == [0.5]


def test_systems_are_known_by_name() -> None:
    assert known_systems("eager, ours") == ("eager", "optfuse", "optfuse-graphs")
    with pytest.raises(InvalidOptionError, match="unknown system 'jax'"):
        known_systems("jax")
