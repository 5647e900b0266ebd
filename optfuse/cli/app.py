"""The commands by name, and how each failure leaves the process: the exit code and one line on stderr."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from optfuse.cli import batch, bench, calibrate, check, demo, explain, optimize, solve
from optfuse.errors import OptfuseError

app = typer.Typer(
    name="optfuse",
    help="Optimal kernel fusion for PyTorch: solved with a proof for a stated model of cost, emitted as Triton.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("optimize")(optimize.command)
app.command("solve")(solve.command)
app.command("batch")(batch.command)
app.command("check")(check.command)
app.command("explain")(explain.command)
app.command("demo")(demo.command)
app.command("bench")(bench.command)
app.command("calibrate")(calibrate.command)


def main() -> NoReturn:
    """Run the command line and leave: 0 when all went well, 2 on a usage error or bad input, 130 when interrupted."""
    try:
        app(prog_name="optfuse")
    except OptfuseError as error:
        print(f"optfuse: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
