"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Generator
from pathlib import Path

from optfuse.errors import OutputError


def write_whole(path: Path, content: str | bytes, way_out: str = "name another place") -> None:
    """Write a file; the old one stays whole until the new one is complete, and nothing else is left beside it.

    Raises:
        OutputError: When it cannot be written; the message ends with ``way_out``.
    """
    try:
        raw = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise OutputError(f"{path}: cannot be written in UTF-8: {error.reason}") from error
    with whole_file(path, way_out) as draft:
        draft.write_bytes(raw)


@contextlib.contextmanager
def whole_file(path: Path, way_out: str = "name another place") -> Generator[Path]:
    """A temporary path beside ``path`` to write to: it replaces ``path`` on a normal exit, and is removed on any other.

    Raises:
        OutputError: When either cannot be written; the message ends with ``way_out``.
    """
    draft = path.with_name(f".{uuid.uuid4().hex}.part")  # short and unique, for any name and any other writer
    try:
        _refuse_what_is_no_file(path)
        yield draft
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}; {way_out}") from error
    finally:
        with contextlib.suppress(OSError):  # it is not there, or its folder cannot be changed
            draft.unlink()


def _refuse_what_is_no_file(path: Path) -> None:
    """A device or a pipe is not to be replaced by a file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError("it is a folder" if stat.S_ISDIR(mode) else "it is there and is no file")
