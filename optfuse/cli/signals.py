"""SIGINT and SIGTERM end a command early with its best result so far; a second signal ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals() -> Generator[threading.Event]:
    """Yield an event that the first signal sets. Handlers are changed in the main thread only, and restored."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in STOPPING}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
