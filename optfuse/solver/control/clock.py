"""The clock of a solve: wall time, or an amount of work where answers must repeat; and the request to stop.

Deadlines are times of a clock. Once a solve is told to stop, by ``stop`` or by a KeyboardInterrupt, it is later than
any deadline, and all stages wrap up as they do when time runs out.
"""

from __future__ import annotations

import threading
import time

#: Later than any deadline, even one set after the stop: seconds added to it are lost. Finite, for differences.
NEVER = 1e30


class Clock:
    """The wall clock (``time.monotonic``)."""

    #: Whether only ``spend`` moves the clock on.
    deterministic = False

    def __init__(self, stop: threading.Event | None = None, *, interruptible: bool = True) -> None:
        """``stop`` ends the solve when set; so does a KeyboardInterrupt, unless it is to pass through."""
        self._stop = threading.Event() if stop is None else stop
        self._interruptible = interruptible

    @property
    def stopped(self) -> bool:
        """Whether the solve was told to stop."""
        return self._stop.is_set()

    def now(self) -> float:
        """The time in seconds; only differences mean anything."""
        return NEVER if self._stop.is_set() else time.monotonic()

    def spend(self, seconds: float) -> None:
        """Count work that takes about so many seconds; the wall clock ignores it."""

    def interrupted(self) -> None:
        """To be called where a KeyboardInterrupt was caught: stop, or let it through.

        Raises:
            KeyboardInterrupt: When the solve is not interruptible.
        """
        if not self._interruptible:
            raise KeyboardInterrupt
        self._stop.set()


class WorkClock(Clock):
    """A clock that counts work, so that it reads the same on every run and machine. A second is roughly one core's."""

    deterministic = True

    def __init__(self, stop: threading.Event | None = None, *, interruptible: bool = True) -> None:
        super().__init__(stop, interruptible=interruptible)
        self._spent = 0.0

    def now(self) -> float:
        """The seconds of work done so far."""
        return NEVER if self._stop.is_set() else self._spent

    def spend(self, seconds: float) -> None:
        """Move the clock on."""
        self._spent += seconds


#: For callers that need neither a stop signal nor a count of work.
WALL = Clock(interruptible=False)


def within(clock: Clock, deadline: float, share: float) -> float:
    """The deadline of a step that may use a share of the time left before ``deadline``."""
    now = clock.now()
    return now + share * max(0.0, deadline - now)
