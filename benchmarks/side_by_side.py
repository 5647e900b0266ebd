"""Measurements in processes of their own, which compile side by side while one is timed at a time."""

from __future__ import annotations

import fcntl
import json
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from optfuse.lab.bench.siblings import Siblings, siblings_on

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A command to run, the file that gets what it prints, and what is called at its end: "exit 0" if all is well."""

    command: Sequence[str]
    log: Path
    ended: Callable[[str], None]


def run_jobs(jobs: Sequence[Job], processes: int, patience: float, total: float) -> None:
    """Each job in a process of its own, killed after ``patience`` seconds; none runs after ``total`` seconds."""
    begun, waiting, running = time.monotonic(), list(jobs), dict[subprocess.Popen[bytes], tuple[Job, float]]()
    try:
        while waiting or running:
            left = total - (time.monotonic() - begun)
            while waiting and len(running) < processes and left > 0:
                job = waiting.pop(0)
                with job.log.open("w") as stream:
                    child = subprocess.Popen(job.command, stdout=stream, stderr=subprocess.STDOUT)
                running[child] = job, time.monotonic()
            if not running:
                return
            time.sleep(0.2)
            for child in list(running):
                job, start = running[child]
                late = time.monotonic() - start > patience or left < 0
                if child.poll() is None and not late:
                    continue
                child.kill()
                child.wait()
                del running[child]
                job.ended("not done in time" if late else f"exit {child.returncode}")
    finally:
        for child in running:
            child.kill()


def add_row(path: Path, row: Row) -> None:
    """Write a row at the end of a file of rows."""
    with path.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def read_rows(*paths: Path) -> list[Row]:
    """The rows of files; none of a file that is not there."""
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]


def join(out: Path) -> None:
    """Let processes that are timed stop this one: those that write rows into the same file."""
    _siblings(out).join()


def _siblings(out: Path) -> Siblings:
    return siblings_on("-".join(out.resolve().with_suffix("").parts[1:]))


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No other process that writes rows into ``out`` is timed meanwhile; those that have joined stand still."""
    with out.with_suffix(".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        siblings = _siblings(out)
        if not siblings.folder.exists():  # nobody has joined
            yield
            return
        with siblings.paused():
            yield


def distance(found: Sequence[Any], reference: Sequence[Any]) -> float:
    """The relative L2 distance of all tensors together."""
    pairs = [(a.float(), b.float()) for a, b in zip(found, reference, strict=True)]
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
    whole = sum(float(b.double().square().sum()) for _, b in pairs)
    return math.sqrt(apart / max(whole, 1e-30))


def median_ms(step: Callable[[], Any], seconds: float = 0.25, warm: int = 8, rounds: int = 2) -> float:
    """Median milliseconds by events, nothing waiting in between: the least of ``rounds``, each of about ``seconds``.

    Args:
        step: What is timed.
        seconds: Of a round.
        warm: Calls before.
        rounds: A host that is busy with something else makes single ones longer.
    """
    import torch

    if not torch.cuda.is_available():
        start = time.perf_counter()
        step()
        return round(1000 * (time.perf_counter() - start), 3)
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = max(8, min(60, int(seconds / (time.perf_counter() - start))))
    medians = []
    for _ in range(rounds):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        for event in events[:-1]:
            event.record()
            step()
        events[-1].record()
        torch.cuda.synchronize()
        medians.append(statistics.median(a.elapsed_time(b) for a, b in pairwise(events)))
    return round(min(medians), 3)


def busy_ms(step: Callable[[], Any], steps: int = 2) -> float | None:
    """Milliseconds of a step in which the GPU runs kernels or copies; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    on_gpu = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return round(sum(e.time_range.elapsed_us() for e in on_gpu) / steps / 1e3, 3)
