"""Record a program once; start again with a cut at each step that no CUDA graph turns out to hold."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch

from optfuse.runtime.arena import Arena, Block
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.program import Program, Value
from optfuse.runtime.recorder import Partition, Recorder, Step


def captured(
    program: Program,
    fed: Sequence[torch.Tensor],
    main: torch.device,
    recorder: Recorder,
    partition: Partition,
    arena: Arena,
    place: Hashable,
    statistics: GraphStatistics,
) -> tuple[list[Step], list[Value]] | None:
    """Graphs of the program, cut at the steps that turn out to need it. None, with a reason, if there are none.

    ``fed`` are the inputs at the addresses that replays read. Temporaries lie in the arena, with those of all that is
    replayed in the same ``place``.
    """
    held = list[Block]()
    take = partial(arena.take, place=place, held=held)
    while True:
        known, apart = len(partition.cuts), partition.recording(recorder)
        try:
            run = partial(program.execute, main=main, take=take, apart=apart, table=recorder.table)
            steps, values = recorder.record(lambda: run(list(fed)))  # noqa: B023
            break
        except RuntimeError as error:
            if len(partition.cuts) == known:  # not at a step that can be left out
                statistics.reason = f"cannot be recorded: {str(error).splitlines()[0][:200]}"
                return None
    statistics.graphs = sum(step.launches_graph for step in steps)
    statistics.cuts = tuple(dict.fromkeys(partition.cuts.values()))
    if not statistics.graphs:
        statistics.reason = "no run of steps between cuts is long enough for a graph"
        return None
    steps.append(Step(lambda: None, keeps=held))
    return steps, values
