"""The script that makes the tables of the performance page."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "performance.py"))
MIB = 1 << 20


def good(ms: float, **more: Any) -> dict[str, Any]:
    return {"status": "ok", "median_ms": ms, "low_ms": ms, "high_ms": ms, "runs": 9, "compile_s": 2.0, **more}


def kernel(name: str, ratio: float, **more: Any) -> dict[str, Any]:
    figures = {"measured_us": 100.0 * ratio, "copy_us": 100.0, "copy_ratio": ratio, "predicted_us": 99.0}
    shape = {"scheme": "x[8:64,64:1] r[128:64]", "x": 512, "r": 128, "read_bytes": 16 * MIB, "write_bytes": 16 * MIB}
    known = {"memory_us": 99.0, "compute_us": 1.0, "kind": "triton", "ops": "mul sum", "position": 0}
    return {"row": "a", "graph": "a.backward", "name": name, **figures, **shape, **known, **more}


def document(systems: dict[str, Any], kernels: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [{"row": "a", "asked": list(systems), "systems": systems}]
    return {"rows": rows, "kernels": kernels, "yardstick": {"tiny_us": 1.0}, "versions": {}}


def test_documents_are_merged() -> None:
    failed = {"status": "failed", "reason": "RuntimeError: no"}
    first = document({"inductor": good(3.0), "optfuse": good(2.0)}, [kernel("k1_mul_sum", 1.0)])
    second = document({"optfuse": failed, "optfuse-graphs": good(1.5)}, [kernel("k2_mul_sum", 1.5)])
    (row,) = SCRIPT["merged"]([first, second])["rows"]
    assert row["asked"] == ["inductor", "optfuse", "optfuse-graphs"]
    assert row["systems"]["optfuse"]["median_ms"] == 2.0, "a failure does not replace a measurement"
    assert [k["name"] for k in SCRIPT["merged"]([first, second])["kernels"]] == ["k2_mul_sum"]


def test_kernels_are_listed_by_what_they_lose_with_a_cause() -> None:
    slow = [kernel("k1_mul_sum", 1.5), kernel("k7_mul_sum", 1.7), kernel("k2_exp", 1.3, compute_us=120.0)]
    rest = [kernel("k3_mul", 1.0), kernel("k4_mul", 3.0, read_bytes=1, write_bytes=1)]
    text = SCRIPT["copies_table"](document({}, slow + rest))
    assert "4 generated kernels move more than 16 MB" in text
    assert "| sum over columns | 2 | 0.120 |" in text
    first, second = text.splitlines()[-2:]
    assert first == "| a backward | mul_sum | 512 x 128 | 2 | 160.0 | 100.0 | 1.60 | 99.0 | sum over columns |"
    assert second.endswith("arithmetic (erf, tanh), priced |")


def test_a_table_without_figures_stays() -> None:
    page = "".join(f"a\n<!-- figures: {name} -->\nold\n<!-- end of figures -->\n" for name in ("rows", "thesis"))
    found = SCRIPT["filled"](page, {"rows": "", "thesis": "new"})
    assert found == page.replace("thesis -->\nold\n", "thesis -->\n\nnew\n\n")
    systems = {"inductor": good(3.0), "optfuse": good(2.0)}
    assert "| a | 3.000" in SCRIPT["rows_table"](document(systems, []))
    assert SCRIPT["rows_table"](document({"optfuse-graphs": good(1.0)}, [])) == ""
    assert SCRIPT["prediction_table"](document(systems, [kernel("k", 1.0)])).count("\n") == 5
