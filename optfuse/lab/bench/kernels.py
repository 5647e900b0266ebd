"""Each kernel of a schedule: what the model predicted for it beside what the device took."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import TYPE_CHECKING

from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.lab.bench.records import Record
from optfuse.lab.bench.trace import Run, Trace
from optfuse.problem.cost import Price, kernel_price, shared_saving
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel
from optfuse.solver.memory.launch_order import all_launches

if TYPE_CHECKING:
    from optfuse.api import Schedule

#: Ops named in a record.
NAMED = 6


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel or library call of a schedule, in the order in which the host program makes them.

    ``function`` is the Triton function, or the library operator without its overload ("aten::mm").
    """

    graph: str
    position: int
    function: str
    triton: bool
    ops: tuple[str, ...]
    scheme: str
    x: int
    r: int
    price: Price

    @property
    def composite(self) -> bool:
        """Whether it is a function that the module carries, which calls several operators."""
        return self.function.startswith("optfuse::")


@dataclass(frozen=True, slots=True)
class Measured:
    """A step with its device time in microseconds (the median over the profiled calls) and its launches."""

    step: Step
    us: float
    launches: int
    names: tuple[str, ...]


def steps_of(schedule: Schedule) -> tuple[Step, ...]:
    """All kernels of a schedule with their prices, named as in its module.

    Raises:
        ValueError: If the module's text does not launch one function a kernel.
    """
    instance, kernels = schedule.instance, schedule.solution.kernels
    launches = all_launches(len(kernels), schedule.solution.launches)
    launched = re.findall(
        r"^    launch(?:_in_table)?\(\s*(\w+)", schedule.source.split("\ndef call(", 1)[-1], flags=re.MULTILINE
    )
    loops = sum(instance.ops[kernels[launch[0]].ops[0]].kind == "loop" for launch in launches)
    if len(launched) != loops:
        raise ValueError(f"{schedule.name} launches {len(launched)} functions for {loops} launches")
    names = iter(launched)
    steps: list[Step] = []
    for launch in launches:
        position, kernel = launch[0], kernels[launch[0]]
        first = schedule.graph.ops[kernel.ops[0]]
        scheme = instance.schemes[kernel.scheme]
        function = operator_name(first.target) if isinstance(first, LibraryCall) else next(names)
        steps.append(
            Step(
                graph=schedule.name,
                position=position,
                function=function,
                triton=not isinstance(first, LibraryCall),
                ops=tuple(instance.ops[op].name for k in launch for op in kernels[k].ops),
                scheme=scheme.name,
                x=scheme.x,
                r=scheme.r,
                price=_price(instance, [kernels[k] for k in launch]),
            )
        )
    return tuple(steps)


def _price(instance: Instance, kernels: Sequence[Kernel]) -> Price:
    """The price of a launch: of a kernel, or of several, whose memory and compute times add up."""
    prices = [kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes) for kernel in kernels]
    saved = shared_saving(instance, kernels, [range(len(kernels))])
    launch, memory, compute, read, write = (sum(column) for column in zip(*map(astuple, prices), strict=True))
    return Price(launch - saved, memory, compute, read, write)


def operator_name(target: str) -> str:
    """An operator as a profile writes it: "aten::mm" for "aten.mm.default"."""
    parts = target.split(".")
    return "::".join(parts[:2]) if len(parts) > 1 else target


def measure_steps(steps: Sequence[Step], trace: Trace) -> tuple[tuple[Measured, ...], str]:
    """The steps with their device time, and why not if a profile does not show them in the schedule's order.

    Work that no step accounts for (a gradient's seed, a copy of an input) is left out.
    """
    found: list[list[tuple[float, int, tuple[str, ...]]]] = [[] for _ in steps]
    for run in trace.runs:
        matched, fault = _match(steps, run)
        if fault:
            return (), fault
        for entry, value in zip(found, matched, strict=True):
            entry.append(value)
    if not trace.runs:
        return (), "the profile shows no call"
    return tuple(
        Measured(step, median(value[0] for value in values), values[0][1], values[0][2])
        for step, values in zip(steps, found, strict=True)
    ), ""


