"""Batches in this process and in another one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from optfuse.batch.engines import Engine, LocalEngine
from optfuse.batch.plan import Limits
from optfuse.batch.run import BatchOptions, Progress, run_batch
from optfuse.batch.sources import find_sources
from optfuse.batch.store import Store

LIMITS = Limits(100.0, None)


def batch(
    sources: Iterable[Path],
    run: Path,
    *,
    engine: Engine | None = None,
    resume: bool = False,
    room: int = 1 << 20,
    **options: Any,
) -> Progress:
    """A batch of small models with the greedy solver, unless told otherwise."""
    chosen = {"solvers": ("greedy",), "mode": "inference", "size": "small", "limits": LIMITS, **options}
    chosen["solve"] = {"time_limit": 5.0, "workers": 1, **chosen.get("solve", {})}
    store = Store(run, {}, resume=resume, room=room)
    try:
        return run_batch(find_sources(sources), store, engine or LocalEngine(2), BatchOptions(**chosen))
    finally:
        store.close()


def start(*arguments: object) -> subprocess.Popen[str]:
    """``optfuse batch`` in a process group of its own."""
    command = [sys.executable, "-m", "optfuse", "batch", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def until(happened: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the processes that still run; a zombie does not."""
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and _state(pid) != "Z"]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"
