"""The waiting process: workers that die, hang or never start become reasons, and the rest is still measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from optfuse.lab.bench.records import Settings, Task
from optfuse.lab.bench.run import run

WORKER = """
import json, os, sys, time
request = json.load(open(sys.argv[1]))
def write(**event):
    with open(sys.argv[2], "a") as out:
        out.write(json.dumps(event) + chr(10))
write(event="versions", device="cpu", torch="2", triton="3", optfuse="0", python="3")
for task in request["tasks"]:
    row = task["name"] + (" training" if task["train"] else "")
    for system in task["systems"]:
        write(event="begin", row=row, system=system)
        if task["name"] == "dies" and system == "inductor":
            print("illegal memory access", file=sys.stderr, flush=True)
            os._exit(9)
        if task["name"] == "hangs" and system == "inductor":
            time.sleep(60)
        write(event="done", row=row, system=system, status="ok", median_ms=1.0, low_ms=1.0, high_ms=1.0, compile_s=0.0)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Workers run this text instead of the real one."""
    path = tmp_path / "worker.py"

    def use(text: str) -> None:
        path.write_text(text)
        program = tmp_path / "python"
        program.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {path} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return use


def bench(names: list[str], patience: float = 30.0) -> dict[str, Any]:
    tasks = [Task(f"{name}.py", name, False, ("eager", "inductor", "optfuse")) for name in names]
    kept: list[int] = []
    document = run(
        tasks, Settings(), limit=60, patience=patience, say=lambda _: None, keep=lambda d: kept.append(len(d))
    )
    assert len(kept) >= 3 * len(names), "the document is kept as it grows"
    return {row["row"]: row["systems"] for row in document["rows"]}


def test_a_worker_that_dies_fails_one_system(worker: Any) -> None:
    worker(WORKER)
    found = bench(["fine", "dies", "other"])
    states = {row: {name: facts["status"] for name, facts in systems.items()} for row, systems in found.items()}
    good = {"eager": "ok", "inductor": "ok", "optfuse": "ok"}
    assert states == {"fine": good, "dies": {**good, "inductor": "failed"}, "other": good}
    assert "code 9: illegal memory access" in found["dies"]["inductor"]["reason"]


def test_a_worker_that_says_nothing_is_given_up(worker: Any) -> None:
    worker(WORKER)
    found = bench(["hangs"], patience=2.0)
    assert found["hangs"]["inductor"]["reason"] == "no answer for 2 s"
    assert found["hangs"]["optfuse"]["status"] == "ok"


def test_a_worker_that_does_not_start_is_not_tried_for_ever(worker: Any) -> None:
    worker("raise SystemExit(1)")
    assert {facts["reason"] for facts in bench(["fine"])["fine"].values()} == {"the worker did not start"}
