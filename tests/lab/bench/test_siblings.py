"""Workers that stand still while one of them is timed."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optfuse.lab.bench.siblings import Siblings

WORKER = """
import sys, time
from pathlib import Path
from optfuse.lab.bench.siblings import Siblings
Siblings(Path(sys.argv[1])).join()
print("joined", flush=True)
time.sleep(60)
"""


def state(process: subprocess.Popen[str]) -> str:
    """The process's state: T stopped, S asleep."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def reaches(process: subprocess.Popen[str], wanted: str) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if (state(process) == "T") is (wanted == "T"):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_others_stop_while_one_is_timed_and_the_dead_are_forgotten(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "joined\n"
            mine = Siblings(tmp_path)
            with mine.paused():
                assert reaches(worker, "T")
            assert reaches(worker, "S")
            with mine.paused():
                mine.resume()  # as when the timed one had died
                assert reaches(worker, "S")
        finally:
            worker.kill()
    with mine.paused():
        assert [path.name for path in tmp_path.iterdir()] == ["pauses.lock"]


def test_who_joins_waits_for_one_that_is_timed(tmp_path: Path) -> None:
    """It has not been stopped, so it would disturb it."""
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with Siblings(tmp_path).paused():
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while not (tmp_path / str(worker.pid)).exists():
            time.sleep(0.01)
        assert worker.stdout is not None
        assert select.select([worker.stdout], [], [], 0.2)[0] == []
    try:
        assert worker.stdout.readline() == "joined\n"
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