def _match(steps: Sequence[Step], run: Run) -> tuple[list[tuple[float, int, tuple[str, ...]]], str]:
    """Walk the device's work and the schedule together: a Triton function by name, a library call by its operator.

    A function of ours that calls several operators has all of them up to the next step's.
    """
    triton = {step.function for step in steps if step.triton}
    results: list[tuple[float, int, tuple[str, ...]]] = []
    events = _calls(run, triton)
    at = 0
    for number, step in enumerate(steps):
        where = at
        if step.composite:
            following = steps[number + 1].function if number + 1 < len(steps) else ""
            while where < len(events) and events[where][0] not in triton and events[where][0] != following:
                where += 1
            results.append(_together(events[at:where]))
            at = where
            continue
        while where < len(events) and events[where][0] != step.function:
            if events[where][0] in triton:
                break
            where += 1
        if where < len(events) and events[where][0] == step.function:
            results.append(events[where][1:])
            at = where + 1
        elif step.triton:
            here = events[where][0] if where < len(events) else "the end"
            return [], f"the profile shows {here} where step {number} of {len(steps)} is {step.function}"
        else:
            results.append((0.0, 0, ()))  # a call without device work, such as one that returns a view
    return results, ""


def _together(events: Sequence[tuple[str, float, int, tuple[str, ...]]]) -> tuple[float, int, tuple[str, ...]]:
    """Several calls as one."""
    names = tuple(name for event in events for name in event[3])
    return sum(event[1] for event in events), sum(event[2] for event in events), names


def _calls(run: Run, triton: set[str]) -> list[tuple[str, float, int, tuple[str, ...]]]:
    """(function or operator, microseconds, launches, kernel names), one a Triton launch or operator, in order."""
    calls: list[tuple[str, float, int, tuple[str, ...]]] = []
    before = -1
    for item in run.work:
        if item.name in triton:
            calls.append((item.name, item.us, 1, (item.name,)))
            before = -1
        elif item.op >= 0 and item.op == before:
            name, us, count, names = calls[-1]
            calls[-1] = (name, us + item.us, count + 1, (*names, item.name))
        else:
            name = run.ops[item.op] if item.op >= 0 else item.name
            calls.append((name, item.us, 1, (item.name,)))
            before = item.op
    return calls


def kernel_record(row: str, measured: Measured, copy_us: float, peak: float) -> Record:
    """A line of the kernel table. ``copy_us`` is what a copy of the same bytes took; ``peak`` is in bytes a second."""
    step, price = measured.step, measured.step.price
    moved = price.read_bytes + price.write_bytes
    rate = moved / (measured.us * 1e-6) if measured.us else 0.0
    return {
        "row": row,
        "graph": step.graph,
        "position": step.position,
        "name": step.function,
        "kind": "triton" if step.triton else "library",
        "scheme": step.scheme,
        "x": step.x,
        "r": step.r,
        "read_bytes": price.read_bytes,
        "write_bytes": price.write_bytes,
        "predicted_us": price.total / 1e6,
        "memory_us": price.memory / 1e6,
        "compute_us": price.compute / 1e6,
        "measured_us": measured.us,
        "launches": measured.launches,
        "copy_us": copy_us,
        "copy_ratio": measured.us / copy_us if copy_us else 0.0,
        "gb_per_s": rate / 1e9,
        "peak_share": rate / peak if peak else 0.0,
        "ops": " ".join(step.ops[:NAMED]) + (f" (and {len(step.ops) - NAMED} more)" if len(step.ops) > NAMED else ""),
        "kernels": " ".join(dict.fromkeys(measured.names)) if not step.triton else "",
    }
