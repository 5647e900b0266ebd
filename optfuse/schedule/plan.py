"""Plans on disk: a folder that replays a schedule without solving it again.

    plan.json       names, figures and how to call the graph
    graph.json      the loop IR, from which everything else is made again
    instance.json   the fusion problem that was solved
    solution.json   the solver's answer; greedy.json is greedy fusion's
    kernels.py      the emitted module, for people; loading writes it anew and reports a difference, and never runs it
    report.txt      the schedule in words
    constants.safetensors, weights.safetensors   tensors, as plain data

Loading reads plain data only and runs nothing that is in the folder: docs/files.md says by what means.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.compiler.ir.nodes import LoopGraph
from optfuse.compiler.ops.opaque_operators import NAMESPACE
from optfuse.errors import OptfuseError, OutputError, PlanError, UnknownClassError
from optfuse.problem.checker import check
from optfuse.problem.serialize import load_solution, save_solution
from optfuse.problem.untrusted_folder import require_enclosed
from optfuse.schedule.emit import emit
from optfuse.schedule.interface import Interface, interface_from_json, interface_to_json
from optfuse.schedule.prepared import load_problem, load_tensors, read_json, save_problem, save_tensors
from optfuse.schedule.result_file import result_from_plain, result_to_plain
from optfuse.schedule.scheduled import ScheduledGraph

PLAN_FORMAT = "optfuse-plan"
PLAN_VERSION = 2

logger = logging.getLogger("optfuse")


def save_plan(schedule: ScheduledGraph, path: str | Path, *, weights: bool = True) -> None:
    """Write a plan to a folder that does not exist yet or holds an older plan; all or nothing.

    Raises:
        PlanError: If the folder holds something else than a plan, or the call has arguments that are no plain data.
        OutputError: If something cannot be written.
    """
    opaque = [op for op in schedule.library_ops if op.startswith(f"{NAMESPACE}.")]
    if opaque:
        raise PlanError(
            f"{schedule.name}: a plan cannot hold {opaque[0].split('.')[1]}, whose body this process alone knows; keep "
            "control flow and operators that write their arguments out of the model, or optimize it where it runs"
        )
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


def load_plan(path: str | Path, *, operators: Collection[str] = ()) -> ScheduledGraph:
    """Read a plan, check its solution, and emit its module again: see ``optfuse.load``. Nothing of the folder is run.

    Raises:
        PlanError, UnknownClassError: As ``optfuse.load``.
    """
    folder = Path(path)
    require_enclosed(folder)
    data = _read_plan(folder)
    try:
        schedule = _rebuild(folder, data, operators)
    except UnknownClassError as error:
        raise UnknownClassError(f"{folder / 'plan.json'}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
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


def _write(schedule: ScheduledGraph, folder: Path, *, weights: bool) -> None:
    interface, result = schedule.interface, schedule.result
    data = {
        "format": PLAN_FORMAT,
        "version": PLAN_VERSION,
        "name": schedule.name,
        "result": result_to_plain(result),
        "tiles": {name: asdict(config) for name, config in schedule.tiles.items()},
        **interface_to_json(interface),
    }
    (folder / "plan.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    save_problem(schedule.extraction, interface, folder)
    save_solution(result.solution, folder / "solution.json")
    save_solution(result.greedy_solution, folder / "greedy.json")
    (folder / "kernels.py").write_text(schedule.source, encoding="utf-8")
    (folder / "report.txt").write_text(schedule.report(), encoding="utf-8")
    state = _state(interface) if weights else None
    if state:
        save_tensors(state, folder / "weights.safetensors")


def _state(interface: Interface) -> dict[str, torch.Tensor] | None:
    if interface.weights is not None:
        return dict(interface.weights)
    if interface.model is None:
        return None
    find = {"parameter": interface.model.get_parameter, "buffer": interface.model.get_buffer}
    return {source.target: find[source.kind](source.target) for source in interface.inputs if source.kind in find}


def _read_plan(folder: Path) -> dict[str, Any]:
    data = read_json(folder / "plan.json")
    if data.get("format") != PLAN_FORMAT or data.get("version") != PLAN_VERSION:
        raise PlanError(f"{folder}: not a plan of version {PLAN_VERSION}; save it again with this optfuse")
    return data


def _rebuild(folder: Path, data: dict[str, Any], operators: Collection[str]) -> ScheduledGraph:
    extraction = load_problem(folder, operators)
    try:
        solution = load_solution(folder / "solution.json")
        greedy = load_solution(folder / "greedy.json")
    except OptfuseError as error:
        raise PlanError(str(error)) from error
    violations = check(extraction.instance, solution)
    if violations:
        raise PlanError(f"{folder / 'solution.json'}: {violations[0].message}")
    try:
        result = result_from_plain(data["result"], solution, greedy)
    except ValueError as error:
        raise PlanError(f"{folder / 'plan.json'}: {error}; save it again") from error
    interface = interface_from_json(
        data, load_tensors(folder / "constants.safetensors"), load_tensors(folder / "weights.safetensors")
    )
    if not interface.weights and any(source.kind in ("parameter", "buffer") for source in interface.inputs):
        interface = replace(interface, weights=None)
    _require_fit(folder, interface, extraction.graph)
    tiles = {str(name): TileConfig.from_json(config) for name, config in data.get("tiles", {}).items()}
    return ScheduledGraph(extraction, result, emit(extraction, result, tiles=tiles), interface, tiles)


def _require_fit(folder: Path, interface: Interface, graph: LoopGraph) -> None:
    """Refuse an interface that speaks of other inputs or outputs than the graph has."""
    known = set(interface.outputs) | {position for position, _ in (interface.call.literals if interface.call else ())}
    wanted = set(interface.call.user_outputs) if interface.call else set()
    counts = (len(interface.inputs), len(interface.outputs))
    if counts != (len(graph.inputs), len(graph.outputs)) or not wanted <= known:
        raise PlanError(f"{folder / 'plan.json'}: its inputs or outputs are not those of graph.json; save it again")
