"""The function that runs a program as the option ``cudagraphs`` says, and what is told of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from optfuse.runtime.arena import Arena
from optfuse.runtime.graph_agreement import agreement_on
from optfuse.runtime.graph_budget import GraphBudget
from optfuse.runtime.graph_choice import Choice, Interest
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.graphs import GraphedProgram
from optfuse.runtime.pace import Pace
from optfuse.runtime.process_groups import why_ranks_may_not_differ
from optfuse.runtime.program import Program, Value
from optfuse.runtime.replay_watchdog import watched_replays


def runner(
    program: Program,
    choice: Choice,
    interest: Interest | None = None,
    arena: Arena | None = None,
    pace: Pace | None = None,
    gpu_us: float = 0.0,
    budget: GraphBudget | None = None,
) -> Callable[[list[torch.Tensor]], list[Value]]:
    """The function that runs a program as chosen, with a list of inputs that it empties.

    ``pace``, with the microseconds that the GPU is predicted to take, lets "auto" do without graphs.
    ``budget`` is shared by the programs of other sizes.
    """
    if choice is False:
        return program.consume
    paced = None if choice is True else pace
    agrees = choice == "auto" and program.has_collectives and not program.is_part_of_collective
    number = 0
    if paced is not None:
        add = partial(paced.add, gpu_us, is_rechecked=not agrees)  # ranks go on together
        number = add() if budget is None else budget.number(gpu_us, add)
    graphed = GraphedProgram(program, choice, interest or Interest(), arena=arena, pace=paced, number=number)
    if program.has_collectives and not program.is_part_of_collective:
        refusal = why_ranks_may_not_differ()  # asked before anything is recorded
        graphed.agreement = agreement_on(program.module, refusal) if agrees else None
        graphed.watched = watched_replays(program.module)
    if budget is not None:
        graphed.budget, graphed.statistics = budget, budget.statistics
    return graphed.consume


def statistics_of(runs: Sequence[Callable[..., Any]]) -> tuple[GraphStatistics, ...]:
    """What the functions that ``runner`` made have done, one record a program that uses graphs."""
    owners = [getattr(run, "__self__", None) for run in runs]
    return tuple(owner.statistics for owner in owners if isinstance(owner, GraphedProgram))
