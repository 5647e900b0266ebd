"""What was decided for a graph, what was proved of it, and the code that does it: frozen data, with its reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.extract.refusal_details import ExtractionDetails
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.simplify.decisions import Decision
from optfuse.errors import InvalidOptionError
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.report.summary import before_solver, certificate, shared_launches, summary
from optfuse.report.table import kernel_rows
from optfuse.report.text import report
from optfuse.report.trace import save_trace
from optfuse.schedule.step_saving import StepSaving
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.explain.explain import explain
from optfuse.solver.explain.explanation import Explanation
from optfuse.solver.overlap.overlap import Overlap
from optfuse.solver.result import SolveResult
from optfuse.solver.sizes.size_box import SizeBox
from optfuse.solver.sizes.size_regions import SizeRegions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure

    from optfuse.compiler.codegen.tiles import TileConfig
    from optfuse.compiler.frontend.tracing.training import TrainingCapture
    from optfuse.schedule.interface import Interface


@dataclass(frozen=True, slots=True)
class PlanTime:
    """A plan that was run: where it comes from, how many kernels it has, and its time by the model and by the clock.

    ``origin`` is "best" (under the model), "greedy", or a doubt about the model under which it would be the best.
    """

    origin: str
    kernels: int
    predicted_us: float
    measured_us: float
    chosen: bool


@dataclass(frozen=True, slots=True)
class ScheduledGraph:
    """A graph's kernels in order, with the certificate.

    Attributes:
        source: The emitted module: Triton kernels and the host program. It imports torch and triton only.
        interface: How the graph's flat inputs and outputs belong to the model.
        tiles: By kernel name, the tiles that ``tune`` has measured to be faster than the chosen ones.
        ranking: The plans that were run before this one was taken (``optimize(..., measure=k)``).
        regions: Where the schedule holds when one or two sizes change (``optimize(..., dynamic=...)``).
    """

    extraction: Extraction
    result: SolveResult
    source: str
    interface: Interface
    tiles: Mapping[str, TileConfig] = field(default_factory=dict)
    ranking: tuple[PlanTime, ...] = ()
    regions: SizeRegions | SizeBox | None = None

    @property
    def name(self) -> str:
        """The graph's name, such as "gpt2.inference"."""
        return self.extraction.graph.name

    @property
    def graph(self) -> LoopGraph:
        """The loop IR that was scheduled."""
        return self.extraction.graph

    @property
    def instance(self) -> Instance:
        """The fusion problem that was solved."""
        return self.extraction.instance

    @property
    def solution(self) -> Solution:
        """Kernels in execution order and their memory plan."""
        return self.result.solution

    @property
    def status(self) -> Literal["OPTIMAL", "FEASIBLE"]:
        """OPTIMAL only when proven for the whole graph, under the stated cost model."""
        return self.result.status

    @property
    def objective(self) -> int:
        """Picoseconds of the schedule under the model."""
        return self.result.objective

    @property
    def bound(self) -> int:
        """No legal schedule takes fewer picoseconds under the model."""
        return self.result.bound

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0.0 when optimal."""
        return self.result.gap

    @property
    def overlap(self) -> Overlap | None:
        """Communication beside computation in the chosen order, with a bound; None for a graph without collectives."""
        return self.result.statistics.overlap

    @property
    def launches(self) -> int:
        """Launches of kernels in a call; library calls are not counted."""
        joined = sum(len(launch) - 1 for launch in self.solution.launches)
        return sum(self.instance.ops[kernel.ops[0]].kind == "loop" for kernel in self.solution.kernels) - joined

    @property
    def greedy_objective(self) -> int:
        """Picoseconds of greedy fusion's schedule under the same model."""
        return self.result.greedy_objective

    @property
    def library_ops(self) -> tuple[str, ...]:
        """ATen operators that are called as they are: no loops are generated for them."""
        ran = [self.graph.ops[op] for kernel in self.solution.kernels for op in kernel.ops]
        return tuple(sorted({op.target for op in ran if isinstance(op, LibraryCall)}))

    @property
    def cuda_graph_cuts(self) -> tuple[str, ...]:
        """The ops that no CUDA graph can hold, each with why: they run between graphs where a program is recorded."""
        from optfuse.schedule.graph_partition import graph_cuts

        return tuple(graph_cuts(self.graph).values())

    @property
    def cuda_graphs(self) -> int:
        """How many CUDA graphs a call launches where the program is recorded."""
        from optfuse.schedule.graph_partition import planned_graphs

        return planned_graphs(self.extraction, self.solution)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided before the solver, which the certificate takes as given; ``str`` of each is a phrase."""
        return self.extraction.decided

    @property
    def certificate(self) -> str:
        """What was proved for which model, and what was decided before the solver: one line."""
        parts = (certificate(self.result), shared_launches(self.result), before_solver(map(str, self.decisions)))
        return "; ".join(part for part in parts if part)

    def summary(self) -> dict[str, Any]:
        """The figures as plain data, as ``--json`` prints them.

        ``allocated_peak_bytes`` is what the allocator will have handed out at most when the program runs without
        CUDA graphs, inputs included, but for what library calls need inside; ``arena``: whether temporaries lie in one.
        """
        from optfuse.schedule.emit import held

        found = held(self.extraction, self.solution)
        record = summary(self.instance, self.result, self.library_ops, map(str, self.decisions))
        return {**record, "allocated_peak_bytes": found.peak_bytes, "arena": found.arena}

    def report(self) -> str:
        """A text to read: certificate, greedy beside optimal, kernel by kernel."""
        return report(self.instance, self.result, self.library_ops, map(str, self.decisions))

    def to_pandas(self) -> pd.DataFrame:
        """A row a kernel, in execution order.

        Columns: ``ops`` (names), ``kind``, ``scheme``, ``bytes_read``, ``bytes_written``, ``predicted_us``,
        ``bound_by`` (memory or compute), ``live_bytes`` (all buffers alive while the kernel runs).
        """
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "ops": list(row.ops),
                    "kind": row.kind,
                    "scheme": row.scheme,
                    "bytes_read": row.read_bytes,
                    "bytes_written": row.write_bytes,
                    "predicted_us": row.predicted_ps / 1e6,
                    "bound_by": row.bound_by,
                    "live_bytes": row.live_bytes,
                }
                for row in kernel_rows(self.instance, self.solution)
            ]
        )

    def plot(self, *, difference: int | None = None) -> Figure:
        """A matplotlib figure: greedy's kernels beside the chosen ones.

        A small graph is drawn, a box a kernel with its ops and bytes on the arrows; kernels that only one side has are
        in colour. A large one is shown in figures: time, live memory, the largest kernels, what each difference saves.
        Below or above that a graph that communicates has both schedules' kernels, exposed waits and transfers in time.

        Args:
            difference: Draw one of the places where the two differ instead: 0 is the one that saves most.

        Raises:
            InvalidOptionError: If there is no such difference.
        """
        from optfuse.report.plot import plot

        return plot(self.instance, self.result, difference)

    def plot_sizes(self) -> Figure:
        """A matplotlib figure of ``regions``: each plan's time over the bound, by size, and where one gives way.

        Raises:
            InvalidOptionError: If no size was said to change.
        """
        return _size_figure(self.regions)

    def to_trace(self, path: str | Path) -> None:
        """Write the predicted timeline, for Perfetto (ui.perfetto.dev): kernels, library calls, and live memory.

        A graph that communicates has a track of the device's kernels and waits, and one for each communicator.

        Raises:
            OutputError: If the file cannot be written.
        """
        save_trace(self.instance, self.result, path)

    def to_html(self, path: str | Path) -> None:
        """Write one page that needs no network: greedy's kernels beside the chosen ones, with ops, Triton and reasons.

        Raises:
            OutputError: If the file cannot be written.
        """
        _save_page(self.name, (self,), path)

    def explain(self, a: str, b: str, *, options: SolveOptions | Mapping[str, Any] | None = None) -> Explanation:
        """Why two ops share a kernel, or do not; ``print`` it.

        Apart: what makes it illegal, or by how much the best schedule with both in one kernel is dearer, or over the
        memory cap. Together: what it saves. The price of the opposite comes from a solve with it forced, with a bound.

        Args:
            a, b: Ops by name, FX node, or a module path that holds one op.
            options: Limits of each such solve.

        Raises:
            RuleError: If a name matches no op, with the nearest names; or several.
        """
        details = ExtractionDetails(self.extraction)
        return explain(self.instance, self.solution, a, b, bound=self.bound, options=options, details=details)


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """The schedules of a training step's two graphs.

    ``capture`` is what they were made from: the first ``compile`` takes its step, later ones trace the model again.
    ``saving``: what was decided to be saved, where it was searched for. ``regions``: where both graphs' schedules hold
    when a size changes, by the sum of their times.
    """

    forward: ScheduledGraph
    backward: ScheduledGraph
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    capture: TrainingCapture | None = field(default=None, repr=False, compare=False)
    saving: StepSaving | None = None
    regions: SizeRegions | SizeBox | None = None

    def __iter__(self) -> Iterator[ScheduledGraph]:
        """Forward, then backward."""
        return iter((self.forward, self.backward))

    def plot_sizes(self) -> Figure:
        """As ``ScheduledGraph.plot_sizes``, of the sum of both graphs."""
        return _size_figure(self.regions)

    def summary(self) -> list[dict[str, Any]]:
        """The figures of both graphs."""
        return [schedule.summary() for schedule in self]

    def to_html(self, path: str | Path) -> None:
        """Write both graphs as one page, as ``ScheduledGraph.to_html`` does for one.

        Raises:
            OutputError: If the file cannot be written.
        """
        _save_page(self.forward.name.removesuffix(".forward"), tuple(self), path)


def _size_figure(regions: SizeRegions | SizeBox | None) -> Figure:
    from optfuse.report.size_plot import plot_sizes

    if regions is None:
        raise InvalidOptionError("no size was said to change: optimize(..., dynamic={argument: {dim: (least, most)}})")
    return plot_sizes(regions)


def _save_page(title: str, schedules: Sequence[ScheduledGraph], path: str | Path) -> None:
    """A page of some schedules; greedy's kernels are emitted for it too."""
    from optfuse.report.html.page import save_page
    from optfuse.report.html.solved import solved_page
    from optfuse.schedule.emit import emit

    solved = [
        (s.instance, s.result, s.source, emit(s.extraction, replace(s.result, solution=s.result.greedy_solution)))
        for s in schedules
    ]
    save_page(solved_page(title, solved), path)
