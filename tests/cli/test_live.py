from __future__ import annotations

import io

from rich.console import Console

from optfuse.cli.live import line, live_line
from optfuse.solver.control.progress import Progress

RECORD = Progress(1.25, "search", 2_000_000, 1_500_000)


def test_the_line_says_best_bound_and_gap() -> None:
    assert line("g", RECORD) == "g:    1.2 s  search    best 2.0 us  bound 1.5 us  gap 25.00%"


def test_off_when_not_a_terminal() -> None:
    stream = io.StringIO()
    with live_line("g", Console(file=stream)) as on_progress:
        assert on_progress is None
    assert stream.getvalue() == ""


def test_it_changes_in_place_on_a_terminal() -> None:
    stream = io.StringIO()
    with live_line("g", Console(file=stream, force_terminal=True, width=120)) as on_progress:
        assert on_progress is not None
        on_progress(RECORD)
    assert "gap 25.00%" in stream.getvalue()
