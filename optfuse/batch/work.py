"""What a task does, inside its own process: capture a source, or solve one graph. Both return plain data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optfuse.batch.folders import graph_folder, plan_folder, whole_folder
from optfuse.batch.plan import CaptureTask, SolveTask, Task
from optfuse.frontend.captured import Captured
from optfuse.frontend.graphnet import load_sample
from optfuse.frontend.inference import capture
from optfuse.frontend.training import capture_training
from optfuse.frontend.zoo import ModelFile, load_model_file
from optfuse.interface import interface_of
from optfuse.ir.nodes import LibraryCall, LoopGraph
from optfuse.pipeline import fusion_problem, solve_prepared
from optfuse.prepared import Prepared, load_prepared, save_prepared
from optfuse.problem.serialize import load_instance, save_instance, save_solution
from optfuse.report.summary import summary
from optfuse.solve.solve import solve

if TYPE_CHECKING:
    from optfuse.problem.instance import Instance
    from optfuse.solve.result import SolveResult


def work(task: Task) -> dict[str, Any]:
    """Do a task. What it leaves on disk appears whole or not at all.

    Raises
    ------
    OptfuseError
        If the source or the graph is refused.
    """
    match task:
        case CaptureTask():
            return {"graphs": _capture(task)}
        case SolveTask():
            return _solve(task)


def _capture(task: CaptureTask) -> dict[str, dict[str, Any]]:
    """Write the prepared graphs of a source; what is known of each, by name. None if it does not train."""
    if task.mode == "instance":
        instance = load_instance(task.source.path)
        with whole_folder(task.run, graph_folder(task.run, task.source.name)) as folder:
            save_instance(instance, folder / "instance.json")
        return {task.source.name: {}}
    start = time.perf_counter()
    entry = load_sample(task.source.path) if task.source.kind == "graphnet" else load_model_file(task.source.path)
    train = task.mode == "training"
    if train and not entry.trains:
        return {}
    found, model = _graphs(entry, task, train)
    captured_s = time.perf_counter() - start
    figures: dict[str, dict[str, Any]] = {}
    for captured in found:
        begun = time.perf_counter()
        prepared = Prepared(fusion_problem(captured, task.device), interface_of(captured, model))
        with whole_folder(task.run, graph_folder(task.run, captured.name)) as folder:
            save_prepared(prepared, folder)
        prepare_s = time.perf_counter() - begun
        figures[captured.name] = {"capture_s": captured_s, "prepare_s": prepare_s}
    return figures


def _graphs(entry: ModelFile, task: CaptureTask, train: bool) -> tuple[tuple[Captured, ...], Any]:
    args, kwargs = entry.inputs(task.size, train=train)
    model = entry.model(task.size).train(train)
    if train:
        return capture_training(model, args, kwargs, name=task.source.name), model
    return (capture(model, args, kwargs, name=f"{task.source.name}.inference"),), model


def _solve(task: SolveTask) -> dict[str, Any]:
    """Solve a prepared graph, save its plan, and return the figures."""
    source = graph_folder(task.run, task.graph)
    target = plan_folder(task.run, task.graph, task.options.solver)
    start = time.perf_counter()
    if task.capture.mode == "instance":
        instance = load_instance(source / "instance.json")
        loaded = time.perf_counter()
        result = solve(instance, task.options)
        with whole_folder(task.run, target) as folder:
            save_solution(result.solution, folder / "solution.json")
            save_solution(result.greedy_solution, folder / "greedy.json")
        return _figures(instance, result, None) | {"load_s": loaded - start}
    prepared = _load(task, source)
    loaded = time.perf_counter()
    schedule = solve_prepared(prepared, task.options)
    emitted = time.perf_counter()
    with whole_folder(task.run, target) as folder:
        schedule.save(folder, weights=False)
    return _figures(schedule.instance, schedule.result, schedule.graph) | {
        "load_s": loaded - start,
        "emit_s": emitted - loaded - schedule.result.statistics.wall_s,
        "source_bytes": len(schedule.source),
    }


def _load(task: SolveTask, folder: Path) -> Prepared:
    """Read a prepared graph. Classes of the call's are known to torch only once their library is imported."""
    try:
        return load_prepared(folder)
    except NotImplementedError:
        if task.capture.source.kind == "model":
            load_model_file(task.capture.source.path)  # imports what the model does
        return load_prepared(folder)


def _figures(instance: Instance, result: SolveResult, graph: LoopGraph | None) -> dict[str, Any]:
    calls = _library_calls(graph) if graph is not None else Counter(op.name for op in instance.ops if op.kind != "loop")
    record = summary(instance, result, calls)
    taken: Mapping[str, str] = {"wall_s": "solve_s", "name": "instance"}
    return {
        **{taken.get(name, name): value for name, value in record.items() if name not in ("versions", "seed")},
        "library_calls": calls.total(),
        "proven": result.status == "OPTIMAL",
        "saved": _share(result.greedy_objective - result.objective, result.greedy_objective),
    }


def _library_calls(graph: LoopGraph) -> Counter[str]:
    targets: Iterable[str] = (op.target for op in graph.ops if isinstance(op, LibraryCall))
    return Counter(targets)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
