"""The host's clock and the device's, and calls that take the host longer on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Mark(Protocol):
    """A point in the device's work."""

    def reached(self) -> bool:
        """Whether the device has come there; never waits."""
        ...

    def wait(self) -> None:
        """Wait until the device has come there."""
        ...

    def us_since(self, earlier: Mark) -> float | None:
        """Microseconds between two marks that were reached; None if one clock does not have both."""
        ...


class Clock(Protocol):
    """The host's time in microseconds; a stand-in in tests."""

    def now(self) -> float:
        """The time."""
        ...

    def wait_until(self, us: float) -> None:
        """Keep the host busy until then."""
        ...


class HostClock:
    """The host's real time."""

    def now(self) -> float:
        """Microseconds since some moment."""
        return 1e6 * time.perf_counter()

    def wait_until(self, us: float) -> None:
        """Keep the thread busy, as launches would: it does not sleep."""
        while self.now() < us:
            pass


@dataclass(slots=True)
class Slowing:
    """Makes a call take longer by ``share``, launch by launch. ``spent``: by how many microseconds it has."""

    share: float
    clock: Clock
    last: float = 0.0
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.last = self.clock.now()

    def wait(self) -> None:
        """Take a share of the time since the last wait."""
        now = self.clock.now()
        self.clock.wait_until(now + self.share * (now - self.last))
        self.last = self.clock.now()
        self.spent += self.last - now

    def after(self, launch: Callable[..., None]) -> Callable[..., None]:
        """A function that launches, and waits."""

        def slowly(*arguments: object) -> None:
            launch(*arguments)
            self.wait()

        return slowly
