"""The predicted timeline as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, in the trace-event JSON format.

Each schedule is a process: the chosen one first, greedy fusion's below it. Generated kernels and library calls are two
threads of it, one kernel after another, and live memory a counter. Where a graph communicates, the device is one
thread, in which waits for transfers are slices too, and each communicator another. Times are predictions of the cost
model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from optfuse.files import write_whole
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.report.lanes import NO_KERNEL, Lanes, lanes
from optfuse.report.summary import certificate, communication
from optfuse.report.table import KernelRow, kernel_rows
from optfuse.solver.result import SolveResult

US = 1_000_000
GENERATED, LIBRARY = 1, 2
#: With communication: the device's thread; communicators, from 1, come after it.
DEVICE = 1
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
            **({"communication": communication(result)} if communication(result) else {}),
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
    rows = kernel_rows(instance, solution)
    timed = lanes(instance, solution)
    yield from _one_by_one(rows, process) if timed is None else _in_lanes(rows, timed, process)


def _one_by_one(rows: Sequence[KernelRow], process: int) -> Iterator[dict[str, Any]]:
    """Kernels one after the other; library calls have a thread of their own."""
    yield _name(process, GENERATED, "thread_name", "generated kernels")
    yield _name(process, LIBRARY, "thread_name", "library calls")
    now = 0
    live = 0
    for row in rows:
        live = row.live_bytes
        yield _memory(process, now, live)
        yield _slice(row, process, GENERATED if row.kind == "loop" else LIBRARY, (now, now + row.predicted_ps))
        now += row.predicted_ps
    yield _memory(process, now, live)


def _in_lanes(rows: Sequence[KernelRow], timed: Lanes, process: int) -> Iterator[dict[str, Any]]:
    """Transfers beside kernels: a thread for the device, with its waits, and one for each communicator."""
    yield _name(process, DEVICE, "thread_name", "kernels")
    for channel in timed.communicators:
        yield _name(process, DEVICE + channel, "thread_name", f"communicator {channel}")
    for row, launch in zip(rows, timed.launches, strict=True):
        yield _memory(process, launch, row.live_bytes)
    yield _memory(process, timed.makespan, rows[-1].live_bytes)
    for thread, spans in ((DEVICE, timed.device), *((DEVICE + c, mine) for c, mine in timed.communicators.items())):
        for span in spans:
            yield _slice(rows[span.kernel], process, thread, (span.begin, span.end))
    for span in timed.exposed:
        what = "the end of all transfers" if span.kernel == NO_KERNEL else kernel_label(rows[span.kernel])
        yield {
            **_complete(process, DEVICE, (span.begin, span.end)),
            "name": f"waits: {what}",
            "cat": "exposed",
            "args": {},
        }


def _slice(row: KernelRow, process: int, thread: int, span: tuple[int, int]) -> dict[str, Any]:
    return {
        **_complete(process, thread, span),
        "name": kernel_label(row),
        "cat": "kernel" if row.kind == "loop" else row.kind,
        "args": {
            "ops": list(row.ops),
            "scheme": row.scheme,
            "bound by": row.bound_by,
            "bytes read": row.read_bytes,
            "bytes written": row.write_bytes,
            "live bytes": row.live_bytes,
        },
    }


def _complete(process: int, thread: int, span: tuple[int, int]) -> dict[str, Any]:
    begin, end = span
    return {"ph": "X", "pid": process, "tid": thread, "ts": begin / US, "dur": (end - begin) / US}


def _memory(process: int, now: int, live: int) -> dict[str, Any]:
    return {"ph": "C", "pid": process, "tid": 0, "ts": now / US, "name": "live memory", "args": {"bytes": live}}


def _name(process: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}
