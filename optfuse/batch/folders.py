"""The paths of a run, and files and folders that are written atomically."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import quote


def graph_folder(run: Path, graph: str) -> Path:
    """A prepared graph (see ``optfuse.schedule.prepared``), or an instance alone."""
    return run / "graphs" / file_name(graph)


def plan_folder(run: Path, graph: str, solver: str) -> Path:
    """A plan, which ``optfuse.load`` reads; for an instance, its solutions alone."""
    return run / "plans" / file_name(graph) / file_name(solver)


def log_file(run: Path, task: str) -> Path:
    """The path of the output of a task that failed."""
    return run / "logs" / (file_name(task) + ".log")


def file_name(text: str) -> str:
    """Encode a name as the name of one file or folder, without separators or "..": it cannot leave its folder."""
    name = quote(text, safe="")
    return name if name.strip(".") else name.replace(".", "%2E") or "%"


def temporary(run: Path) -> Path:
    """Return a fresh path for something incomplete; the next run removes what is left there."""
    folder = run / "tmp"
    folder.mkdir(exist_ok=True)
    return folder / uuid.uuid4().hex


@contextlib.contextmanager
def whole_folder(run: Path, target: Path) -> Generator[Path]:
    """An empty folder that replaces ``target`` on a normal exit and is removed on an error."""
    made = temporary(run)
    made.mkdir()
    try:
        yield made
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(temporary(run))
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_json(run: Path, target: Path, data: dict[str, Any]) -> None:
    """Write a JSON file; the old one stays whole until the new one is complete."""
    made = temporary(run)
    try:
        made.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(made, target)
    finally:
        with contextlib.suppress(OSError):  # it has its name, or its disk takes no change
            made.unlink()
