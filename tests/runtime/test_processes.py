"""A session ends whole, on every way out of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optfuse.runtime.processes import session
from tests.batch.running import alive, until

#: Starts a process of its own that does not heed SIGTERM, notes both, and waits.
PARENT = """
import os, signal, subprocess, sys, time
program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
child.stdout.readline()
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
if sys.argv[2] == "waits":
    time.sleep(1000)
"""


def pids(note: Path) -> list[int]:
    until(note.exists)
    return [int(pid) for pid in note.read_text().split()]


@pytest.mark.spread(2)
@pytest.mark.parametrize("does", ["waits", "leaves"])
def test_what_a_process_started_ends_with_the_session(tmp_path: Path, does: str) -> None:
    note = tmp_path / "pids"
    with session([sys.executable, "-c", PARENT, str(note), does], stdout=subprocess.PIPE) as (process,):
        assert os.getsid(process.pid) == process.pid
        started = pids(note)
        if does == "leaves":
            assert process.wait(60) == 0

    until(lambda: alive(started) == [], 10)
    assert process.stdout is not None
    assert process.stdout.closed


def test_an_error_ends_the_session_and_passes_on(tmp_path: Path) -> None:
    note = tmp_path / "pids"

    def interrupted() -> None:
        with session([sys.executable, "-c", PARENT, str(note), "waits"]):
            pids(note)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    until(lambda: alive(pids(note)) == [], 10)


def test_a_session_that_cannot_be_started_ends_those_before_it() -> None:
    started = time.monotonic()
    with pytest.raises(FileNotFoundError), session(["sleep", "1000"], ["/no/such/program"]):
        pytest.fail("the body ran")
    assert time.monotonic() - started < 10


def test_a_process_leaves_when_the_one_that_started_it_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    worker = (
        "import os, sys, time; from optfuse.runtime.processes import leave_with_parent; leave_with_parent();"
        "open(sys.argv[1] + '.new', 'w').write(str(os.getpid())); os.rename(sys.argv[1] + '.new', sys.argv[1]);"
        "time.sleep(1000)"
    )
    owner = (
        "import sys, time; from optfuse.runtime.processes import session\n"
        "with session([sys.executable, '-c', sys.argv[1], sys.argv[2]]): time.sleep(1000)"
    )
    process = subprocess.Popen([sys.executable, "-c", owner, worker, str(note)])
    started = pids(note)
    assert alive(started) == started
    process.kill()
    process.wait()
    until(lambda: alive(started) == [], 10)
