"""A replay that does not end ends the process after its group's timeout; others are left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from optfuse.runtime.clocks import Mark
from optfuse.runtime.replay_watchdog import TIMEOUT_S, Watchdog, WatchedReplays, watched_replays

STUCK = """
from optfuse.runtime.replay_watchdog import Watchdog, WatchedReplays
from tests.runtime.test_replay_watchdog import End
import time
replays = WatchedReplays("all_reduce", 0.2)
Watchdog().watch(replays)
replays.note(End(False))
time.sleep(60)
"""


@dataclass
class End:
    """The end of a replay."""

    is_reached: bool
    error: str = ""

    def reached(self) -> bool:
        if self.error:
            raise RuntimeError(self.error)
        return self.is_reached

    def wait(self) -> None:
        raise AssertionError("the host must not wait for a replay")

    def us_since(self, earlier: Mark) -> float | None:
        return None


def test_only_a_replay_that_does_not_end_is_stuck() -> None:
    found, ended = list[WatchedReplays](), threading.Event()

    def on_stuck(replays: WatchedReplays) -> None:
        found.append(replays)
        ended.set()

    watchdog = Watchdog(on_stuck)
    done, slow, stuck = WatchedReplays("done", 0.05), WatchedReplays("slow", 100.0), WatchedReplays("stuck", 0.1)
    for replays in (done, slow, stuck):
        watchdog.watch(replays)
    done.note(End(True))
    slow.note(End(False))
    stuck.note(End(True))
    stuck.note(End(False))
    stuck.note(End(True))  # what is queued behind does not hide it
    assert ended.wait(30.0)
    watchdog.end()
    assert set(found) == {stuck}


def test_a_device_that_fails_is_left_to_the_program(caplog: pytest.LogCaptureFixture) -> None:
    found = list[WatchedReplays]()
    watchdog, failed = Watchdog(found.append), WatchedReplays("failed", 0.05)
    failed.note(End(False, "an illegal memory access"))
    watchdog.watch(failed)
    for _ in range(600):
        if caplog.records:
            break
        threading.Event().wait(0.05)
    watchdog.end()
    assert "failed are watched no more: an illegal memory access" in caplog.text
    assert not found


@pytest.mark.slow
def test_a_process_with_a_stuck_replay_says_why_and_ends() -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", STUCK], cwd=root, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGABRT
    first = ended.stderr.splitlines()[0]
    assert "CUDA graph with collectives (all_reduce) has not ended in 0.2 s, the timeout of its process group" in first
    assert "Thread" in ended.stderr, "where the process waits"


@pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")
def test_the_timeout_is_the_process_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("0", "_c10d_functional.all_reduce.default", "float32", (8,)),)
    module = SimpleNamespace(COLLECTIVES=rows, DEVICE=torch.device("cpu"))
    replays = watched_replays(module)
    assert replays is not None
    assert replays.timeout_s == TIMEOUT_S, "there is no group"
    group = f"file://{tmp_path / 'group'}"
    distributed.init_process_group("gloo", init_method=group, rank=0, world_size=1, timeout=timedelta(seconds=77))
    try:
        replays = watched_replays(module)
        assert replays is not None
        assert (replays.name, replays.timeout_s) == ("all_reduce", 77.0)
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        assert watched_replays(module) is None
    finally:
        distributed.destroy_process_group()
