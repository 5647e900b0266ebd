"""A schedule that can be called like the model it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from optfuse.compiler.frontend.calls.calling import Feed, checked_leaves, feed_of
from optfuse.compiler.frontend.graph.captured import CallSpec, InputSource
from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_unflatten
from optfuse.errors import PlanError
from optfuse.runtime.graph_choice import Choice, Interest, choice_under
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.pace import pace_of_process
from optfuse.runtime.program import Program, Value
from optfuse.runtime.runner import runner, statistics_of
from optfuse.schedule.scheduled import ScheduledGraph

#: Makes the function that runs a graph: of its schedule, its constants, and whose its results are (``runtime.graphs``).
Make = Callable[[ScheduledGraph, Mapping[str, Any], Interest], Callable[[list[Any]], list[Any]]]


class ModelProgram:
    """Calls an emitted program with the model's own arguments and parameters.

    Parameters are read from the model at each call, so later updates of the weights count. In-place changes of inputs
    and buffers arrive where the model would make them. A result that is such an input itself in eager is a tensor of
    its own here, with the same values.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        run: Callable[[list[torch.Tensor]], list[Value]],
        inputs: tuple[InputSource, ...],
        outputs: tuple[int, ...],
        call: CallSpec,
        owner: torch.nn.Module | Mapping[str, torch.Tensor],
    ) -> None:
        self.name = name
        self.program = program
        self._run = run
        self._outputs = outputs
        self._call = call
        self._feeds = tuple(_feed(source, owner) for source in inputs)

    @property
    def graphs(self) -> tuple[GraphStatistics, ...]:
        """How calls were served by CUDA graphs; nothing without them."""
        return statistics_of([self._run])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result for these arguments, in the model's own structure.

        Raises:
            CaptureError: Arguments of another structure, or other constants, than those captured.
            InvalidInputError: Tensors of another shape, dtype or device.
        """
        leaves = checked_leaves(self.name, self._call, args, kwargs)
        results = self._run([feed(leaves) for feed in self._feeds])
        values: dict[int, Any] = dict(zip(self._outputs, map(_plain, results), strict=True))
        values.update(self._call.literals)
        return tree_unflatten([values[k] for k in self._call.user_outputs], self._call.out_spec)


def _feed(source: InputSource, owner: torch.nn.Module | Mapping[str, torch.Tensor]) -> Feed:
    if isinstance(owner, torch.nn.Module):
        return feed_of(source, owner)
    if source.kind == "user":
        return feed_of(source, torch.nn.Module())
    weight = owner[source.target]
    return lambda leaves: weight


def _plain(value: Value) -> Value:
    """A result; a parameter or input that is handed on does not bring its gradient along."""
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def bind(
    schedule: ScheduledGraph,
    model: torch.nn.Module | None = None,
    *,
    cudagraphs: Choice = "auto",
    make: Make | None = None,
) -> ModelProgram:
    """Load a schedule's module and tie it to the model's parameters.

    ``cudagraphs`` says whether calls on a GPU are replayed from a CUDA graph, see ``runtime.graphs``. ``make`` makes
    what runs the graph, instead of its program.

    Raises:
        PlanError: If the graph is half of a training step, there is neither a model nor saved weights, or one of them
            is missing.
    """
    interface = schedule.interface
    if interface.call is None:
        raise PlanError(f"{schedule.name} is half of a training step; compile the training schedule as a whole")
    owner = interface.model if model is None else model
    owner = interface.weights if owner is None else owner
    if owner is None:
        raise PlanError(f"plan {schedule.name} was saved without weights; give the model: load(path).compile(model)")
    _require_all(schedule.name, interface.inputs, owner)
    program = Program(schedule.source, interface.constants)
    fixed = frozenset(k for k, source in enumerate(interface.inputs) if source.kind in ("parameter", "buffer"))
    interest = Interest(fixed=fixed)
    cudagraphs = choice_under(schedule.instance.rules.peak_memory, cudagraphs)
    plain = runner(program, cudagraphs, interest, pace=pace_of_process(), gpu_us=schedule.objective / 1e6)
    made = plain if make is None else make(schedule, interface.constants, interest)
    return ModelProgram(schedule.name, program, made, interface.inputs, interface.outputs, interface.call, owner)


def _require_all(
    name: str, inputs: tuple[InputSource, ...], owner: torch.nn.Module | Mapping[str, torch.Tensor]
) -> None:
    """Say which parameter a model or a plan's weights lack, before anything runs."""
    if isinstance(owner, torch.nn.Module):
        known = {key for key, _ in owner.named_parameters(remove_duplicate=False)}
        known |= {key for key, _ in owner.named_buffers(remove_duplicate=False)}
    else:
        known = set(owner)
    lost = [source.target for source in inputs if source.kind in ("parameter", "buffer") and source.target not in known]
    if lost:
        raise PlanError(f"plan {name} needs {lost[0]}, which is not there; give the model that was optimized")
