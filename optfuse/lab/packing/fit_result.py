"""The result of a search for a packing within a capacity, and a watcher that stops a running model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from optfuse.lab.packing.layout import Outcome
from optfuse.lab.packing.sections import SectionModel

#: Seconds between two calls of ``stop``.
POLL_SECONDS = 0.05

Method = Literal["bound", "tree", "cpsat", "windows", "none"]


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether some buffers fit, and where (units): ``offsets`` are empty unless ``outcome`` is "packed"."""

    outcome: Outcome
    offsets: tuple[int, ...] = ()
    method: Method = "none"
    nodes: int = 0


@contextmanager
def stop_when(stop: Callable[[], bool], model: SectionModel) -> Generator[None]:
    """Context in which a thread stops a model's search as soon as ``stop`` returns True."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            if stop():
                model.stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
