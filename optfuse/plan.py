"""Plans on disk: a folder that replays a schedule without solving it again.

    plan.json       names, figures and how to call the graph
    graph.json      the loop IR, from which everything else is made again
    instance.json   the fusion problem that was solved
    solution.json   the solver's answer; greedy.json is greedy fusion's
    kernels.py      the emitted module, for people; loading writes it anew and reports a difference, and never runs it
    report.txt      the schedule in words
    constants.safetensors, weights.safetensors   tensors, as plain data

Loading reads plain data only and runs nothing that is in the folder.
"""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from optfuse.codegen.libraries import takes_out
from optfuse.emit import emit
from optfuse.errors import OptfuseError, OutputError, PlanError
from optfuse.extract.build import extract
from optfuse.frontend.captured import CallSpec, InputSource
from optfuse.frontend.torch_bridge import spec_from_json, spec_to_json
from optfuse.interface import Interface
from optfuse.ir.nodes import LoopGraph
from optfuse.ir.serialize import graph_from_json, graph_to_json
from optfuse.problem.checker import check
from optfuse.problem.serialize import digest, load_instance, load_solution, save_instance, save_solution
from optfuse.schedule import Schedule
from optfuse.solve.result import SolveResult, Statistics, relative_gap

PLAN_FORMAT = "optfuse-plan"
PLAN_VERSION = 1

logger = logging.getLogger("optfuse")


def save_plan(schedule: Schedule, path: str | Path, *, weights: bool = True) -> None:
    """Write a plan to a folder that does not exist yet or holds an older plan; all or nothing.

    Raises
    ------
    PlanError
        If the folder holds something else than a plan, or the call has arguments that are no plain data.
    OutputError
        If something cannot be written.
    """
    target = Path(path)
    if target.exists() and not (target / "plan.json").is_file() and (not target.is_dir() or any(target.iterdir())):
        raise PlanError(f"{target}: exists and is no plan; save to another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
            folder = Path(temporary) / "plan"
            folder.mkdir()
            _write(schedule, folder, weights=weights)
            if target.exists():
                target.rename(Path(temporary) / "old")
            folder.rename(target)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror or error}") from error


