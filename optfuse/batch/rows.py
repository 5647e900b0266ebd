"""The columns of a run's results, a row a graph and solver, and how a task's outcome becomes such a row."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa

from optfuse.batch.child import Outcome
from optfuse.batch.folders import graph_folder, plan_folder
from optfuse.batch.plan import CaptureTask, SolveTask, versions

_STRINGS = pa.list_(pa.string())

SCHEMA = pa.schema(
    [
        # what it is a row of
        ("graph", pa.string()),
        ("solver", pa.string()),
        ("source", pa.string()),
        ("kind", pa.string()),
        ("mode", pa.string()),
        ("size", pa.string()),
        ("device", pa.string()),
        # how it ended: ok, refused, crash, timeout, memory; at which stage, and why
        ("outcome", pa.string()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        # what was found; times under the model in picoseconds
        ("status", pa.string()),
        ("proven", pa.bool_()),
        ("objective", pa.int64()),
        ("bound", pa.int64()),
        ("gap", pa.float64()),
        ("greedy_objective", pa.int64()),
        ("saved", pa.float64()),
        ("ops", pa.int64()),
        ("library_calls", pa.int64()),
        ("library_ops", _STRINGS),
        ("decisions", _STRINGS),
        ("kernels", pa.int64()),
        ("greedy_kernels", pa.int64()),
        ("moved_bytes", pa.int64()),
        ("blocks", pa.int64()),
        ("unique_blocks", pa.int64()),
        ("candidates", pa.int64()),
        ("cuts", pa.int64()),
        ("rounds", pa.int64()),
        ("peak_memory_bytes", pa.int64()),
        ("greedy_peak_memory_bytes", pa.int64()),
        ("source_bytes", pa.int64()),
        ("given_up", _STRINGS),
        # of the solver "inductor": how far greedy agrees with it, and what became of its kernels on the way to ours
        ("agreement", pa.float64()),
        ("agreement_once", pa.float64()),
        ("agreement_legal", pa.float64()),
        ("rand_index", pa.float64()),
        ("fusible", pa.int64()),
        ("launches", pa.int64()),
        ("unmapped", pa.int64()),
        ("unmapped_ops", _STRINGS),
        ("split", pa.int64()),
        ("repeated", pa.int64()),
        ("loops_there", pa.int64()),
        ("library_there", pa.int64()),
        ("two_stages", pa.int64()),
        ("strangers", pa.int64()),
        ("redundant", pa.int64()),
        # what it took, in seconds and bytes
        ("capture_s", pa.float64()),
        ("prepare_s", pa.float64()),
        ("load_s", pa.float64()),
        ("solve_s", pa.float64()),
        ("emit_s", pa.float64()),
        ("wall_s", pa.float64()),
        ("cpu_s", pa.float64()),
        ("peak_rss_bytes", pa.int64()),
        # where it lies in the run, under which limits and versions it was made
        ("plan", pa.string()),
        ("prepared", pa.string()),
        ("task_limit_s", pa.float64()),
        ("memory_limit_gib", pa.float64()),
        ("versions", pa.string()),
        ("key", pa.string()),
        ("finished", pa.timestamp("us", tz="UTC")),
    ]
)

Row = dict[str, Any]


def solved_row(task: SolveTask, outcome: Outcome, captured: Row) -> Row:
    """The row of a solve. ``captured``: what the capture said of the graph."""
    run, ok = task.run, outcome.kind == "ok"
    figures = {**captured, **outcome.figures}
    return {
        **_head(task),
        **{name: value for name, value in figures.items() if name in SCHEMA.names},
        "outcome": outcome.kind,
        "stage": "solve",
        "reason": outcome.reason,
        "wall_s": outcome.wall_s,
        "cpu_s": outcome.cpu_s,
        "peak_rss_bytes": outcome.peak_rss,
        "plan": plan_folder(run, task.graph, task.solver).relative_to(run).as_posix() if ok else None,
        "prepared": graph_folder(run, task.graph).relative_to(run).as_posix(),
    }


def uncaptured_row(task: SolveTask, reason: str, kind: str, wall_s: float, cpu_s: float, peak_rss: int) -> Row:
    """The row of a solve that cannot be, since its graph was not captured. Times are the capture's."""
    return {
        **_head(task),
        "outcome": kind,
        "stage": "capture",
        "reason": reason,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_rss_bytes": peak_rss,
    }


def _head(task: SolveTask) -> Row:
    capture: CaptureTask = task.capture
    return {
        "graph": task.graph,
        "solver": task.solver,
        "source": str(capture.source.path),
        "kind": capture.source.kind,
        "mode": capture.mode,
        "size": capture.size,
        "device": capture.device,
        "task_limit_s": task.limits.seconds,
        "memory_limit_gib": task.limits.gib,
        "versions": json.dumps(dict(versions())),
        "key": task.key,
        "finished": dt.datetime.now(dt.UTC),
    }
