"""A captured graph compiled by Inductor, with its own partition or ours, as a program that runs in the place of ours.

Everything around the kernels is the same as for an emitted module: the graph, the checks of inputs by ``Program``, and
replays by ``runtime.graphs``. So two such programs, or one and ours, differ in their partition and kernels only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.inductor.graph_record import graph_record
from optfuse.inductor.groups import Groups, groups_from_json
from optfuse.inductor.impose import Imposed, imposed
from optfuse.inductor.inductor_graph import inductor_graph, keep_origins
from optfuse.inductor.partition import Wanted
from optfuse.runtime.program import Program, Value


@dataclass(frozen=True, slots=True)
class InductorProgram:
    """Inductor's program, its kernels, and how much of an imposed partition it built (None if none was imposed)."""

    program: Program
    groups: Groups
    imposed: Imposed | None


def compile_inductor(captured: Captured, device: torch.device, wanted: Wanted | None = None) -> InductorProgram:
    """Compile a captured graph with Inductor.

    Args:
        device: The device that runs the program.
        wanted: The partition to impose; None leaves the choice to Inductor.

    Raises:
        InductorError: If a node's argument cannot be written as JSON data.
    """
    from torch._inductor.compile_fx import compile_fx_inner

    record = graph_record(captured)
    scheduled: list[dict[str, Any]] = []
    kind = captured.name.rpartition(".")[2]
    imposing = contextlib.nullcontext([]) if wanted is None else imposed(wanted)
    with _settings(), _read_when_fused(scheduled), keep_origins(), imposing as outcomes:
        graph, inputs = inductor_graph(record, device, runs=True)
        _fix_output_strides(graph)
        compiled: Any = compile_fx_inner(
            graph, inputs, is_backward=kind == "backward", is_inference=kind not in ("forward", "backward")
        )
    decisions = scheduled[0] if scheduled else {"kernels": [], "kept": []}
    groups = groups_from_json({**decisions, "torch": torch.__version__, "device": str(device)})
    program = Program("", _constants(captured), module=_module(captured, record, compiled, device))
    return InductorProgram(program, groups, outcomes[0] if outcomes else None)


@contextlib.contextmanager
def _settings() -> Any:
    """Inductor's defaults without caches, which do not distinguish imposed partitions, and without padding."""
    import torch._inductor.config as config

    with config.patch(force_disable_caches=True, fx_graph_cache=False, shape_padding=False):
        yield


@contextlib.contextmanager
def _read_when_fused(scheduled: list[dict[str, Any]]) -> Any:
    """Context in which Inductor's scheduler appends its decisions to ``scheduled`` before code generation."""
    from unittest import mock

    from torch._inductor.scheduler import Scheduler

    from optfuse.inductor.schedule_record import read_schedule

    codegen = Scheduler.codegen

    def reading(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled.append(read_schedule(scheduler))
        return codegen(scheduler, *args, **kwargs)

    with mock.patch.object(Scheduler, "codegen", reading):
        yield


def _fix_output_strides(graph: torch.fx.GraphModule) -> None:
    """Fix the strides of all results: the backward graph was captured with those of the values that forward saves."""
    output = graph.graph.output_node()
    values: Sequence[Any] = output.args[0]  # type: ignore[assignment]
    output.meta["user_visible_output_idxs"] = [k for k, value in enumerate(values) if isinstance(value, torch.fx.Node)]


def _constants(captured: Captured) -> dict[str, torch.Tensor]:
    return {node.name: captured.constants[str(node.target)] for node in captured.graph.graph.find_nodes(op="get_attr")}


def _module(captured: Captured, record: dict[str, Any], compiled: Any, device: torch.device) -> Any:
    """Inductor's function with the attributes of an emitted module."""
    placeholders = [node.name for node in captured.graph.graph.find_nodes(op="placeholder")]
    given = [node for node in record["nodes"] if node["op"] == "input" and "fill" not in node]
    mutated = {placeholders[target] for _, target in captured.mutations}
    order = [node["name"] for node in given]
    rows = {node["name"]: _row(node["name"], node["value"], device, node["name"] in mutated) for node in given}
    written = {position for position, _ in captured.mutations}

    def call(inputs: list[torch.Tensor], constants: dict[str, torch.Tensor]) -> list[Value]:
        named = {**dict(zip(placeholders, inputs, strict=True)), **constants}
        inputs.clear()
        results: Sequence[Any] = compiled([named[name] for name in order])
        return [value for position, value in enumerate(results) if position not in written]

    return SimpleNamespace(
        INPUTS=[rows[name] for name in placeholders],
        CONSTANTS=[row for name, row in rows.items() if name not in placeholders],
        DEVICE=device,
        call=call,
        scratch=None,
    )


def _row(name: str, value: dict[str, Any], device: torch.device, mutated: bool) -> tuple[Any, ...]:
    dtype = value["dtype"].removeprefix("torch.")
    where = "cpu" if value["host"] else str(device)
    return (name, dtype, tuple(value["shape"]), tuple(value["stride"]), where, mutated)
