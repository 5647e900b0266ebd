"""SIGINT and SIGTERM as a wish to stop: the command wraps up and reports what it has. A second one ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals() -> Generator[threading.Event]:
    """An event that is set by the first such signal. Handlers are changed in the main thread only, and put back."""
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
