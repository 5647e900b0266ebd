"""Inductor on our graph: with its own partition, or with one of ours imposed; under CUDA graphs where there is a GPU.

Programs of these systems differ from each other in what is fused alone, and from ours in the kernels as well: the
graph, its layouts, the calls of libraries and the way that a CUDA graph is recorded are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import train_module
from optfuse.compiler.stages import loop_graph
from optfuse.errors import InductorError, PlanError
from optfuse.inductor.compare import inductor_answer
from optfuse.inductor.partition import Wanted, wanted
from optfuse.inductor.run import InductorProgram, compile_inductor
from optfuse.lab.bench.records import Record
from optfuse.runtime.arena import Arena
from optfuse.runtime.graph_choice import Choice, interest_of
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.model_program import ModelProgram
from optfuse.runtime.runner import runner, statistics_of
from optfuse.schedule.interface import interface_of

if TYPE_CHECKING:
    from optfuse.api import Schedule, TrainingSchedule
    from optfuse.compiler.frontend.graph.captured import Captured
    from optfuse.problem.solution import Solution

#: Which partition is imposed on Inductor for a schedule's graph; None: Inductor chooses.
Choose = Callable[["Schedule"], "Solution | None"]


@dataclass(frozen=True, slots=True)
class OnOurGraph:
    """A model whose graphs Inductor has compiled.

    Attributes:
        call: A function like the model.
        facts: For each graph: kernels and library calls, what they cost under our model where they are a schedule of
            ours, and what became of an imposed partition.
        graphs: How CUDA graphs are used.
    """

    call: Callable[..., Any]
    facts: tuple[Record, ...]
    graphs: Callable[[], tuple[GraphStatistics, ...]]


def compile_on_our_graph(
    found: Schedule | TrainingSchedule,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    choose: Choose,
    *,
    device: torch.device,
    cudagraphs: Choice,
) -> OnOurGraph:
    """Let Inductor compile the graphs that were scheduled.

    Raises:
        PlanError: If the model's graphs are not those that were scheduled.
    """
    halves: Sequence[Schedule] = (found,) if not hasattr(found, "forward") else tuple(found)  # type: ignore[arg-type]
    made = {half.name: half for half in halves}
    facts: list[Record] = []
    runs: list[Callable[..., Any]] = []
    arena = Arena()

    def compile_graph(captured: Captured) -> Callable[[Sequence[torch.Tensor]], Sequence[Any]]:
        half = made.get(captured.name)
        if half is None or loop_graph(captured, half.instance.devices[0]) != half.graph:
            raise PlanError(f"{captured.name} is not the graph that was scheduled: the model changed; optimize again")
        solution = choose(half)
        asked = None if solution is None else wanted(half.graph, half.instance, solution)
        compiled = compile_inductor(captured, device, asked)
        facts.append(_facts(half, compiled, asked))
        runs.append(runner(compiled.program, cudagraphs, interest_of(captured), arena))
        return runs[-1]

    if len(halves) > 1:
        name = halves[0].name.removesuffix(".forward")
        call = train_module(model, args, kwargs, compile_graph, name=name)
    else:
        call = _bound(capture(model, args, kwargs, name=halves[0].name), model, compile_graph)
    return OnOurGraph(call, tuple(facts), lambda: statistics_of(runs))


def _bound(
    captured: Captured, model: torch.nn.Module, compile_graph: Callable[[Captured], Callable[..., Any]]
) -> ModelProgram:
    interface = interface_of(captured)
    assert interface.call is not None, "an inference graph has the model's call"
    run: Any = compile_graph(captured)
    owner: Any = getattr(run, "__self__", None)
    program = getattr(owner, "program", owner)
    return ModelProgram(captured.name, program, run, interface.inputs, interface.outputs, interface.call, model)


def _facts(half: Schedule, compiled: InductorProgram, asked: Wanted | None) -> Record:
    found: Record = {
        "graph": half.name,
        "launches": len(compiled.groups.launches),
        "ours": half.objective,
        "greedy": half.greedy_objective,
    }
    try:
        answer = inductor_answer(half.extraction, compiled.groups)
        found |= {"priced": answer.solution.objective, "split": len(answer.legalized.splits)}
    except InductorError as error:
        found["unpriced"] = str(error)
    if asked is not None and compiled.imposed is not None:
        found["imposed"] = compiled.imposed.as_json()
    return found
