"""The stages in order, one line each. Read this file first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optfuse.codegen.libraries import takes_out
from optfuse.emit import emit
from optfuse.extract.build import extract
from optfuse.extract.device import load_device
from optfuse.extract.split import split_reductions
from optfuse.frontend.captured import Captured
from optfuse.frontend.inference import capture
from optfuse.frontend.training import capture_training
from optfuse.interface import donated_inputs, interface_of
from optfuse.ir.nodes import LoopGraph
from optfuse.ir.verify import verify
from optfuse.lower import lower
from optfuse.problem.instance import Device
from optfuse.schedule import Schedule, TrainingSchedule
from optfuse.solve.options import SolveOptions
from optfuse.solve.solve import solve


def optimize(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    device: str = "h200",
    options: SolveOptions | None = None,
    name: str | None = None,
) -> Schedule | TrainingSchedule:
    """Find the best kernel schedule of a model under the device's cost model, with a proof of how good it is.

    Parameters
    ----------
    model
        A ``torch.nn.Module``. It is traced with fake tensors, never run; its weights may live anywhere.
    args, kwargs
        Example inputs. Their shapes, dtypes and strides are what the schedule holds for.
    train
        Schedule a training step's forward and backward graphs instead of the inference graph.
    device
        A shipped device's name, or the path of a device file.
    options
        The solver's limits and choices.
    name
        What to call the graphs; the class name in lower case by default.

    Raises
    ------
    CaptureError
        If the model cannot be traced to one graph: the message names the line.
    InvalidOptionError
        If an option or the device is unknown.
    """
    options = SolveOptions() if options is None else options
    load_device(device)
    name = type(model).__name__.lower() if name is None else name
    if not train:
        return schedule(capture(model, args, dict(kwargs or {}), name=name), device, options, model)
    forward, backward = capture_training(model, args, dict(kwargs or {}), name=name)
    return TrainingSchedule(
        schedule(forward, device, options, model),
        schedule(backward, device, options, model),
        model,
        args,
        dict(kwargs or {}),
    )


def schedule(captured: Captured, device: str, options: SolveOptions, model: Any = None) -> Schedule:
    """All stages after capture, for one graph."""
    target = load_device(device)
    graph = loop_graph(captured, target)
    extraction = extract(
        graph, target, donated=donated_inputs(captured, graph.inputs), allocates=lambda call: not takes_out(call)
    )  # loop IR to fusion problem
    result = solve(extraction.instance, options)  # fusion problem to proven solution, checked
    source = emit(extraction, result)  # solution to Triton and host source
    return Schedule(extraction, result, source, interface_of(captured, model))


def loop_graph(captured: Captured, device: Device) -> LoopGraph:
    """The graph that is scheduled: lowered, verified, and with reductions split that would leave the device idle."""
    graph = lower(
        captured.graph,
        name=captured.name,
        mutations=captured.mutations,
        constants=captured.constants,
        strides=captured.strides,
    )
    verify(graph)
    return split_reductions(graph, device)
