"""What torch's logs and structured traces show of optfuse's graphs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

SCRIPT = """
import torch
f = torch.compile(lambda x: x.sin().sum(), backend="optfuse", dynamic=False)
f(torch.randn(4, 8))
g = torch.compile(lambda x: x[x > 0], backend="optfuse", fullgraph=True)
with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
    g(torch.randn(4))
"""


class Artifacts(logging.Handler):
    """The first artifact of each kind that a structured trace gets of us."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        name = record.metadata.get("artifact", {}).get("name", "")  # type: ignore[attr-defined]
        if name.startswith("optfuse."):
            self.kinds.setdefault(name.rsplit(".", 1)[1], record.payload)  # type: ignore[attr-defined]


@pytest.fixture
def artifacts() -> Iterator[dict[str, str]]:
    handler, trace = Artifacts(), logging.getLogger("torch.__trace")
    trace.addHandler(handler)
    yield handler.kinds
    trace.removeHandler(handler)


def test_traces_have_graph_report_kernels_and_why_not(artifacts: dict[str, str]) -> None:
    torch.compiler.reset()
    exec(SCRIPT, {})
    require_all(artifacts)


@pytest.mark.slow
def test_logs_and_traces_have_graph_report_kernels_and_why_not(tmp_path: Path) -> None:
    variables = {"TORCH_TRACE": str(tmp_path), "TORCH_LOGS": "fusion,output_code"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "proven optimal" in done.stderr
    assert "@triton.jit" in done.stderr
    assert "is not scheduled" in done.stderr
    (trace,) = tmp_path.iterdir()
    found: dict[str, str] = {}
    name = ""
    for line in trace.read_text().splitlines():
        if line.startswith("\t"):
            if name:
                found[name] = found.get(name, "") + line[1:] + "\n"
            continue
        artifact = json.loads(line[line.index("{") :]).get("artifact", {}) if "{" in line else {}
        name = artifact.get("name", "") if artifact.get("name", "").startswith("optfuse.") else ""
    kinds: dict[str, str] = {}
    for name, text in found.items():
        kind = name.rsplit(".", 1)[1]
        kinds[kind] = kinds.get(kind, text)
    require_all(kinds)


def require_all(kinds: dict[str, str]) -> None:
    assert kinds.keys() == {"graph", "report", "kernels", "instance", "why_not"}
    assert "torch.ops.aten.sin" in kinds["graph"]
    assert "OPTIMAL" in kinds["report"].upper()
    assert "@triton.jit" in kinds["kernels"]
    assert json.loads(kinds["instance"])["format"] == "optfuse-instance"
    assert "only its run tells" in kinds["why_not"]
