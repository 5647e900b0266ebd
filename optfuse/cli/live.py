"""Objective, bound and gap of a running solve as one line that changes, where stderr is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from optfuse.solver.control.progress import OnProgress, Progress

US = 1_000_000


@contextlib.contextmanager
def live_line(name: str, console: Console | None = None) -> Generator[OnProgress | None]:
    """Yield the function to call with every ``Progress``; None if stderr is not a terminal."""
    console = Console(stderr=True) if console is None else console
    if not console.is_terminal:
        yield None
        return
    with Live(Text(f"{name}: reading"), console=console, transient=True, refresh_per_second=8) as live:
        yield lambda record: live.update(Text(line(name, record), overflow="ellipsis", no_wrap=True))


def line(name: str, record: Progress) -> str:
    """Return the line of a record: stage, incumbent, bound and gap."""
    return (
        f"{name}: {record.seconds:6.1f} s  {record.stage:8}  best {record.objective / US:,.1f} us  "
        f"bound {record.bound / US:,.1f} us  gap {record.gap:.2%}"
    )
