"""Runs one task in a process of its own, under limits of time and memory, so that a crash or hang stays in it.

Processes are forked from a server that has imported the modules tasks need and has no threads, so starting one is
cheap.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

from optfuse.batch.folders import log_file
from optfuse.batch.plan import Task
from optfuse.errors import BatchError, OptfuseError
from optfuse.runtime.processes import end_groups, end_own_group

OutcomeKind = Literal["ok", "refused", "crash", "timeout", "memory"]

#: Modules that the server imports once, if installed.
PRELOADED = ("optfuse.batch.preload",)

GIB = 1 << 30
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "MemoryError", "Cannot allocate memory")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended, and what it returned (``figures``, for "ok") or why not (``reason``, one line).

    Times are seconds. ``peak_rss`` is the most bytes of memory its process held, as far as it is known.
    """

    kind: OutcomeKind
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_rss: int = 0


class Child:
    """A running task."""

    def __init__(self, task: Task) -> None:
        """Start it.

        Raises:
            BatchError: If this process may not start others.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        if multiprocessing.current_process().daemon:
            raise BatchError(
                "this worker is a daemonic process, which may not start others; for Dask set distributed.worker.daemon "
                "to False"
            )
        self.task = task
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_main, args=(task, sender), daemon=True)
        self._process.start()
        sender.close()
        self._started = time.monotonic()

    @property
    def pid(self) -> int:
        """The id of the process, which leads a session of its own."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def deadline(self) -> float:
        """The time at which it is killed, by ``time.monotonic``."""
        return self._started + self.task.limits.seconds

    @property
    def signs(self) -> tuple[Any, ...]:
        """The objects to pass to ``multiprocessing.connection.wait``."""
        return self._receiver, self._process.sentinel

    def poll(self) -> Outcome | None:
        """Return the outcome, or None while the task runs. A task past its deadline is killed."""
        if self._receiver.poll():
            try:
                outcome: Outcome = self._receiver.recv()
            except EOFError:
                return self._died()
            # What hangs after it has answered (a library's threads at exit, a process that it left) is of no interest.
            self._process.join(1.0)
            self.kill()
            log_file(self.task.run, self.task.name).unlink(missing_ok=True) if outcome.kind == "ok" else None
            return outcome
        if not self._process.is_alive():
            return self._died()
        if time.monotonic() >= self.deadline:
            peak = _peak_of(self.pid)
            self.kill()
            return Outcome(
                "timeout",
                f"killed at the limit of {self.task.limits.seconds:g} s",
                wall_s=time.monotonic() - self._started,
                peak_rss=peak,
            )
        return None

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        kill_all([self])

    def end(self) -> None:
        """Wait for the end; a process that does not lead its session yet is killed."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def _died(self) -> Outcome:
        self._process.join(1.0)
        self.kill()
        code = self._process.exitcode or 0
        wall = time.monotonic() - self._started
        printed = _tail(log_file(self.task.run, self.task.name))
        if any(word in printed for word in _NO_MEMORY):
            return Outcome("memory", _memory_reason(self.task, printed), wall_s=wall)
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"left with exit code {code}"
        hint = "; the system was perhaps out of memory" if code == -signal.SIGKILL else ""
        return Outcome("crash", f"its process was {how}{hint}" if code < 0 else f"its process {how}", wall_s=wall)


def kill_all(children: Sequence[Child]) -> None:
    """End several tasks side by side, each with all that it has started: SIGTERM, then SIGKILL."""
    end_groups([child.pid for child in children])
    for child in children:
        child.end()


def run_task(task: Task) -> Outcome:
    """Run a task to its end in a process of its own; what a cluster's workers call."""
    child = Child(task)
    try:
        while True:
            outcome = child.poll()
            if outcome is not None:
                return outcome
            connection.wait(child.signs, timeout=max(0.0, child.deadline - time.monotonic()))
    finally:
        child.kill()


def _main(task: Task, sender: Any) -> None:
    """The child: set the limits, work, send the outcome."""
    os.setsid()  # what the model starts belongs to the task, and is ended with it
    os.register_at_fork(after_in_child=sender.close)  # it must not keep the parent waiting for the rest of an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    try:
        _redirect_output(log_file(task.run, task.name))
    except OSError as error:
        sender.send(Outcome("crash", _one_line(error)))
        return
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _limit_memory(task)
    start = time.monotonic()
    kind, reason, figures = _attempt(task)
    # Inductor runs in a process below this one
    usages = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    peak = max(usage.ru_maxrss for usage in usages) * 1024
    sender.send(Outcome(kind, reason, figures, time.monotonic() - start, cpu, peak))
    sender.close()


def _attempt(task: Task) -> tuple[OutcomeKind, str, dict[str, Any]]:
    try:
        _limit_threads(task.limits.threads)
        work = importlib.import_module("optfuse.batch.work").work  # imports torch, which the parent does without
        return "ok", "", work(task)
    except OptfuseError as error:
        traceback.print_exc()
        if any(word in str(error) for word in _NO_MEMORY):
            return "memory", _memory_reason(task, str(error)), {}
        return "refused", str(error), {}
    except BaseException as error:  # a user's model runs here, and may raise anything
        traceback.print_exc()
        if isinstance(error, MemoryError) or any(word in str(error) for word in _NO_MEMORY):
            return "memory", _memory_reason(task, str(error)), {}
        return "crash", _one_line(error), {}


def _one_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {text[:500]}{where}"


def _memory_reason(task: Task, said: str) -> str:
    limit = "no limit was set" if task.limits.gib is None else f"its limit was {task.limits.gib:g} GiB"
    lines = [line for line in said.strip().splitlines() if any(word in line for word in _NO_MEMORY)]
    return f"out of memory; {limit}" + (f" ({lines[-1].strip()[:200]})" if lines else "")


def _limit_memory(task: Task) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if task.limits.gib is not None:
        limit = int(task.limits.gib * GIB)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _limit_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _redirect_output(path: Path) -> None:
    """Send what is printed, by C++ too, to the task's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable(2)


def _leave_with_parent() -> None:
    """A killed parent sends no signal: when its end of the pipe closes, leave too."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a child has a parent"
    connection.wait([parent.sentinel])
    end_own_group()


def _peak_of(pid: int) -> int:
    """The most memory that a process has held, in bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-10_000:].decode(errors="replace")
    except FileNotFoundError:
        return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
