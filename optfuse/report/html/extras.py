"""What a page may show beside its schedules: a bench's measurements, and a sweep of memory caps, from their JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optfuse.errors import PlanError

#: Of a kernel's line in a bench: which model, what it is, what the model said, what the device took.
_KERNEL = ("row", "name", "kind", "predicted_us", "measured_us", "read_bytes", "write_bytes", "peak_share")
_ROW = ("row", "times_ms", "speedup", "memory_ratio", "compile_ratio", "wrong", "failed")
_CAP = ("name", "cap_bytes", "status", "peak_memory_bytes", "objective", "bound", "floor_bytes")


def bench_extra(path: Path) -> dict[str, Any]:
    """The measurements of ``optfuse bench --json``.

    Raises:
        PlanError: When the file is missing or is no such document.
    """
    document = _read(path)
    try:
        summary = document["summary"]
        return {
            "device": str(document["versions"].get("device", "")),
            "torch": str(document["versions"].get("torch", "")),
            "kernels": [_kept(kernel, _KERNEL) for kernel in document["kernels"]],
            "rows": [_kept(row, _ROW) for row in summary["rows"]],
            "geomean": summary["geomean_speedup"],
            "prediction": summary["prediction"],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_of("bench", path, error) from error


def pareto_extra(path: Path) -> list[dict[str, Any]]:
    """The caps of ``optfuse pareto --json``, graph by graph.

    Raises:
        PlanError: When the file is missing or is no such list.
    """
    rows = _read(path)
    try:
        kept = [_kept(row, _CAP) for row in rows]
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_of("pareto", path, error) from error
    names = dict.fromkeys(str(row["name"]) for row in kept)
    return [{"name": name, "caps": [row for row in kept if row["name"] == name]} for name in names]


def _not_of(command: str, path: Path, error: Exception) -> PlanError:
    what = f"it has no {error}" if isinstance(error, KeyError) else "it is built otherwise"
    return PlanError(f"{path}: not what optfuse {command} --json writes: {what}")


def _kept(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: record[name] for name in names}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise PlanError(f"{path}: cannot be read as JSON: {error}") from error
