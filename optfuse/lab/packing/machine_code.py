"""Have the tree search compiled, in a process of its own that keeps the machine code on disk.

Compiling takes some fifteen seconds, once for a machine and a version. Not in a thread: numba meanwhile exchanges the
whole process's warning filters, and Triton's interpreter, if it runs, the built-in functions that numba looks up.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
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
COMMAND = [sys.executable, "-m", __name__]


def ready(deadline: float, stop: Callable[[], bool] = lambda: False) -> bool:
    """Whether the search is compiled by the deadline (``time.monotonic``), and before ``stop`` returns True.

    It goes on beside, so that a later call, in any process, finds it done. What failed, a later call tries again.
    """
    if not _kept().exists():
        process = _compiling()
        while process.poll() is None:
            if time.monotonic() >= deadline or stop():
                return False
            time.sleep(POLL_SECONDS)
        if process.returncode or not _kept().exists():
            _compiling.cache_clear()
            return False
    return True


@cache
def _compiling() -> subprocess.Popen[bytes]:
    # A session of its own: an interrupt of ours is none of its. It may outlive us, so it gets none of our pipes.
    with _kept().with_suffix(".log").open("wb") as said:
        return subprocess.Popen(
            COMMAND, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )


@cache
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
