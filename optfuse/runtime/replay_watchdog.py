"""What ends a process in which the replay of a CUDA graph with collectives does not end.

A rank that waits in a collective for one that has stopped would wait for ever. NCCL's watchdog ends such a process
after the timeout of the process group, but sees only the collectives that torch launches, none that a CUDA graph
replays. So replays have a watchdog of their own, with the same timeout and the same end: one line that says what
waits, the Python stacks of all threads, and SIGABRT. ``TORCH_NCCL_ASYNC_ERROR_HANDLING=0``, which lets NCCL's wait for
ever, does so here.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from optfuse.runtime.clocks import Mark

#: The watchdog looks so often within a timeout, and at least once in so many seconds.
LOOKS, LONGEST_REST_S = 10, 60.0
#: A group's timeout where this torch does not tell it: that of torch's groups for NCCL.
TIMEOUT_S = 600.0

_log = logging.getLogger(__name__)


class WatchedReplays:
    """The replays of one program that have not been seen to end.

    Args:
        name: The program's collectives, for the message.
        timeout_s: Seconds after which a replay that has not ended is stuck.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name, self.timeout_s = name, timeout_s
        self._pending: deque[tuple[float, Mark]] = deque()
        self._lock = threading.Lock()

    def note(self, end: Mark) -> None:
        """A replay has been queued, and ends at ``end``."""
        self.is_stuck()  # forgets those that have ended
        with self._lock:
            self._pending.append((time.monotonic(), end))

    def is_stuck(self) -> bool:
        """Whether a replay that was queued longer ago than the timeout has not ended."""
        with self._lock:
            while self._pending and self._pending[0][1].reached():
                self._pending.popleft()
            return bool(self._pending) and time.monotonic() - self._pending[0][0] > self.timeout_s


def abort(replays: WatchedReplays) -> None:
    """End the process as NCCL's watchdog does."""
    print(
        f"optfuse: a CUDA graph with collectives ({replays.name}) has not ended in {replays.timeout_s:g} s, the "
        "timeout of its process group: another rank has stopped, or calls other collectives. This process ends.",
        file=sys.stderr,
        flush=True,
    )
    faulthandler.dump_traceback(all_threads=True)
    os.abort()


class Watchdog:
    """A thread that looks at all replays that are watched, and calls ``on_stuck`` with those of which one is stuck."""

    def __init__(self, on_stuck: Callable[[WatchedReplays], None] = abort) -> None:
        self.on_stuck = on_stuck
        self._watched: weakref.WeakSet[WatchedReplays] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._rest_s = LONGEST_REST_S
        self._wakes = threading.Event()
        self._ends = False

    def watch(self, replays: WatchedReplays) -> None:
        """Look at these, too, until their program is gone."""
        with self._lock:
            self._watched.add(replays)
            self._rest_s = min(self._rest_s, replays.timeout_s / LOOKS)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="optfuse replay watchdog", daemon=True)
                self._thread.start()
        self._wakes.set()

    def end(self) -> None:
        """Look no more."""
        self._ends = True
        self._wakes.set()

    def _look(self) -> None:
        while not self._ends:
            self._look_once()
            self._wakes.wait(self._rest_s)
            self._wakes.clear()

    def _look_once(self) -> None:
        with self._lock:
            watched = list(self._watched)
        for replays in watched:
            try:
                is_stuck = replays.is_stuck()
            except RuntimeError as error:  # of the device: the program's own thread meets it, too
                _log.warning("replays of %s are watched no more: %s", replays.name, error)
                with self._lock:
                    self._watched.discard(replays)
                continue
            if is_stuck:
                self.on_stuck(replays)


_watchdog = Watchdog()
atexit.register(_watchdog.end)


def watched_replays(module: Any) -> WatchedReplays | None:
    """The watch on the replays of an emitted module with collectives; None where NCCL's watchdog is told to do nothing.

    The timeout is the longest of the module's process groups.
    """
    if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "").strip() == "0":
        return None
    rows = getattr(module, "COLLECTIVES", ())
    name = ", ".join(sorted({target.split(".")[1] for _, target, *_ in rows})) or "of unknown kind"
    replays = WatchedReplays(name, max(_timeouts({group for group, *_ in rows}, module.DEVICE), default=TIMEOUT_S))
    _watchdog.watch(replays)
    return replays


def _timeouts(groups: Iterable[str], device: torch.device) -> list[float]:
    c10d: Any = torch.distributed.distributed_c10d
    found = []
    for group in groups:
        try:
            backend = c10d._resolve_process_group(group)._get_backend(device)  # noqa: SLF001 - no public name
            found.append(backend.options._timeout.total_seconds())  # noqa: SLF001 - no public name
        except (AttributeError, RuntimeError):  # another torch, or a backend that has no timeout
            found.append(TIMEOUT_S)
    return found
