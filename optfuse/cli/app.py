"""The commands by name, and how each failure leaves the process: the exit code and one line on stderr."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer

from optfuse import __version__
from optfuse.cli import (
    batch,
    bench,
    calibrate,
    check,
    compare,
    demo,
    explain,
    export,
    generate,
    optimize,
    pack,
    pareto,
    passes,
    report,
    solve,
)
from optfuse.cli.output import complain
from optfuse.errors import OptfuseError

#: What typer raises for arguments that it cannot read; of its family, only this one has a public name.
UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="optfuse",
    help="Optimal kernel fusion for PyTorch: solved with a proof for a stated model of cost, emitted as Triton.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"optfuse {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What holds before any command: the version is said by the option's callback."""


app.command("optimize")(optimize.command)
app.command("solve")(solve.command)
app.command("batch")(batch.command)
app.command("report")(report.command)
app.command("compare")(compare.command)
app.command("check")(check.command)
app.command("explain")(explain.command)
app.command("export")(export.command)
app.command("generate")(generate.command)
app.command("pack")(pack.command)
app.command("pareto")(pareto.command)
app.command("passes")(passes.command)
app.command("demo")(demo.command)
app.command("bench")(bench.command)
app.command("calibrate")(calibrate.command)


def main() -> NoReturn:
    """Run the command line and leave: 0 when all went well, 2 on a usage error or bad input, 130 when interrupted."""
    try:
        code = app(prog_name="optfuse", standalone_mode=False)
    except OptfuseError as error:
        complain(error)
        sys.exit(2)
    except UsageError as error:
        if message := error.format_message():  # empty where the help was shown instead
            command = "optfuse" if error.ctx is None else error.ctx.command_path
            complain(f"{message.rstrip('.')}; see {command} --help")
        sys.exit(2)
    sys.exit(code or 0)