def load(path: str | Path) -> Schedule:
    """Read a plan, check its solution, and emit its module again.

    Raises
    ------
    PlanError
        If a file is missing or malformed, or the solution does not answer the graph's own fusion problem.
    """
    folder = Path(path)
    data = _read_plan(folder)
    try:
        schedule = _rebuild(folder, data)
    except NotImplementedError as error:
        raise PlanError(
            f"{folder / 'plan.json'}: a class of the call's is not known ({error}); import its library before loading"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(
            f"{folder / 'plan.json'}: malformed ({type(error).__name__}: {error}); save it again"
        ) from error
    on_disk = folder / "kernels.py"
    if on_disk.is_file() and on_disk.read_bytes() != schedule.source.encode():
        logger.warning(
            "%s differs from what the plan's graph and solution give (it was edited, or another version of optfuse "
            "wrote it); it is not used",
            on_disk,
        )
    return schedule


def _write(schedule: Schedule, folder: Path, *, weights: bool) -> None:
    interface, result = schedule.interface, schedule.result
    data = {
        "format": PLAN_FORMAT,
        "version": PLAN_VERSION,
        "name": schedule.name,
        "result": {
            "status": result.status,
            "objective": result.objective,
            "bound": result.bound,
            "gap": result.gap,
            "greedy_objective": result.greedy_objective,
            "statistics": asdict(result.statistics),
            "seed": result.seed,
            "versions": [list(pair) for pair in result.versions],
        },
        "inputs": [[source.kind, source.target, source.position] for source in interface.inputs],
        "outputs": list(interface.outputs),
        "call": None if interface.call is None else _call_to_json(interface.call),
    }
    (folder / "plan.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (folder / "graph.json").write_text(json.dumps(graph_to_json(schedule.graph)), encoding="utf-8")
    save_instance(schedule.instance, folder / "instance.json")
    save_solution(result.solution, folder / "solution.json")
    save_solution(result.greedy_solution, folder / "greedy.json")
    (folder / "kernels.py").write_text(schedule.source, encoding="utf-8")
    (folder / "report.txt").write_text(schedule.report(), encoding="utf-8")
    if interface.constants:
        save_file(_separate(interface.constants), folder / "constants.safetensors")
    state = _state(interface) if weights else None
    if state:
        save_file(_separate(state), folder / "weights.safetensors")


def _separate(tensors: Any) -> dict[str, torch.Tensor]:
    """Dense copies that share no memory, as the file format wants them."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }


def _state(interface: Interface) -> dict[str, torch.Tensor] | None:
    if interface.weights is not None:
        return dict(interface.weights)
    if interface.model is None:
        return None
    find = {"parameter": interface.model.get_parameter, "buffer": interface.model.get_buffer}
    return {source.target: find[source.kind](source.target) for source in interface.inputs if source.kind in find}


def _call_to_json(call: CallSpec) -> dict[str, Any]:
    for position, value in (*call.fixed, *call.literals):
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise PlanError(
                f"argument {position} is a {type(value).__name__}, which a plan cannot hold; pass plain data"
            )
    try:
        specs = {"in_spec": spec_to_json(call.in_spec), "out_spec": spec_to_json(call.out_spec)}
    except NotImplementedError as error:
        raise PlanError(
            f"a plan cannot hold the classes of this call ({error}); use dicts, lists and tuples"
        ) from error
    return {
        **specs,
        "fixed": [list(pair) for pair in call.fixed],
        "shared": [list(pair) for pair in call.shared],
        "user_outputs": list(call.user_outputs),
        "literals": [list(pair) for pair in call.literals],
    }


def _call_from_json(data: Any) -> CallSpec:
    return CallSpec(
        spec_from_json(data["in_spec"]),
        spec_from_json(data["out_spec"]),
        tuple((int(k), value) for k, value in data["fixed"]),
        tuple((int(a), int(b)) for a, b in data["shared"]),
        tuple(int(k) for k in data["user_outputs"]),
        tuple((int(k), value) for k, value in data["literals"]),
    )


def _read_plan(folder: Path) -> dict[str, Any]:
    data = _read_json(folder / "plan.json")
    if data.get("format") != PLAN_FORMAT or data.get("version") != PLAN_VERSION:
        raise PlanError(f"{folder}: not a plan of version {PLAN_VERSION}; save it again with this optfuse")
    return data


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(f"{path}: no such file; {path.parent} is not a whole plan") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise PlanError(f"{path}: not a JSON object; save the plan again")
    return data


def _rebuild(folder: Path, data: dict[str, Any]) -> Schedule:
    try:
        graph = graph_from_json(_read_json(folder / "graph.json"))
    except OptfuseError as error:
        named = str(folder / "graph.json") in str(error)
        raise PlanError(str(error) if named else f"{folder / 'graph.json'}: {error}") from error
    try:
        saved = load_instance(folder / "instance.json")
        solution = load_solution(folder / "solution.json")
        greedy = load_solution(folder / "greedy.json")
    except OptfuseError as error:
        raise PlanError(str(error)) from error
    donated = frozenset(b.name for b in saved.buffers if b.donated)
    extraction = extract(graph, saved.devices[0], donated=donated, allocates=lambda call: not takes_out(call))
    extraction = replace(extraction, instance=replace(extraction.instance, rules=saved.rules, limits=saved.limits))
    if digest(extraction.instance) != digest(saved):
        raise PlanError(f"{folder}: instance.json is not the problem that graph.json states; save the plan again")
    violations = check(extraction.instance, solution)
    if violations:
        raise PlanError(f"{folder / 'solution.json'}: {violations[0].message}")
    found = data["result"]
    figures = (int(found["objective"]), int(found["greedy_objective"]))
    bound, objective = int(found["bound"]), solution.objective
    status = "OPTIMAL" if bound == objective else "FEASIBLE"
    if figures != (objective, greedy.objective) or not 0 <= bound <= objective or found["status"] != status:
        raise PlanError(f"{folder / 'plan.json'}: its figures are not those of the solutions beside it; save it again")
    statistics: dict[str, Any] = {**found["statistics"], "given_up": tuple(found["statistics"]["given_up"])}
    result = SolveResult(
        status=status,
        solution=solution,
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        greedy_objective=greedy.objective,
        greedy_solution=greedy,
        statistics=Statistics(**statistics),
        seed=int(found["seed"]),
        versions=tuple((str(a), str(b)) for a, b in found["versions"]),
    )
    interface = Interface(
        inputs=tuple(InputSource(kind, target, position) for kind, target, position in data["inputs"]),
        outputs=tuple(int(k) for k in data["outputs"]),
        call=None if data["call"] is None else _call_from_json(data["call"]),
        constants=_tensors(folder / "constants.safetensors"),
        weights=_tensors(folder / "weights.safetensors") or None,
    )
    _require_fit(folder, interface, graph)
    return Schedule(extraction, result, emit(extraction, result), interface)


def _require_fit(folder: Path, interface: Interface, graph: LoopGraph) -> None:
    """Refuse an interface that speaks of other inputs or outputs than the graph has."""
    known = set(interface.outputs) | {position for position, _ in (interface.call.literals if interface.call else ())}
    wanted = set(interface.call.user_outputs) if interface.call else set()
    counts = (len(interface.inputs), len(interface.outputs))
    if counts != (len(graph.inputs), len(graph.outputs)) or not wanted <= known:
        raise PlanError(f"{folder / 'plan.json'}: its inputs or outputs are not those of graph.json; save it again")


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        return {}
    try:
        return load_file(path)
    except SafetensorError as error:
        raise PlanError(f"{path}: cannot be read: {error}; save the plan again") from error
