"""Compile the tree search in a process of its own, which caches the machine code on disk.

Compiling takes some fifteen seconds, once for a machine and a version. Not in a thread: numba meanwhile exchanges the
whole process's warning filters, and Triton's interpreter, if it runs, the built-in functions that numba looks up.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import llvmlite.binding as llvm
import numba
import numpy as np

from optfuse.lab.packing import compiled
from optfuse.lab.packing.layout import Layout
from optfuse.lab.packing.tree import TreeSearch

#: Seconds between two looks at whether it is done.
POLL_SECONDS = 0.05


class Compilation:
    """The compilation of the search: the command that does it, and the file that says that it is done."""

    def __init__(self, kept: Path, command: Sequence[str]) -> None:
        self.kept, self.command = kept, command
        self._process: subprocess.Popen[bytes] | None = None

    def ready(self, deadline: float, stop: Callable[[], bool]) -> bool:
        """Whether it is done by the deadline, before ``stop`` returns True. A later call tries again what failed."""
        if not self.kept.exists():
            process = self._process = self._process or self._begun()
            while process.poll() is None:
                if time.monotonic() >= deadline or stop():
                    return False
                time.sleep(POLL_SECONDS)
            if process.returncode or not self.kept.exists():
                self._process = None
                return False
        return True

    def _begun(self) -> subprocess.Popen[bytes]:
        # A session of its own: an interrupt of ours is none of its. It may outlive us, so it gets none of our pipes.
        with self.kept.with_suffix(".log").open("wb") as said:
            return subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )


def ready(deadline: float, stop: Callable[[], bool] = lambda: False) -> bool:
    """Whether the search is compiled by the deadline (``time.monotonic``), and before ``stop`` returns True.

    It goes on beside, so that a later call, in any process, finds it done.
    """
    return _compilation().ready(deadline, stop)


@cache
def _compilation() -> Compilation:
    return Compilation(_kept(), [sys.executable, "-m", __name__])


def _kept() -> Path:
    """The file that says that the machine code is whole, of this source and versions, for this processor."""
    source = Path(compiled.__file__).stat()
    machine = (sys.version, numba.__version__, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    name = sha256(repr((source.st_mtime, source.st_size, *machine)).encode()).hexdigest()[:16]
    return Path(cast("Any", compiled.advance).stats.cache_path) / f"compiled-{name}.whole"


def _compile() -> None:
    """Search nothing much."""
    one = np.ones(1, np.int64)
    tiny = Layout(1, one, one, 0 * one, one, 1, one)
    TreeSearch(tiny, 1).run(0 * one, True, 1, math.inf)
    _kept().touch()


if __name__ == "__main__":
    _compile()
