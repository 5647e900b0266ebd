"""The process that measures: takes tasks, and writes a line of JSON for all that begins and all that is found.

It is a process of its own because a kernel that fails takes the whole CUDA context with it. ``lab.bench.run`` starts
another one then, which goes on behind the system that failed.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from optfuse.lab.bench.checks import Reference, check, reference
from optfuse.lab.bench.kernels import kernel_record, measure_steps, steps_of
from optfuse.lab.bench.meter import Meter, meter
from optfuse.lab.bench.records import Record, Settings, System, Task
from optfuse.lab.bench.systems import Case, Prepared, Systems, forget, inductor_flags, load_case, versions
from optfuse.lab.bench.yardstick import Yardstick, measure_yardstick
from optfuse.runtime.processes import leave_with_parent

#: Calls that are profiled.
PROFILED = 3
#: Kernels by name that a record lists.
LISTED = 60
#: The exit code of a worker whose device is broken for good.
BROKEN = 3

Write = Callable[[Record], None]


class BrokenDeviceError(RuntimeError):
    """A kernel failed in a way that no later call survives."""


def work(
    tasks: Sequence[Task],
    settings: Settings,
    write: Write,
    deadline: float,
    device: Meter | None = None,
    *,
    warm_up: bool = True,
) -> None:
    """Measure every task; what fails is a record with its reason. Nothing is begun after ``deadline`` (monotonic).

    Without ``warm_up`` the first row pays for what every compilation needs once.
    """
    device = meter() if device is None else device
    write({"event": "versions", **versions(), "inductor": inductor_flags()})
    if warm_up:
        _warm_up(device)
    with device.alone():
        yardstick = measure_yardstick(device)
    write({"event": "yardstick", **asdict(yardstick)})
    for task in tasks:
        _row(task, settings, write, deadline, device, yardstick)


def _row(task: Task, settings: Settings, write: Write, deadline: float, device: Meter, yardstick: Yardstick) -> None:
    def failed(system: System, reason: str) -> None:
        write({"event": "done", "row": task.row, "system": system, "status": "failed", "reason": reason})

    if time.monotonic() > deadline:
        for system in task.systems:
            failed(system, "not begun: the time limit was reached")
        return
    write({"event": "row", "row": task.row})
    try:
        case = load_case(task, settings, device.device)
        with device.alone():
            exact = reference(case) if settings.check else Reference({}, None)
    except Exception as error:  # a user's model may fail in any way
        _refuse_broken(error)
        for system in task.systems:
            failed(system, _reason(error))
        return
    systems = Systems(case, settings, device)
    for system in task.systems:
        if time.monotonic() > deadline:
            failed(system, "not begun: the time limit was reached")
            continue
        write({"event": "begin", "row": task.row, "system": system})
        try:
            found, kernels = _measure(case, system, systems, settings, device, yardstick, exact)
        except Exception as error:  # so may a compiler
            failed(system, _reason(error))
            _refuse_broken(error)
        else:
            write({"event": "done", "row": task.row, "system": system, "status": "ok", **found})
            if kernels:
                write({"event": "kernels", "row": task.row, "system": system, "kernels": kernels})
        if system != "optfuse":  # its program is captured in a graph next
            forget(case)
    systems.release()


def _measure(
    case: Case,
    system: System,
    systems: Systems,
    settings: Settings,
    device: Meter,
    yardstick: Yardstick,
    exact: Reference,
) -> tuple[Record, list[Record]]:
    base = device.allocated()
    prepared = systems.prepare(system)
    found: Record = {"compile_s": prepared.compile_s, "cold": prepared.cold, "phases": prepared.phases}
    if prepared.note:
        found["note"] = prepared.note
    if settings.check and system != "eager":
        with device.alone():
            found["check"] = check(case, prepared.step, exact)
    timing = device.times(prepared.step, settings.seconds)
    found |= {"median_ms": timing.median, "low_ms": timing.low, "high_ms": timing.high, "runs": timing.runs}
    peak, reserved = device.peak(prepared.step)
    found |= {"base_bytes": base, "peak_bytes": peak, "reserved_bytes": reserved}
    profile, kernels = _profile(case, prepared, device, yardstick)
    found |= profile
    if served := [asdict(graph.calls) for graph in prepared.compiled if graph.calls is not None]:
        found["calls"] = served
    if prepared.on_our_graph:
        found["on_our_graph"] = list(prepared.on_our_graph)
    if prepared.schedules:
        found["predicted_ms"] = sum(schedule.objective for schedule in prepared.schedules) / 1e9
        found["schedules"] = [schedule.summary() for schedule in prepared.schedules]
    return found, kernels if system == "optfuse" else []


def _profile(case: Case, prepared: Prepared, device: Meter, yardstick: Yardstick) -> tuple[Record, list[Record]]:
    """GPU time, by kind and by name, and the schedule's kernels one by one."""
    steps = [step for schedule in prepared.schedules for step in steps_of(schedule)]
    trace = device.trace(prepared.step, PROFILED)
    if trace is None or not trace.runs:
        return {}, []
    own = {step.function for step in steps if step.triton}
    run = trace.typical

    def is_triton(name: str) -> bool:
        return name in own or name.startswith("triton_")

    triton_us = run.us_of(is_triton)
    found: Record = {
        "gpu_ms": run.busy_us / 1e3,
        "triton_ms": triton_us / 1e3,
        "library_ms": (sum(item.us for item in run.work) - triton_us) / 1e3,
        "launches": len(run.work),
        "triton_launches": sum(is_triton(item.name) for item in run.work),
        "by_name": trace.by_name()[:LISTED],
    }
    measured, fault = measure_steps(steps, trace) if steps else ((), "")
    if fault:
        found["kernels_note"] = fault
    records = [
        kernel_record(
            case.task.row, item, yardstick.copy_us(item.step.price.read_bytes + item.step.price.write_bytes),
            yardstick.peak,
        )
        for item in measured
    ]  # fmt: skip
    return found, records


