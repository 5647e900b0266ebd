"""Standard streams that cannot be written, and other failures of the system, as errors of one line."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from optfuse.errors import OptfuseError, OutputError

#: What a failure of standard output names in place of a file.
STDOUT = "standard output"


class _StandardOutput(io.FileIO):
    """File descriptor 1; its errors name standard output."""

    def write(self, data: Any, /) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


def open_streams() -> None:
    """Replace closed standard streams by the null device, and let standard output print any file name."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the rest of the process
    before = sys.stdout
    if before is sys.__stdout__ and isinstance(before, io.TextIOWrapper) and before.fileno() == 1:
        before.flush()
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_StandardOutput(1, "wb", closefd=False)),
            before.encoding,
            "backslashreplace",
            line_buffering=before.line_buffering or before.write_through,
        )


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an ``OSError`` becomes an ``OptfuseError`` of one line."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
            sys.stdout.flush()
        except OSError as error:
            raise explained(error) from error

    return run


def explained(error: OSError) -> OptfuseError:
    """Return an error that names what could not be read or written, and why."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename == STDOUT:
        return OutputError(f"{STDOUT}: cannot be written ({reason}); what was to be printed is not complete")
    if error.filename is not None:
        return OutputError(f"{os.fsdecode(error.filename)}: {reason}")
    return OutputError(f"a file, pipe or process failed: {reason}")


def discard_rest(stream: TextIO) -> None:
    """Flush a stream; if that fails, point it to the null device, or the interpreter would flush it again at exit."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()
