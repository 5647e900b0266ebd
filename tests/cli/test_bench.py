"""``optfuse bench`` and ``optfuse calibrate``: what they refuse, and the files that they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
MLP = Path(__file__).parent.parent.parent / "models" / "mlp.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MLP, "--only", "jax"), "unknown system 'jax'"),
        ((MLP, "--size", "huge"), "size must be one of full, bench, small"),
        ((MLP, "--device", "h2000"), "unknown device 'h2000'"),
        (("absent.py",), "no such file"),
    ],
)
def test_bench_refuses(optfuse: Run, arguments: tuple[Any, ...], message: str) -> None:
    assert message in optfuse("bench", *arguments).error_line()


def test_bench_writes_a_document_and_a_kernel_table(
    optfuse: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(tasks: Any, settings: Any, *, keep: Any, **_: Any) -> dict[str, Any]:
        from optfuse.lab.bench.run import Document
        from optfuse.lab.bench.summary import summarize

        document = Document.of(tasks, settings).record
        document["versions"] = {"torch": "2", "inductor": {"fusion": True}}
        document["kernels"] = [
            {"kind": "library", "name": "aten::mm", "measured_us": 2.0, "predicted_us": 1.0, "read_bytes": 1,
             "write_bytes": 1, "copy_us": 1.0}
        ]  # fmt: skip
        document["summary"] = summarize(document)
        keep(document)
        return document

    monkeypatch.setattr("optfuse.lab.bench.run.run", run)
    outcome = optfuse(
        "bench", MLP, "--both", "--size", "small", "--json", tmp_path / "b.json", "--csv", tmp_path / "k.csv"
    )
    assert outcome.code == 0, outcome.err
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [row["row"] for row in rows] == ["mlp", "mlp training"]
    assert rows[0]["asked"] == ["eager", "inductor", "inductor-graphs", "optfuse", "optfuse-graphs"]
    assert "aten::mm" in (tmp_path / "k.csv").read_text()
    assert "Inductor: fusion=True" in outcome.out
    assert "| mlp training |" in outcome.out


def test_calibrate_fits_to_saved_measurements(optfuse: Run, tmp_path: Path) -> None:
    raw = {"launch": {"graph_us": 1.5, "duration_us": 1.0}, "probes": [], "failed": {"copy": "RuntimeError: no"}}
    (tmp_path / "raw.json").write_text(json.dumps(raw))
    outcome = optfuse("calibrate", "--measured", tmp_path / "raw.json", "--out", tmp_path / "mine.json")
    assert outcome.code == 0, outcome.err
    written = json.loads((tmp_path / "mine.json").read_text())
    assert (written["name"], written["launch_ps"]) == ("mine", 1_500_000)
    assert "launch_ps: 1500000 (was " in outcome.out
    assert "copy was not measured: RuntimeError: no" in outcome.out

    from optfuse.problem.device_files import load_device

    assert load_device(str(tmp_path / "mine.json")).launch_ps == 1_500_000


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_calibrate_needs_a_gpu(optfuse: Run, tmp_path: Path) -> None:
    assert "needs a GPU" in optfuse("calibrate", "--out", tmp_path / "x.json").error_line()
    assert not (tmp_path / "x.json").exists()


def test_calibrate_refuses_measurements_that_are_none(optfuse: Run, tmp_path: Path) -> None:
    assert "cannot be read" in optfuse("calibrate", "--measured", tmp_path / "absent.json").error_line()
    (tmp_path / "text.json").write_text("{")
    assert "not measurements" in optfuse("calibrate", "--measured", tmp_path / "text.json").error_line()


@pytest.mark.parametrize("option", ["--limit", "--patience", "--time-limit"])
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
def test_limits_are_finite_and_above_zero(optfuse: Callable[..., Outcome], option: str, value: str) -> None:
    line = optfuse("bench", "models/mlp.py", option, value).error_line()
    assert option.removeprefix("--").replace("-", "_") in line.replace("-", "_")
