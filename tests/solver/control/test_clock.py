from __future__ import annotations

import threading
import time

import pytest

from optfuse.solver.control.clock import NEVER, WALL, Clock, WorkClock, within


def test_the_wall_moves_by_itself() -> None:
    clock = Clock()
    before = time.monotonic()
    assert before <= clock.now() <= time.monotonic()


def test_work_moves_only_by_what_is_spent() -> None:
    clock = WorkClock()
    start = clock.now()
    time.sleep(0.01)
    assert clock.now() == start
    clock.spend(2.5)
    assert clock.now() == start + 2.5


@pytest.mark.parametrize("kind", [Clock, WorkClock])
def test_once_stopped_it_is_later_than_any_deadline(kind: type[Clock]) -> None:
    stop = threading.Event()
    clock = kind(stop)
    deadline = clock.now() + 1e9
    assert clock.now() < deadline
    stop.set()
    assert clock.stopped
    assert clock.now() >= deadline
    # Deadlines made after the stop have passed as well.
    assert clock.now() >= within(clock, deadline, 0.5)
    assert clock.now() >= clock.now() + 600
    assert within(clock, NEVER, 1.0) - clock.now() == 0


def test_an_interrupt_stops_or_passes_through() -> None:
    clock = Clock()
    clock.interrupted()
    assert clock.stopped
    with pytest.raises(KeyboardInterrupt):
        WALL.interrupted()
    assert not WALL.stopped
