"""The parent process of a bench: starts workers until every task is measured or failed, and keeps the document."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from optfuse.lab.bench.records import Record, Settings, Task
from optfuse.lab.bench.siblings import resume_all
from optfuse.lab.bench.summary import summarize
from optfuse.runtime.processes import python, session

#: Seconds between two reads of a worker's events.
POLL_SECONDS = 0.2
#: Last lines of a dead worker's stderr that are quoted as the reason.
TAIL = 3


@dataclass(slots=True)
class Document:
    """The document of a bench: all measurements so far, in the order of the tasks."""

    record: Record

    @staticmethod
    def of(tasks: Sequence[Task], settings: Settings) -> Document:
        """Return a document without measurements."""
        rows = [
            {"row": task.row, "model": task.name, "train": task.train, "asked": list(task.systems), "systems": {}}
            for task in tasks
        ]
        return Document({"settings": asdict(settings), "versions": {}, "yardstick": {}, "rows": rows, "kernels": []})

    def take(self, event: Record) -> None:
        """Add the measurements of one event of a worker."""
        facts = {key: value for key, value in event.items() if key not in ("event", "row", "system")}
        match event["event"]:
            case "versions":
                self.record["versions"] = facts
            case "yardstick":
                self.record["yardstick"] = facts
            case "done":
                self._row(event["row"])["systems"][event["system"]] = facts
            case "kernels":
                self.record["kernels"] += event["kernels"]
            case _:
                pass

    def _row(self, name: str) -> Record:
        return next(row for row in self.record["rows"] if row["row"] == name)

    def missing(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks with the systems that are neither measured nor failed."""
        left = [
            replace(task, systems=tuple(s for s in task.systems if s not in self._row(task.row)["systems"]))
            for task in tasks
        ]
        return [task for task in left if task.systems]


def run(
    tasks: Sequence[Task],
    settings: Settings,
    *,
    limit: float,
    patience: float,
    say: Callable[[str], None],
    keep: Callable[[Record], None],
) -> Record:
    """Measure all tasks.

    Args:
        limit: Seconds after which no further system is started.
        patience: Seconds without an event after which a worker is killed.
        say, keep: Called with a line of progress, and with the document whenever it has grown.

    Returns:
        The document: settings, versions, yardstick, rows, kernels and their summary.
    """
    document = Document.of(tasks, settings)
    end = time.monotonic() + limit

    def take(event: Record) -> None:
        document.take(event)
        line = progress(event)
        if line:
            say(line)
        if event["event"] in ("done", "kernels"):
            document.record["summary"] = summarize(document.record)
            keep(document.record)

    left = document.missing(tasks)
    while left:
        _one_worker(left, settings, end - time.monotonic(), patience, take)
        still = document.missing(tasks)
        if still == left:  # a worker that died before its first event would die again
            for task in still:
                for system in task.systems:
                    take(_failure(task.row, system, "the worker did not start"))
            break
        left = still
    document.record["summary"] = summarize(document.record)
    keep(document.record)
    return document.record


def _one_worker(
    tasks: Sequence[Task], settings: Settings, seconds: float, patience: float, take: Callable[[Record], None]
) -> None:
    """Run a worker to its end, or kill it after ``patience`` seconds without an event: the system begun then failed."""
    with tempfile.TemporaryDirectory(prefix="optfuse-bench-") as folder:
        request, out, errors = (Path(folder) / name for name in ("request.json", "out.jsonl", "stderr.txt"))
        body = {"tasks": [asdict(task) for task in tasks], "settings": asdict(settings), "seconds_left": seconds}
        request.write_text(json.dumps(body))
        out.touch()
        began: tuple[str, str] | None = None
        with errors.open("w") as stderr, out.open(encoding="utf-8") as lines:
            command = python("optfuse.lab.bench.worker", request, out)
            with session(command, stdout=subprocess.DEVNULL, stderr=stderr) as (process,):
                heard, reason = time.monotonic(), ""
                while True:
                    ended = process.poll() is not None
                    for line in _whole_lines(lines):
                        event = json.loads(line)
                        heard = time.monotonic()
                        began = _begun(began, event)
                        take(event)
                    if ended:
                        break
                    if time.monotonic() - heard > patience:
                        reason = f"no answer for {patience:.0f} s"
                        process.kill()
                    time.sleep(POLL_SECONDS)
            resume_all()
        if began is not None:
            tail = " | ".join(errors.read_text(errors="replace").strip().splitlines()[-TAIL:])
            take(_failure(*began, reason or f"the process ended with code {process.returncode}: {tail[:600]}"))


def _whole_lines(lines: TextIO) -> list[str]:
    """Return the complete lines from the file's position on, and move past them."""
    found: list[str] = []
    while True:
        position = lines.tell()
        line = lines.readline()
        if not line.endswith("\n"):
            lines.seek(position)
            return found
        found.append(line)


def _begun(before: tuple[str, str] | None, event: Record) -> tuple[str, str] | None:
    match event["event"]:
        case "begin":
            return event["row"], event["system"]
        case "done":
            return None
        case _:
            return before


def _failure(row: str, system: str, reason: str) -> Record:
    return {"event": "done", "row": row, "system": system, "status": "failed", "reason": reason}


def progress(event: Record) -> str:
    """Return the line of progress that an event is shown as; "" for none."""
    match event["event"]:
        case "versions":
            return ", ".join(f"{key} {event[key]}" for key in ("device", "torch", "triton", "optfuse", "python"))
        case "yardstick" if event["copies"]:
            best = max(size / us for size, us in event["copies"])
            return f"copies reach {best / 1e3:.0f} GB/s; {event['gap_us']:.2f} us between kernels of a graph"
        case "done" if event["status"] == "ok":
            judged = event.get("check", {}).get("passed")
            verdict = {True: ", checked", False: ", WRONG", None: ""}[judged]
            busy = f", GPU {event['gpu_ms']:.3f} (Triton {event['triton_ms']:.3f})" if "gpu_ms" in event else ""
            return (
                f"{event['row']}: {event['system']} {event['median_ms']:.3f} ms{busy}, "
                f"compiled in {event['compile_s']:.1f} s{verdict}"
            )
        case "done":
            return f"{event['row']}: {event['system']} failed: {event['reason']}"
        case _:
            return ""
