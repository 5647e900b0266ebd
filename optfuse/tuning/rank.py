"""Measures the plans that are cheapest by the model, and takes the fastest one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from optfuse.cache import Cache, cache_dir, digest, store_module
from optfuse.errors import InvalidOptionError
from optfuse.runtime.program import Expected, Program
from optfuse.schedule.emit import emit
from optfuse.schedule.scheduled import PlanTime, ScheduledGraph
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.control.progress import relative_gap
from optfuse.solver.plans_to_measure import NearPlan, near_plans
from optfuse.tuning.device import interleaved, precompile, require_gpu, versions

#: Part of every cache key; to be raised when measuring changes.
RANKING = 1
#: Runs of each plan; they take turns.
RUNS = 21
#: A plan other than the model's best must be faster by this share, or the difference may be noise.
MARGIN = 0.01

#: Microseconds of some schedules of one graph, each run by itself: medians of runs that take turns.
Clock = Callable[[Sequence[ScheduledGraph]], Sequence[float]]


def require_measurable(plans: object) -> None:
    """Raise if the option ``measure`` is invalid, or if it needs a GPU and there is none."""
    if checked_measure(plans):
        require_gpu("measure")


def checked_measure(value: object) -> int:
    """The option ``measure``: 0 (nothing is run) or the number of plans to run.

    Raises:
        InvalidOptionError: Anything but 0 and whole numbers from 2 on.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value == 1:
        raise InvalidOptionError(f"measure must be 0, or how many plans to run (2 or more), not {value!r}")
    return value


def rank(
    schedule: ScheduledGraph,
    options: SolveOptions,
    plans: int,
    *,
    cache: Cache | None = None,
    clock: Clock | None = None,
    device: str = "",
) -> ScheduledGraph:
    """The fastest on the clock of the ``plans`` best distinct plans, with the table of all in ``ranking``.

    The certificate stays true: the bound is the model's, and a plan that is not the model's best is FEASIBLE.

    Args:
        schedule: The model's best plan.
        options: Limits of each further solve.
        plans: How many plans to run, at least 2.
        cache: Where times are kept; the user's by default.
        clock, device: A stand-in for the GPU, and its name.

    Raises:
        InvalidOptionError: If kernels do not run on a GPU here.
    """
    if clock is None:
        where = require_gpu("measure")
        clock, device = device_clock(where), torch.cuda.get_device_name(where)
    cache = Cache(cache_dir() / "ranked") if cache is None else cache
    found = near_plans(schedule.instance, schedule.result, options, plans)
    candidates = [_planned(schedule, plan) for plan in found]
    contents = [_content(candidate, device) for candidate in candidates]
    known = [cache.read(content) for content in contents]
    if any(record is None for record in known):  # all of them once more: only runs side by side compare
        times = [float(us) for us in clock(candidates)]
        for content, us in zip(contents, times, strict=True):
            cache.write(content, {"us": us})
    else:
        times = [float(record["us"]) for record in known if record is not None]
    fastest = min(range(len(times)), key=times.__getitem__)
    chosen = fastest if times[fastest] < times[0] * (1 - MARGIN) else 0
    table = tuple(
        PlanTime(plan.origin, len(plan.solution.kernels), plan.solution.objective / 1e6, us, k == chosen)
        for k, (plan, us) in enumerate(zip(found, times, strict=True))
    )
    return replace(candidates[chosen], ranking=table)


def ranking_text(schedule: ScheduledGraph) -> str:
    """The table of plans that were run, as text."""
    lines = [f"{schedule.name}: plans by the clock (predicted, measured)"]
    for row in schedule.ranking:
        mark = " <- taken" if row.chosen else ""
        lines.append(
            f"  {row.origin}: {row.kernels} kernels, {row.predicted_us:.1f} us, {row.measured_us:.1f} us{mark}"
        )
    return "\n".join(lines)


def _planned(schedule: ScheduledGraph, plan: NearPlan) -> ScheduledGraph:
    result, objective = schedule.result, plan.solution.objective
    if plan.solution != result.solution:
        result = replace(
            result,
            solution=plan.solution,
            objective=objective,
            status="OPTIMAL" if objective == result.bound else "FEASIBLE",
            gap=relative_gap(objective, result.bound),
        )
    return replace(schedule, result=result, source=emit(schedule.extraction, result), tiles={})


def _content(schedule: ScheduledGraph, device: str) -> dict[str, Any]:
    return {"ranking": RANKING, "device": device, "versions": versions(), "plan": digest(schedule.source)}


def device_clock(device: torch.device) -> Clock:
    """Runs plans on the GPU on made-up inputs: from a CUDA graph where all can be recorded, else launch by launch."""

    def clock(schedules: Sequence[ScheduledGraph]) -> list[float]:
        for schedule in schedules:
            precompile(store_module(schedule.source), device)
        constants = schedules[0].interface.constants
        programs = [Program(schedule.source, constants) for schedule in schedules]
        wanted = programs[0].inputs
        main = next((row.device for row in wanted if row.device != "cpu"), "cpu")
        given = [made_up(row, device if row.device == main else torch.device("cpu")) for row in wanted]
        calls = [_run(program, given, device) for program in programs]
        for call in calls:
            for _ in range(3):
                call()
        recorded = _recorded(calls)
        return [median(times) for times in interleaved(recorded or calls, RUNS, lambda: None)]

    return clock


def made_up(expected: Expected, device: torch.device) -> torch.Tensor:
    """An input as a program expects it: normal numbers, zeros where they may be positions."""
    tensor = torch.empty_strided(expected.shape, expected.stride, dtype=expected.dtype, device=device)
    return tensor.normal_() if tensor.is_floating_point() and tensor.itemsize > 1 else tensor.zero_()


def _run(program: Program, given: Sequence[torch.Tensor], device: torch.device) -> Callable[[], Any]:
    return lambda: program.execute(list(given), device)


def _recorded(calls: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """The calls as replays of CUDA graphs; nothing if one of them cannot be recorded."""
    replays: list[Callable[[], Any]] = []
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError:  # a library call that waits for the device: then all are launched
            return []
        replays.append(graph.replay)
    return replays
