"""Kernels and library calls of models as users compile them whose measured time is far above the predicted one.

    python benchmarks/kernel_times.py NAME[,NAME...] --out FOLDER [--train] [--times 1.8] [--processes N] [--total S]

Names are those of ``foreign.py``. For each model: the GPU's milliseconds of a step, those of generated kernels and what
was predicted for them, and the kernels that take more than ``--times`` their prediction and at least 0.8% of the step,
the most time lost first; then library calls likewise, by operator and shapes of arguments. ``FOLDER`` gets the text and
the source of the worst five kernels. What is slow in this way is a tile that does not fit how memory lies, a price that
is too low, a layout that nobody wants, or a shape that a library has no fast kernel for. A time that comes from one
launch may be another process's: repeat with ``--processes 1``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from foreign import Task, made_model, stepped
from side_by_side import Job, alone, join, run_jobs

#: An operator that a step calls: its name, its arguments' shapes, and microseconds of its kernels.
Call = tuple[str, str, float]

#: Steps before the profile, and within it.
WARM, STEPS = 10, 3
#: The least share of a step that a kernel must lose to be named, and how many are named and written down.
LEAST_LOSS, NAMED, WRITTEN = 0.008, 8, 5


def main() -> None:
    """Measure each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--times", type=float, default=1.8)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--total", type=float, default=3600.0)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.here:
        measure(Task(options.names, options.train), options.out, options.times)
        return
    again = ["--out", str(options.out), "--times", str(options.times), "--here", *["--train"] * options.train]
    logs = {name: options.out / f"{name.replace(':', '.')}.log" for name in options.names.split(",")}
    jobs = [Job([sys.executable, __file__, name, *again], log, partial(_tell, name, log)) for name, log in logs.items()]
    run_jobs(jobs, options.processes, options.total, options.total)


def _tell(name: str, log: Path, reason: str) -> None:
    """Print what a model's process has said of its kernels, or why it did not."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = text[text.index("== ") :] if "== " in text else f"{name}: {reason}; {text[-300:]}"
    sys.stdout.write(found.rstrip() + "\n")


def measure(task: Task, out: Path, times: float) -> None:
    """Compile a model, run it, and print which of its kernels are slower than predicted."""
    import torch

    from optfuse.torch_compile.backend import backend

    if not torch.cuda.is_available():
        raise SystemExit("kernels are timed on a GPU, and there is none here")
    records: list[Any] = []

    def kept(graph: Any, inputs: Any) -> Any:
        # a replayed graph does not say which call a kernel is of, and what comes from a cache not what was predicted
        compiled = backend(graph, inputs, options={"cudagraphs": False, "cache": False})
        records.append(compiled.record)
        return compiled

    join(out / "times")
    model, inputs = made_model(task)
    step = stepped(torch.compile(model, backend=kept), inputs, task)
    for _ in range(3):
        step()
    schedules = [schedule for record in records for schedule in record.schedules]
    with alone(out / "times"):
        measured, launches, calls = kernel_us(step)
    predicted, places = predicted_us(schedules)
    for name, number in places.items():  # equal layers share a program, which is called several times
        predicted[name] *= max(1.0, launches[name] / number)
    whole = sum(measured.values())
    ours = [name for name in measured if name in predicted]
    print(f"== {task.name}: {whole / 1e3:.2f} ms, generated {sum(measured[k] for k in ours) / 1e3:.2f}, ", end="")
    print(f"predicted {sum(predicted[k] for k in ours) / 1e3:.2f}")
    lost = {k: measured[k] - predicted[k] for k in ours if measured[k] > times * predicted[k]}
    worst = sorted((k for k in lost if lost[k] > LEAST_LOSS * whole), key=lambda k: -lost[k])
    for name in worst[:NAMED]:
        print(f"   {measured[name]:8.1f} us, predicted {predicted[name]:8.1f}, {launches[name]:5.1f} x {name}")
    sources = "\n".join(schedule.source for schedule in schedules)
    for line in slow_calls(schedules, calls, measured, times, whole):
        print(line)
    text = "\n\n".join(source_of(name, sources) for name in worst[:WRITTEN])
    (out / f"{task.name.replace(':', '.')}.py").write_text(text, encoding="utf-8")


def kernel_us(step: Any) -> tuple[Counter[str], Counter[str], list[Call]]:
    """By kernel's name, microseconds and launches of a step, and the operators of the last step in order."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as kernels:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as operators:
        step()
        torch.cuda.synchronize()
    times, launches = Counter[str](), Counter[str]()
    for event in kernels.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us() / STEPS
            launches[event.name] += 1 / STEPS
    outer = [event for event in operators.events() if _operator(event) and not _within_operator(event)]
    outer.sort(key=lambda event: event.time_range.start)
    return times, launches, [(event.name, shapes(event), event.device_time_total) for event in outer]


