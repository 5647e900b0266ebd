"""A graph that is ready to be solved, in memory and as a folder: what several solvers of one graph share.

    graph.json              the loop IR
    instance.json           the fusion problem
    decisions.json          what was decided before the solver, in numbers
    interface.json          how to call the graph
    constants.safetensors   the graph's constants, if it has any

A plan holds the same files beside its solution. Loading reads plain data only and runs nothing that is in the folder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import Extraction, extract
from optfuse.compiler.frontend.operators.plan_operators import require_named
from optfuse.compiler.ir.graph_json import graph_from_json, graph_to_json
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.simplify.decisions import UNRECORDED, Decision, decisions_from_json, decisions_to_json, of_graph
from optfuse.errors import OptfuseError, PlanError, UnknownClassError
from optfuse.problem.serialize import digest, load_instance, save_instance
from optfuse.problem.untrusted_folder import require_enclosed
from optfuse.schedule.interface import Interface, interface_from_json, interface_to_json


@dataclass(frozen=True, slots=True)
class Prepared:
    """All of a schedule that is known before it is solved."""

    extraction: Extraction
    interface: Interface


def save_prepared(prepared: Prepared, folder: Path) -> None:
    """Write a prepared graph into an existing folder.

    Raises:
        PlanError: If the call has arguments that are no plain data.
    """
    data = interface_to_json(prepared.interface)
    (folder / "interface.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    save_problem(prepared.extraction, prepared.interface, folder)


def load_prepared(folder: Path) -> Prepared:
    """Read what ``save_prepared`` wrote.

    Raises:
        PlanError: If a file is missing or malformed, a link that leads out of the folder, or calls what a file may not.
        UnknownClassError: If the call has a class whose library is not imported.
    """
    require_enclosed(folder)
    path = folder / "interface.json"
    try:
        interface = interface_from_json(read_json(path), load_tensors(folder / "constants.safetensors"))
    except UnknownClassError as error:
        raise UnknownClassError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise PlanError(f"{path}: malformed ({type(error).__name__}: {error}); make it again") from error
    return Prepared(load_problem(folder), interface)


def save_problem(extraction: Extraction, interface: Interface, folder: Path) -> None:
    """Write graph.json, instance.json, decisions.json and the constants."""
    decided = decisions_to_json(extraction.decided)
    (folder / "decisions.json").write_text(json.dumps({"decided": decided}, indent=1) + "\n", encoding="utf-8")
    (folder / "graph.json").write_text(json.dumps(graph_to_json(extraction.graph)), encoding="utf-8")
    save_instance(extraction.instance, folder / "instance.json")
    if interface.constants:
        save_tensors(interface.constants, folder / "constants.safetensors")


def load_problem(folder: Path, operators: Collection[str] = ()) -> Extraction:
    """Read graph.json, extract its fusion problem again, and compare it with instance.json.

    ``operators``: namespaces whose operators the graph may call beside torch's own
    (``compiler.frontend.operators.plan_operators``).
    A folder of an earlier version has no decisions.json: what was decided is UNRECORDED, but for what the graph shows.

    Raises:
        PlanError: If a file is missing or malformed, the graph calls what a file may not, or the two differ in more
            than rules and limits.
    """
    try:
        graph = graph_from_json(read_json(folder / "graph.json"))
        require_named((op.target for op in graph.ops if isinstance(op, LibraryCall)), operators)
    except OptfuseError as error:
        named = str(folder / "graph.json") in str(error)
        raise PlanError(str(error) if named else f"{folder / 'graph.json'}: {error}") from error
    try:
        saved = load_instance(folder / "instance.json")
    except OptfuseError as error:
        raise PlanError(str(error)) from error
    donated = frozenset(b.name for b in saved.buffers if b.donated)
    owners = [(b.name, b if b.alias is None else saved.buffers[b.alias]) for b in saved.buffers if b.kind == "input"]
    shared = {name: (owner.name, owner.bytes) for name, owner in owners}
    extraction = extract(
        graph, saved.devices[0], donated=donated, shared=shared, allocates=lambda call: not takes_out(call)
    )
    extraction = replace(
        extraction,
        instance=replace(extraction.instance, rules=saved.rules, limits=saved.limits),
        decided=_decided(folder / "decisions.json", graph),
    )
    if digest(extraction.instance) != digest(saved):
        raise PlanError(f"{folder}: instance.json is not the problem that graph.json states; save the plan again")
    return extraction


def _decided(path: Path, graph: LoopGraph) -> tuple[Decision, ...]:
    if not path.exists():
        return (UNRECORDED, *of_graph(graph))
    try:
        return decisions_from_json(read_json(path)["decided"])
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{path}: malformed ({type(error).__name__}: {error}); save the plan again") from error


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write dense copies that share no memory, as the file format wants them."""
    save_file(
        {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()},
        path,
    )


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file; none if there is no such file.

    Raises:
        PlanError: If the file is malformed.
    """
    if not path.is_file():
        return {}
    try:
        return load_file(path)
    except SafetensorError as error:
        raise PlanError(f"{path}: cannot be read: {error}; save the plan again") from error


def read_json(path: Path) -> dict[str, Any]:
    """The one object of a JSON file of a plan.

    Raises:
        PlanError: If the file is missing, is not JSON, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(f"{path}: no such file; {path.parent} is not a whole plan") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise PlanError(f"{path}: not a JSON object; save the plan again")
    return data