def _warm_up(device: Meter) -> None:
    """Import and start what every compilation needs once, so that no row pays for it."""
    import optfuse

    x = torch.ones(8, 8, device=device.device)
    model = torch.nn.Linear(8, 8, device=device.device)
    with torch.no_grad():
        for call in (torch.compile(lambda y: (y + 1).sum()), optfuse.optimize(model, (x,)).compile()):
            try:
                call(x)
            except Exception as error:  # said again, with its reason, by every row that it concerns
                _refuse_broken(error)
    torch._dynamo.reset()  # noqa: SLF001 - torch's name for it


def _reason(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({Path(where[0].filename).name}:{where[0].lineno})" if where else ""
    return f"{type(error).__name__}: {str(error).strip()[:500]}{place}"


def _refuse_broken(error: BaseException) -> None:
    """End the process where the device no longer answers."""
    if not torch.cuda.is_available():
        return
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1).item()
    except RuntimeError as second:
        raise BrokenDeviceError(str(second)) from error


def _task(record: Record) -> Task:
    fields: Record = {**record, "systems": tuple(record["systems"])}
    return Task(**fields)


def main() -> int:
    """``python -m optfuse.lab.bench.worker REQUEST.json OUT.jsonl``."""
    warnings.simplefilter("ignore")
    leave_with_parent()
    request = json.loads(Path(sys.argv[1]).read_text())
    tasks = [_task(task) for task in request["tasks"]]
    with Path(sys.argv[2]).open("a", encoding="utf-8") as out:

        def write(record: Record) -> None:
            out.write(json.dumps(record, default=_jsonable) + "\n")
            out.flush()

        try:
            work(tasks, Settings(**request["settings"]), write, time.monotonic() + request["seconds_left"])
        except BrokenDeviceError as error:
            print(f"the device no longer answers: {error}", file=sys.stderr)
            return BROKEN
    return 0


def _jsonable(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else repr(value)


if __name__ == "__main__":
    sys.exit(main())