def _operator(event: Any) -> bool:
    return "::" in event.name and not event.name.startswith("autograd::")


def _within_operator(event: Any) -> bool:
    """Whether another operator calls this one."""
    parent = event.cpu_parent
    return parent is not None and (_operator(parent) or _within_operator(parent))


def shapes(event: Any) -> str:
    """The shapes of an operator's arguments that are tensors."""
    return " ".join("x".join(map(str, shape)) for shape in event.input_shapes if shape and isinstance(shape[0], int))


def slow_calls(
    schedules: Iterable[Any], calls: Sequence[Call], measured: Mapping[str, float], times: float, whole: float
) -> list[str]:
    """Library calls that take more than ``times`` their prediction, those of one operator and shapes together.

    A schedule's calls and those of a step come in the same order, operator by operator. Where their numbers differ,
    as of an operator that is called outside of the compiled graphs too, nothing is said of it but that. Our own
    operators are functions of a module, which the profiler does not see: those with a kernel of their name are compared
    by that, all calls together.
    """
    predicted: dict[str, list[float]] = {}
    for schedule in schedules:
        for name, us in library_us(schedule):
            predicted.setdefault(name, []).append(us)
    lines: list[tuple[float, str]] = []
    for name, expected in predicted.items():
        if name.startswith("optfuse::"):
            us, price = measured.get(f"{name.removeprefix('optfuse::')}_kernel", 0.0), sum(expected)
            if us > times * price and us - price > LEAST_LOSS * whole:
                lines.append((us - price, f"   {us:8.1f} us, predicted {price:8.1f}, {len(expected):5.1f} x {name}"))
            continue
        made = [call for call in calls if call[0] == name]
        if len(made) != len(expected):
            lines.append((0.0, f"   {name}: {len(expected)} calls are scheduled, and {len(made)} were made"))
            continue
        found: dict[str, list[float]] = {}
        for (_, arguments, us), price in zip(made, expected, strict=True):
            row = found.setdefault(arguments, [0.0, 0.0, 0])
            found[arguments] = [row[0] + us, row[1] + price, row[2] + 1]
        for arguments, (us, price, count) in found.items():
            if us > times * price and us - price > LEAST_LOSS * whole:
                lines.append(
                    (us - price, f"   {us:8.1f} us, predicted {price:8.1f}, {count:5.1f} x {name} {arguments}")
                )
    return [line for _, line in sorted(lines, key=lambda row: -row[0])[:NAMED]]


def library_us(schedule: Any) -> list[tuple[str, float]]:
    """The library calls of a schedule in order: operators as the profiler names them, and predicted microseconds."""
    if not schedule.launches:
        return []
    ops = {op.name: op for op in schedule.graph.ops}
    rows = schedule.to_pandas()
    chosen = rows[rows["kind"] == "library"]
    targets = [ops[names[0]].target for names in chosen["ops"]]
    return [
        (target.replace(".", "::", 1).rsplit(".", 1)[0], us)
        for target, us in zip(targets, chosen["predicted_us"], strict=True)
    ]


def predicted_us(schedules: Iterable[Any]) -> tuple[dict[str, float], Counter[str]]:
    """By function, the predicted microseconds of the schedules' launches, which the comments above them number.

    And how many launches those are.
    """
    found, places = dict[str, float](), Counter[str]()
    for schedule in schedules:
        prices = list(schedule.to_pandas()["predicted_us"]) if schedule.launches else []
        for step in schedule.source.split("\n\n"):  # a step's comment, its allocations, and its launch
            for function in re.findall(r"^ +launch\(\s*(\w+)", step, re.MULTILINE):
                comment = " ".join(re.findall(r"^ +#(.*)", step, re.MULTILINE))
                numbers = re.findall(r"\bk(\d+)_?\w*:", comment) or re.findall(r"^k(\d+)", function)
                us = sum(prices[number] for number in _distinct(numbers) if number < len(prices))
                found[function] = found.get(function, 0.0) + us
                places[function] += 1
    return found, places


def _distinct(numbers: Iterable[str]) -> list[int]:
    return sorted({int(number) for number in numbers})


def source_of(name: str, sources: str) -> str:
    """The function of a kernel, those that it calls and its row of the table of launches, as they were emitted."""
    functions = re.findall(rf"(@triton\.jit\ndef {name}(?:_part\d+)?\(.*?)(?=\n\n\n|\Z)", sources, re.DOTALL)
    rows = re.findall(rf'^    "{name}": \{{.*?^    \}},', sources, re.DOTALL | re.MULTILINE)
    return "\n\n".join([*dict.fromkeys(functions), *rows[:1]])


if __name__ == "__main__":
    main()
