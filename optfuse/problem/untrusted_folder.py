"""Check untrusted folders: no entry of them leads to a file outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from optfuse.errors import PlanError


def require_enclosed(folder: Path, *, deep: bool = False) -> None:
    """Refuse a folder that holds a link leading out of it, or something that is neither a file nor a folder.

    Otherwise a plan's file could be a link to a private file, which a report would quote, or a run's file one that is
    overwritten. ``deep``: check folders below too. The folder itself may be a link, and need not exist.

    Raises:
        PlanError: If there is such an entry, or the folder cannot be listed.
    """
    if not folder.is_dir():
        return
    root = folder.resolve()
    try:
        for entry in _entries(root, deep):
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root):
                raise PlanError(f"{entry.path}: a link that leads out of {root}; put what it leads to in its place")
            if not (entry.is_symlink() or entry.is_file() or entry.is_dir()):
                raise PlanError(f"{entry.path}: neither a file nor a folder; remove it")
    except OSError as error:
        raise PlanError(f"{folder}: cannot be listed: {error.strerror or error}") from error


def _entries(folder: Path, deep: bool) -> Iterator[os.DirEntry[str]]:
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if deep and entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
