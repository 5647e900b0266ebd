"""The predicted timeline as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, in the trace-event JSON format.

Each schedule is a process: the chosen one first, greedy fusion's below it. Generated kernels and library calls are two
threads of it, live memory a counter. Times are predictions of the cost model, one kernel after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optfuse.files import write_whole
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.report.summary import certificate
from optfuse.report.table import KernelRow, kernel_rows
from optfuse.solver.result import SolveResult

US = 1_000_000
GENERATED, LIBRARY = 1, 2
NAMED_OPS = 4


def trace(instance: Instance, result: SolveResult) -> dict[str, Any]:
    """The trace as plain data: ``ts`` and ``dur`` are microseconds under the model, sizes are bytes."""
    events = [
        *_process(instance, result.solution, 1, f"{instance.name}: chosen (predicted)"),
        *_process(instance, result.greedy_solution, 2, f"{instance.name}: greedy (predicted)"),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "graph": instance.name,
            "device": ", ".join(device.name for device in instance.devices),
            "certificate": certificate(result),
            "note": "predictions of a cost model, not measurements",
        },
    }


def save_trace(instance: Instance, result: SolveResult, path: str | Path) -> None:
    """Write the trace.

    Raises:
        OutputError: When the file cannot be written.
    """
    text = json.dumps(trace(instance, result), separators=(",", ":"), allow_nan=False)
    write_whole(Path(path), text + "\n", "name another file")


def kernel_label(row: KernelRow) -> str:
    """A kernel's number and its first ops, such as "k3 exp, add, sum_1 +2"."""
    more = f" +{len(row.ops) - NAMED_OPS}" if len(row.ops) > NAMED_OPS else ""
    return f"k{row.index} {', '.join(row.ops[:NAMED_OPS])}{more}"


def _process(instance: Instance, solution: Solution, process: int, name: str) -> Iterator[dict[str, Any]]:
    yield _name(process, 0, "process_name", name)
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    yield _name(process, GENERATED, "thread_name", "generated kernels")
    yield _name(process, LIBRARY, "thread_name", "library calls")
    now = 0
    live = 0
    for row in kernel_rows(instance, solution):
        generated = row.kind == "loop"
        live = row.live_bytes
        yield _memory(process, now, live)
        yield {
            "ph": "X",
            "pid": process,
            "tid": GENERATED if generated else LIBRARY,
            "ts": now / US,
            "dur": row.predicted_ps / US,
            "name": kernel_label(row),
            "cat": "kernel" if generated else row.kind,
            "args": {
                "ops": list(row.ops),
                "scheme": row.scheme,
                "bound by": row.bound_by,
                "bytes read": row.read_bytes,
                "bytes written": row.write_bytes,
                "live bytes": row.live_bytes,
            },
        }
        now += row.predicted_ps
    yield _memory(process, now, live)


def _memory(process: int, now: int, live: int) -> dict[str, Any]:
    return {"ph": "C", "pid": process, "tid": 0, "ts": now / US, "name": "live memory", "args": {"bytes": live}}


def _name(process: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}
