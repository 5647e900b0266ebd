"""Let benches share one device: while one of them is timed, the others are paused.

A worker that compiles also runs kernels, and takes the host's cores. Times measured beside it are longer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

#: A worker that is timed for longer may wait for a lock that a stopped one holds.
LONGEST_PAUSE_S = 60.0

#: The locked files by which this process is a worker. They are open until it ends: a file that is closed is not locked.
_JOINED: list[TextIO] = []

_FOLDERS = "optfuse-bench-{device}.workers"


def siblings_on(device: str) -> Siblings:
    """The workers on a device, given by a name of its own."""
    return Siblings(Path(tempfile.gettempdir()) / _FOLDERS.format(device=device))


def resume_all() -> None:
    """Let the workers of all devices go on, since one that had stopped them may have died."""
    for folder in Path(tempfile.gettempdir()).glob(_FOLDERS.format(device="*")):
        Siblings(folder).resume()


@dataclass(slots=True)
class Siblings:
    """The workers on one device. Each has a file there, named by its process, which it locks as long as it lives."""

    folder: Path

    def join(self) -> None:
        """Be one of them until this process ends. It waits until no other one is timed, which has not stopped it."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{os.getpid()}.new"
        mine = path.open("w")
        _JOINED.append(mine)
        fcntl.flock(mine, fcntl.LOCK_EX)
        path.rename(self.folder / str(os.getpid()))
        with self._pauses(fcntl.LOCK_EX):
            pass

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The others stand still meanwhile, for ``LONGEST_PAUSE_S`` seconds at most."""
        with self._pauses(fcntl.LOCK_SH):
            stopped = [pid for pid in self._others() if _signalled(pid, signal.SIGSTOP)]
            resume = threading.Timer(LONGEST_PAUSE_S, _resume, [stopped])
            resume.daemon = True
            resume.start()
            try:
                yield
            finally:
                resume.cancel()
                _resume(stopped)

    @contextlib.contextmanager
    def _pauses(self, kind: int) -> Iterator[None]:
        """A lock that is shared while others stand still, and that a worker which joins takes alone."""
        with (self.folder / "pauses.lock").open("w") as stream:
            fcntl.flock(stream, kind)
            yield

    def resume(self) -> None:
        """Let all others go on."""
        _resume(self._others())

    def _others(self) -> list[int]:
        files = [path for path in self.folder.iterdir() if path.name.isdigit() and path.name != str(os.getpid())]
        return [int(path.name) for path in files if _is_locked(path)]


def _is_locked(path: Path) -> bool:
    """Whether the file's process lives; the file of one that does not is removed."""
    try:
        with path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except BlockingIOError:
        return True
    except FileNotFoundError:  # another worker has removed it
        return False
    return False


def _signalled(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _resume(pids: list[int]) -> None:
    for pid in pids:
        _signalled(pid, signal.SIGCONT)
