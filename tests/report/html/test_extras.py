from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optfuse.errors import PlanError
from optfuse.lab.bench.summary import summarize
from optfuse.report.html.extras import bench_extra, pareto_extra
from optfuse.report.pareto import pareto_rows
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.pareto import sweep
from tests.lab.bench.test_summary import good, kernel
from tests.rematerial import masked


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bench's document, summarized as a bench does it."""
    systems = {"eager": good(4.0), "optfuse": good(2.5), "inductor": {"status": "failed", "reason": "no"}}
    document: dict[str, Any] = {
        "versions": {"device": "some GPU", "torch": "2.11"},
        "yardstick": {"tiny_us": 1.0},
        "rows": [{"row": "net", "asked": list(systems), "systems": systems}],
        "kernels": [{**kernel(f"k{k}", 2.0 * k, 3.0 * k), "peak_share": 0.5} for k in range(1, 6)],
    }
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    path.write_text(json.dumps({**document, "summary": summarize(document)}))
    return path


@pytest.fixture(scope="module")
def pareto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of a sweep, as ``optfuse pareto --json`` prints them."""
    path = tmp_path_factory.mktemp("pareto") / "rows.json"
    found = sweep(masked(), SolveOptions(workers=1, time_limit=5, recompute=True), 3)
    path.write_text(json.dumps(pareto_rows(found)))
    return path


def test_a_bench_is_read(bench: Path) -> None:
    found = bench_extra(bench)

    assert found["device"] == "some GPU"
    assert [k["measured_us"] for k in found["kernels"]] == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert found["rows"][0]["speedup"] == pytest.approx(1.6)
    assert found["rows"][0]["failed"] == {"inductor": "no"}
    assert found["prediction"]["triton"]["spearman"] == pytest.approx(1.0)


def test_a_sweep_is_read(pareto: Path) -> None:
    (found,) = pareto_extra(pareto)

    assert found["name"] == "masked"
    assert found["caps"][0]["status"] == "OPTIMAL"


def test_what_is_neither_is_refused(bench: Path, pareto: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for path in (pareto, tmp_path / "bad.json", tmp_path / "missing.json", tmp_path):
        with pytest.raises(PlanError, match=path.name):
            bench_extra(path)
    for path in (bench, tmp_path / "bad.json"):
        with pytest.raises(PlanError, match=path.name):
            pareto_extra(path)
