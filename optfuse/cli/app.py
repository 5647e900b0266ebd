"""The commands by name, and how each failure leaves the process: the exit code and one line on stderr."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any, NoReturn

import typer

from optfuse.cli import (
    batch,
    bench,
    calibrate,
    check,
    compare,
    demo,
    explain,
    generate,
    optimize,
    pack,
    pareto,
    passes,
    report,
    solve,
)
from optfuse.cli.output import complain
from optfuse.cli.streams import discard_rest, explained, guarded, open_streams
from optfuse.errors import OptfuseError
from optfuse.version import __version__

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


COMMANDS = {
    "optimize": optimize,
    "solve": solve,
    "batch": batch,
    "report": report,
    "compare": compare,
    "check": check,
    "explain": explain,
    "generate": generate,
    "pack": pack,
    "pareto": pareto,
    "passes": passes,
    "demo": demo,
    "bench": bench,
    "calibrate": calibrate,
}
for name, module in COMMANDS.items():
    app.command(name)(guarded(module.command))


def main() -> NoReturn:
    """Run the command line and leave: 0 when all went well, 2 on a usage error or bad input, 130 when interrupted."""
    open_streams()
    try:
        code = app(prog_name="optfuse", standalone_mode=False) or 0
        sys.stdout.flush()
    except OptfuseError as error:
        code = _refuse(error)
    except UsageError as error:
        code = 2
        if message := error.format_message():  # empty where the help was shown instead
            command = "optfuse" if error.ctx is None else error.ctx.command_path
            code = _refuse(f"{message.rstrip('.')}; see {command} --help")
    except OSError as error:  # of the help and the version: commands are guarded
        code = _refuse(explained(error))
    except SystemExit as stop:
        if not isinstance(stop.__context__, OSError):
            raise
        code = _refuse(explained(stop.__context__))  # typer leaves without a word when the reader has gone
    for stream in (sys.stdout, sys.stderr):
        discard_rest(stream)
    sys.exit(code)


def _refuse(message: object) -> int:
    """Say what is wrong, where standard error takes it; the exit code."""
    with contextlib.suppress(OSError):
        complain(message)
    return 2
