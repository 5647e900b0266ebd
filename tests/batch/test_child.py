"""A task ends with all that its model has started, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import optfuse
from optfuse.batch.plan import Limits
from tests.batch.running import alive, batch, start, until

#: Leaves a process that lives long and does not heed SIGTERM; then does what it is told.
FORKING = """
import os, signal, time, torch

def model():
    return torch.nn.Linear(4, 4)

def inputs():
    ready, told = os.pipe()
    if not (pid := os.fork()):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(told, b".")
        time.sleep(1000)
    os.read(ready, 1)
    with open({note!r} + ".new", "w") as file:
        file.write(f"{{os.getpid()}} {{pid}}")
    os.rename({note!r} + ".new", {note!r})
    {then}
    return (torch.ones(2, 4),), {{}}
"""


class Left:
    """The processes of a forking model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.note = folder / "pids"

    def model(self, then: str) -> Path:
        path = self.folder / "forking.py"
        path.write_text(FORKING.format(note=str(self.note), then=then))
        return path

    def running(self) -> list[int]:
        return alive([int(pid) for pid in self.note.read_text().split()])


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    made = Left(tmp_path)
    yield made
    if made.note.exists():
        for pid in made.running():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("then", "outcome"), [("pass", "ok"), ("time.sleep(1000)", "timeout"), ("os._exit(3)", "crash")]
)
@pytest.mark.slow
def test_what_a_model_left_running_ends_with_its_task(left: Left, tmp_path: Path, then: str, outcome: str) -> None:
    batch([left.model(then)], tmp_path / "run", limits=Limits(100.0 if outcome != "timeout" else 5.0, None))

    (row,) = optfuse.read_run(tmp_path / "run").itertuples()
    assert row.outcome == outcome
    assert left.running() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_a_batch_that_is_ended_leaves_nothing_and_closes_its_pipes(
    left: Left, tmp_path: Path, how: signal.Signals
) -> None:
    process = start(left.model("time.sleep(1000)"), "--out", tmp_path / "run", "--size", "small", "--mode", "inference")
    until(left.note.exists)
    os.kill(process.pid, how)

    process.communicate(timeout=30)  # until nothing holds the other end of its pipes

    assert process.returncode == (130 if how == signal.SIGINT else -how)
    until(lambda: left.running() == [], 10)
