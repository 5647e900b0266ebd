"""What a task does, inside its own process: capture a source, or solve one graph. Both return plain data."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optfuse.batch.folders import graph_folder, plan_folder, whole_folder
from optfuse.batch.plan import CaptureTask, SolveTask, Task
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graphnet import load_sample
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training
from optfuse.compiler.frontend.zoo import ModelFile, load_model_file
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import InductorError, OptfuseError, UnknownClassError
from optfuse.inductor.compare import compare, inductor_answer, partition
from optfuse.inductor.graph_record import graph_record
from optfuse.inductor.process import run_inductor
from optfuse.problem.serialize import load_instance, save_instance, save_solution
from optfuse.report.summary import summary
from optfuse.schedule.build import solve_prepared
from optfuse.schedule.interface import interface_of
from optfuse.schedule.plan import save_plan
from optfuse.schedule.prepared import Prepared, load_prepared, save_prepared
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.solve import solve

#: The graph that Inductor is given, beside a prepared graph.
FX_GRAPH = "fx.json"

if TYPE_CHECKING:
    from optfuse.problem.instance import Instance
    from optfuse.schedule.scheduled import ScheduledGraph
    from optfuse.solver.result import SolveResult


def work(task: Task) -> dict[str, Any]:
    """Do a task. What it leaves on disk appears whole or not at all.

    Raises:
        OptfuseError: If the source or the graph is refused.
    """
    match task:
        case CaptureTask():
            return {"graphs": _capture(task)}
        case SolveTask() if task.solver == "inductor":
            return _inductor(task)
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
            (folder / FX_GRAPH).write_text(json.dumps(_handed_over(captured)), encoding="utf-8")
        prepare_s = time.perf_counter() - begun
        figures[captured.name] = {"capture_s": captured_s, "prepare_s": prepare_s}
    return figures


def _graphs(entry: ModelFile, task: CaptureTask, train: bool) -> tuple[tuple[Captured, ...], Any]:
    args, kwargs = entry.inputs(task.size, train=train)
    model = entry.model(task.size).train(train)
    if train:
        return capture_training(model, args, kwargs, name=task.source.name), model
    return (capture(model, args, kwargs, name=f"{task.source.name}.inference"),), model


def _handed_over(captured: Captured) -> dict[str, Any]:
    """The graph as Inductor is given it, or why it cannot be: no reason not to solve it."""
    try:
        return graph_record(captured)
    except OptfuseError as error:
        return {"refused": str(error)}


def _inductor(task: SolveTask) -> dict[str, Any]:
    """Let Inductor fuse a prepared graph, save its partition as a solution of ours, and return the figures."""
    source = graph_folder(task.run, task.graph)
    if task.capture.mode == "instance":
        raise InductorError(f"{task.graph}: an instance has no graph that Inductor could fuse; give the model")
    start = time.perf_counter()
    extraction = _load(task, source).extraction
    record = json.loads((source / FX_GRAPH).read_text(encoding="utf-8"))
    loaded = time.perf_counter()
    if "refused" in record:
        raise InductorError(record["refused"])
    answer = inductor_answer(extraction, run_inductor(record, time_limit=task.limits.seconds))
    solved = time.perf_counter()
    ours = greedy(extraction.instance)
    compared = compare(extraction, answer, ours, {})
    with whole_folder(task.run, plan_folder(task.run, task.graph, task.solver)) as folder:
        save_solution(answer.solution, folder / "solution.json")
        save_solution(ours, folder / "greedy.json")
        (folder / "comparison.json").write_text(json.dumps(compared.as_json(), indent=1) + "\n", encoding="utf-8")
    calls = _library_calls(extraction.graph)
    return {
        **compared.as_json(),
        "status": "FEASIBLE",
        "proven": False,
        "objective": answer.solution.objective,
        "greedy_objective": ours.objective,
        "saved": _share(ours.objective - answer.solution.objective, ours.objective),
        "library_calls": calls.total(),
        "library_ops": sorted(calls),
        "kernels": len(answer.solution.kernels),
        "greedy_kernels": len(ours.kernels),
        "moved_bytes": compared.partitions[0].moved_bytes,
        "peak_memory_bytes": answer.solution.peak_bytes,
        "greedy_peak_memory_bytes": ours.peak_bytes,
        "given_up": [],
        "load_s": loaded - start,
        "solve_s": solved - loaded,
    }


def _solve(task: SolveTask) -> dict[str, Any]:
    """Solve a prepared graph, save its plan, and return the figures."""
    source = graph_folder(task.run, task.graph)
    target = plan_folder(task.run, task.graph, task.solver)
    start = time.perf_counter()
    if task.capture.mode == "instance":
        instance = load_instance(source / "instance.json")
        loaded = time.perf_counter()
        result = solve(instance, task.options)
        with whole_folder(task.run, target) as folder:
            save_solution(result.solution, folder / "solution.json")
            save_solution(result.greedy_solution, folder / "greedy.json")
        return _figures(instance, result) | {"load_s": loaded - start}
    prepared = _load(task, source)
    loaded = time.perf_counter()
    schedule = solve_prepared(prepared, task.options)
    emitted = time.perf_counter()
    with whole_folder(task.run, target) as folder:
        save_plan(schedule, folder, weights=False)
    return _figures(schedule.instance, schedule.result, schedule) | {
        "load_s": loaded - start,
        "emit_s": emitted - loaded - schedule.result.statistics.wall_s,
        "source_bytes": len(schedule.source),
    }


def _load(task: SolveTask, folder: Path) -> Prepared:
    """Read a prepared graph. Classes of the call's are known to torch only once their library is imported."""
    try:
        return load_prepared(folder)
    except UnknownClassError:
        if task.capture.source.kind == "model":
            load_model_file(task.capture.source.path)  # imports what the model does
        return load_prepared(folder)


def _figures(instance: Instance, result: SolveResult, schedule: ScheduledGraph | None = None) -> dict[str, Any]:
    if schedule is None:
        calls = Counter(op.name for op in instance.ops if op.kind != "loop")
        record = summary(instance, result, calls)
    else:
        calls = _library_calls(schedule.graph)
        record = summary(instance, result, calls, map(str, schedule.decisions))
    taken: Mapping[str, str] = {"wall_s": "solve_s", "name": "instance"}
    return {
        **{taken.get(name, name): value for name, value in record.items() if name not in ("versions", "seed")},
        "library_calls": calls.total(),
        "moved_bytes": partition(instance, "", result.solution).moved_bytes,
        "proven": result.status == "OPTIMAL",
        "saved": _share(result.greedy_objective - result.objective, result.greedy_objective),
    }


def _library_calls(graph: LoopGraph) -> Counter[str]:
    targets: Iterable[str] = (op.target for op in graph.ops if isinstance(op, LibraryCall))
    return Counter(targets)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
