"""A training step that runs its schedules: the model's results, with gradients by the scheduled backward graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.training import train_module
from optfuse.compiler.stages import loop_graph
from optfuse.errors import PlanError
from optfuse.runtime.arena import Arena, results_of_process
from optfuse.runtime.graph_choice import Choice, choice_under, interest_of
from optfuse.runtime.model_program import Make
from optfuse.runtime.pace import pace_of_process
from optfuse.runtime.program import Program
from optfuse.runtime.runner import runner, statistics_of
from optfuse.schedule.scheduled import ScheduledStep


def bind_training(
    schedule: ScheduledStep, *, cudagraphs: Choice = "auto", make: Make | None = None
) -> Callable[..., Any]:
    """A function with the model's signature that runs the forward schedule; its gradients come from the backward one.

    ``make`` makes what runs each graph, instead of its program. The function's attribute ``graphs`` tells how its CUDA
    graphs are used, see ``runtime.graphs.GraphStatistics``.

    Raises:
        PlanError: If the model's training graphs are not those that were scheduled (it was changed since).
    """
    arena, pace = Arena(results_of_process()), pace_of_process()
    cudagraphs = choice_under(schedule.forward.instance.rules.peak_memory, cudagraphs)
    runs: list[Callable[[list[torch.Tensor]], Sequence[Any]]] = []
    made = {half.name: half for half in schedule}

    def compile_again(captured: Captured) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
        half = made.get(captured.name)
        if half is None or half.graph != loop_graph(captured, half.instance.devices[0]):
            raise PlanError(f"{captured.name} is not the graph that was scheduled: the model changed; optimize again")
        return compile_graph(captured)

    def compile_graph(captured: Captured) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
        half = made[captured.name]
        if make is None:
            ran = Program(half.source, captured.constants)
            runs.append(runner(ran, cudagraphs, interest_of(captured), arena, pace, half.objective / 1e6))
        else:
            runs.append(make(half, captured.constants, interest_of(captured)))
        return runs[-1]

    name = schedule.forward.name.removesuffix(".forward")
    step = None if schedule.capture is None else schedule.capture.take(compile_graph)
    if step is None:
        taken = None if schedule.saving is None else schedule.saving.choice
        choose = None if schedule.saving is None else (lambda _: taken)
        step = train_module(schedule.model, schedule.args, schedule.kwargs, compile_again, name=name, choose=choose)
    step.graphs = statistics_of(runs)  # type: ignore[attr-defined]
    return step
