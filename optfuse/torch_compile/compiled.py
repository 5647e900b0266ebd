"""The record of the graphs that torch.compile handed over in this process, for ``compiled_graphs()`` and the log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.compiler.ops.opaque_operators import NAMESPACE
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.runner import statistics_of
from optfuse.schedule.scheduled import ScheduledGraph

if TYPE_CHECKING:
    from optfuse.schedule.checkpoint_price import CheckpointPrice

#: Graphs that are remembered, at most.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One graph that torch.compile has handed over.

    Attributes:
        name: "compiled0.inference", "compiled1.backward" and so on.
        why_not: Why the graph is not scheduled and runs operator by operator, as it was traced; "" where it is
            scheduled.
        status, gap: What was proved of the schedule: "OPTIMAL" or "FEASIBLE", and the relative distance of its bound.
        predicted_us: Microseconds of the schedule under the cost model.
        kernels, launches: Triton kernels that it runs, and the launches for them: several kernels may share one.
        library_calls: Operators that it calls as they are, with how often.
        communication_us, exposed_us: Predicted microseconds of its collectives, and how many of them the device waits
            for.
        opaque: Nodes that only torch can run (control flow, operators that write their arguments), each a call of its
            own.
        cuda_graphs, cuts: As planned: how many CUDA graphs a call launches where it is recorded, and the operations
            between them, each with why no graph can hold it.
        calls: How calls have been served until now, replayed from CUDA graphs or without them, and why not. A recording
            may find more cuts than were planned. For a range of sizes, those of all of them. Nothing with
            ``cudagraphs=False``.
        peak: Of a schedule for a range of sizes, the bytes that are live at once, inputs and constants included, as an
            expression of the sizes.
        checkpoints: Of a backward graph, what the regions that the model hands to ``torch.utils.checkpoint`` cost in
            time and save in peak memory; None without such regions, or without torch.compile's option
            ``checkpoint_price``.
    """

    name: str
    why_not: str = ""
    status: str = ""
    gap: float = 0.0
    predicted_us: float = 0.0
    kernels: int = 0
    launches: int = 0
    library_calls: Mapping[str, int] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()
    communication_us: float = 0.0
    exposed_us: float = 0.0
    cuda_graphs: int = 0
    cuts: tuple[str, ...] = ()
    calls: GraphStatistics | None = None
    peak: str = ""
    checkpoints: CheckpointPrice | None = None


_GRAPHS: deque[CompiledGraph] = deque(maxlen=MOST)


def compiled_graphs() -> tuple[CompiledGraph, ...]:
    """The graphs that ``torch.compile(backend="optfuse")`` has compiled in this process, in order, the last 10,000."""
    return tuple(_GRAPHS)


def remember(
    graph: CompiledGraph, run: Callable[..., object] | None = None, calls: GraphStatistics | None = None
) -> None:
    """Note a graph, and the function that ``runtime.runner.runner`` made to run it, or how its calls are served."""
    served = statistics_of([] if run is None else [run])
    _GRAPHS.append(replace(graph, calls=served[0] if served else calls))


def facts_of(schedule: ScheduledGraph) -> CompiledGraph:
    """What is told of a graph that was scheduled."""
    ran = (schedule.graph.ops[op] for kernel in schedule.solution.kernels for op in kernel.ops)
    calls = [op for op in ran if isinstance(op, LibraryCall)]
    opaque = tuple(op.target.split(".")[1] for op in calls if op.target.startswith(f"{NAMESPACE}."))
    overlap = schedule.result.statistics.overlap
    counted = Counter(op.target for op in calls if not op.target.startswith(f"{NAMESPACE}."))
    return CompiledGraph(
        schedule.name,
        status=schedule.status,
        gap=schedule.gap,
        predicted_us=(schedule.objective - schedule.solution.saved_ps) / 1e6,
        kernels=len(schedule.solution.kernels) - len(calls),
        launches=schedule.launches,
        library_calls=dict(counted.most_common()),
        opaque=opaque,
        communication_us=0.0 if overlap is None else overlap.transfers / 1e6,
        exposed_us=0.0 if overlap is None else overlap.exposed / 1e6,
        cuda_graphs=schedule.cuda_graphs,
        cuts=schedule.cuda_graph_cuts,
    )
