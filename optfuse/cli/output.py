"""What commands print: tables and progress on stderr or stdout, and one JSON document on stdout when asked for."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from optfuse.report.summary import change

MIB = 1 << 20
US = 1_000_000


@contextlib.contextmanager
def quiet_stdout(json_output: bool) -> Generator[None]:
    """Context in which other output (of a model file, for example) goes to stderr if JSON is to be printed."""
    if not json_output:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def print_json(document: object) -> None:
    """Print the document of ``--json``."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """Print a line of progress or a remark to stderr."""
    print(line, file=sys.stderr, flush=True)


def complain(message: object) -> None:
    """Print an error to stderr as one line."""
    say(f"optfuse: error: {' '.join(str(message).split())}")


def summary_table(records: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table of greedy and chosen schedules, a row for each graph."""
    table = Table(title="Predicted time of one run under the stated cost model", title_justify="left")
    table.add_column("graph", overflow="fold")
    headings = "ops|greedy kernels|kernels|greedy us|chosen us|change|bound us|gap|status|peak MiB|seconds"
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading == "status" else "right")
    for record in records:
        table.add_row(
            str(record["name"]),
            f"{record['ops']:,}",
            f"{record['greedy_kernels']:,}",
            f"{record['kernels']:,}",
            f"{record['greedy_objective'] / US:,.1f}",
            f"{record['objective'] / US:,.1f}",
            change(record["greedy_objective"], record["objective"]),
            f"{record['bound'] / US:,.1f}",
            f"{record['gap']:.2%}",
            str(record["status"]),
            f"{record['peak_memory_bytes'] / MIB:,.1f}",
            f"{record['wall_s']:.1f}",
        )
    return table


def print_summary(records: Iterable[Mapping[str, Any]]) -> None:
    """Print ``summary_table`` to stdout."""
    print_table(summary_table(records))


def print_table(table: Table, width: int = 160) -> None:
    """Print a table to stdout, as wide as it needs, up to ``width`` where that is not a terminal."""
    console = Console()
    text = Console(width=None if console.is_terminal else width)
    with text.capture() as captured:
        text.print(table)
    sys.stdout.write(captured.get())  # rich itself would leave without a word when the reader has gone
