"""A captured graph compiled by Inductor to be run in the place of a program of ours: with its own partition, or ours.

Everything around the kernels is as for an emitted module: the same graph, inputs checked and bound by ``Program``, and
replays by ``runtime.graphs``. So two such programs, or one and ours, differ in what was fused and in the kernels alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from optfuse.compiler.frontend.captured import Captured
from optfuse.inductor.groups import Groups, groups_from_json
from optfuse.inductor.hand_over import origins_handed_on, prepared
from optfuse.inductor.impose import Imposed, imposed
from optfuse.inductor.partition import Wanted
from optfuse.inductor.wire import graph_record
from optfuse.runtime.program import Program, Value


@dataclass(frozen=True, slots=True)
class InductorProgram:
    """Inductor's program, what it made a kernel of, and what became of the partition that it was given, if any."""

    program: Program
    groups: Groups
    imposed: Imposed | None


def compile_inductor(captured: Captured, device: torch.device, wanted: Wanted | None = None) -> InductorProgram:
    """Compile a graph of ours with Inductor.

    Parameters
    ----------
    device
        Where it is to run.
    wanted
        The partition to impose; Inductor's own where left out.

    Raises
    ------
    InductorError
        If a node's argument is no plain data.
    """
    from torch._inductor.compile_fx import compile_fx_inner

    record = graph_record(captured)
    scheduled: list[dict[str, Any]] = []
    kind = captured.name.rpartition(".")[2]
    imposing = contextlib.nullcontext([]) if wanted is None else imposed(wanted)
    with _settings(), _read_when_fused(scheduled), origins_handed_on(), imposing as outcomes:
        graph, inputs = prepared(record, device, runs=True)
        _promise_strides(graph)
        compiled: Any = compile_fx_inner(
            graph, inputs, is_backward=kind == "backward", is_inference=kind not in ("forward", "backward")
        )
    said = scheduled[0] if scheduled else {"kernels": [], "kept": []}
    groups = groups_from_json({**said, "torch": torch.__version__, "device": str(device)})
    program = Program("", _constants(captured), module=_module(captured, record, compiled, device))
    return InductorProgram(program, groups, outcomes[0] if outcomes else None)


@contextlib.contextmanager
def _settings() -> Any:
    """Default settings, but that nothing is remembered (caches know nothing of imposed partitions), nor padded."""
    import torch._inductor.config as config

    with config.patch(force_disable_caches=True, fx_graph_cache=False, shape_padding=False):
        yield


@contextlib.contextmanager
def _read_when_fused(scheduled: list[dict[str, Any]]) -> Any:
    """Within, Inductor's scheduler says what it decided before it generates code."""
    from unittest import mock

    from torch._inductor.scheduler import Scheduler

    from optfuse.inductor.reading import read_schedule

    codegen = Scheduler.codegen

    def reading(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled.append(read_schedule(scheduler))
        return codegen(scheduler, *args, **kwargs)

    with mock.patch.object(Scheduler, "codegen", reading):
        yield


def _promise_strides(graph: torch.fx.GraphModule) -> None:
    """All results are somebody's: what a forward graph keeps must lie as the backward graph was captured for."""
    output = graph.graph.output_node()
    values: Sequence[Any] = output.args[0]  # type: ignore[assignment]
    output.meta["user_visible_output_idxs"] = [k for k, value in enumerate(values) if isinstance(value, torch.fx.Node)]


def _constants(captured: Captured) -> dict[str, torch.Tensor]:
    return {node.name: captured.constants[str(node.target)] for node in captured.graph.graph.find_nodes(op="get_attr")}


def _module(captured: Captured, record: dict[str, Any], compiled: Any, device: torch.device) -> Any:
    """What an emitted module offers, around Inductor's function."""
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
