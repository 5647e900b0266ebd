"""Child processes that end whole: each leads a session of its own, and what it has started is ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

#: Seconds between SIGTERM and SIGKILL, and between two looks at what is left.
GRACE_S = 1.0
POLL_S = 0.02


@contextlib.contextmanager
def session(*commands: Sequence[str], **settings: Any) -> Generator[tuple[subprocess.Popen[Any], ...]]:
    """Processes that each lead a session of their own, and are ended on exit with all that they started.

    ``settings`` are those of ``subprocess.Popen``. An interrupt from the terminal does not reach them. Their standard
    input is a pipe that closes when this process ends (see ``leave_with_parent``), unless ``settings`` say otherwise.
    """
    given: dict[str, Any] = {"stdin": subprocess.PIPE, **settings, "start_new_session": True}
    running: list[subprocess.Popen[Any]] = []
    try:
        for command in commands:
            running.append(subprocess.Popen(command, **given))
        yield tuple(running)
    finally:
        end_groups([process.pid for process in running], lambda: [process.poll() for process in running])
        for process in running:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not yet written has no reader
                        pipe.close()


def end_groups(leaders: Sequence[int], reap: Callable[[], object] = lambda: None) -> None:
    """End the process groups of some leaders: SIGTERM, and SIGKILL for what is left after ``GRACE_S``.

    ``reap`` is called before each look, for leaders that are children of this process.
    """
    reap()
    left = [leader for leader in leaders if _signal(leader, signal.SIGTERM)]
    until = time.monotonic() + GRACE_S
    while left and time.monotonic() < until:
        reap()
        left = [leader for leader in left if _signal(leader, 0)]
        if left:
            time.sleep(POLL_S)
    for leader in left:
        _signal(leader, signal.SIGKILL)


def end_own_group() -> None:
    """End this process at once, with all that it has started if it leads a session."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def leave_with_parent() -> None:
    """End this process's group once its standard input closes: the process that started it holds the other end."""

    def watch() -> None:
        os.read(0, 1)  # not through sys.stdin, whose lock a waiting thread would hold when the interpreter ends
        end_own_group()

    threading.Thread(target=watch, daemon=True).start()


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs a module in another process of this Python."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def _signal(leader: int, number: int) -> bool:
    """Whether a signal reached a leader's group; 0 only asks whether there is one."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
