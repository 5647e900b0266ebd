"""Compile the graphs of one call of the backend, and record what was compiled or left as traced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from optfuse.api import Schedule, schedule_graph
from optfuse.cache import Cache
from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.aot_autograd.joint import Choice, JointStep
from optfuse.compiler.frontend.aot_autograd.kept_code import Keeping
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.operators.slices import refuse_other_shape
from optfuse.compiler.frontend.torch_internals.torch_bridge import aot_compile, tree_leaves
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.size_formula import Interval
from optfuse.compiler.ir.sizes import is_data_size
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import FOR_CALLER, CaptureError, RuleError
from optfuse.problem.instance import Instance
from optfuse.problem.rules import meaning
from optfuse.runtime import environment
from optfuse.runtime.arena import Arena, results_of_process
from optfuse.runtime.graph_budget import GraphBudget
from optfuse.runtime.graph_choice import Choice as GraphChoice
from optfuse.runtime.graph_choice import interest_of
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.pace import Pace, pace_of_process
from optfuse.runtime.program import Program
from optfuse.runtime.runner import runner
from optfuse.runtime.sized_module import SizedModule
from optfuse.schedule.size_peak import size_peak
from optfuse.solver.control.options import SolveOptions
from optfuse.torch_compile.artifacts import show_left, show_scheduled
from optfuse.torch_compile.compiled import CompiledGraph, facts_of, remember
from optfuse.torch_compile.kept import Product, keeping_of
from optfuse.torch_compile.ranged import RangedRun, places_of, require_same
from optfuse.torch_compile.rank_agreement import require_one_order

if TYPE_CHECKING:
    from optfuse.schedule.checkpoint_price import CheckpointPrice
    from optfuse.schedule.saving import SavingSearch

logger = logging.getLogger("optfuse")

#: The function that runs a graph: of its tensors in a list, which it may empty, to its results.
Run = Callable[[list[torch.Tensor]], Sequence[Any]]


@dataclass(slots=True)
class Record:
    """What one call of the backend has compiled so far: the inference graph, or forward and later backward.

    ``unplanned`` has (graph, reason) for graphs that carry what cannot be scheduled: they run as they were traced.
    ``by_size`` has (graph, reason) for graphs with sizes that change which are compiled for each size by itself.
    ``unmatched`` has (graph, reason) for rules that match no op of a graph: they may be meant for another one.
    """

    schedules: list[Schedule] = field(default_factory=list)
    unplanned: list[tuple[str, str]] = field(default_factory=list)
    unmatched: list[tuple[str, str]] = field(default_factory=list)
    by_size: list[tuple[str, str]] = field(default_factory=list)
    #: schedules of the range that is compiled now, or was last
    ranged: dict[str, Schedule] = field(default_factory=dict)

    def survive(self, name: str, error: Exception) -> None:
        """Note and say that compiling a graph has met a defect of ours; raise an error that is not one."""
        if isinstance(error, FOR_CALLER) or type(error).__module__.startswith("torch"):
            raise error
        if _torch_refuses(error):
            self.leave(name, f"torch cannot trace it: {str(error).partition(chr(10))[0]}")
            return
        logger.warning("%s: a defect of optfuse; please report it with this traceback", name, exc_info=error)
        self.leave(name, f"a defect of optfuse ({type(error).__name__}: {error})")

    @property
    def library_ops(self) -> tuple[str, ...]:
        """ATen operators that are called as they are, in any of the graphs."""
        return tuple(sorted({op for schedule in self.schedules for op in schedule.library_ops}))

    def begin_range(self) -> dict[str, Schedule]:
        """A place for the schedules of a range, by the names of their graphs."""
        self.ranged = {}
        return self.ranged

    def leave_range(self, name: str, reason: str) -> None:
        """Note and say that a graph is compiled for each size by itself; schedules of the range tried last go."""
        self.schedules = [each for each in self.schedules if all(each is not gone for gone in self.ranged.values())]
        self.by_size.append((name, reason))
        logger.info("%s is compiled for each size by itself: %s", name, reason)

    def leave(self, name: str, reason: str) -> None:
        """Note and say that a graph is not scheduled."""
        self.unplanned.append((name, reason))
        remember(CompiledGraph(name, reason))
        show_left(name, reason)
        logger.warning("%s is not scheduled and runs as it was traced: %s", name, reason)


def _torch_refuses(error: Exception) -> bool:
    """Whether an error was raised by AOTAutograd itself, or by what checks a program in its place."""
    names = [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__) if _is_ours(frame)]
    return names[-1:] in ([aot_compile.__name__], [refuse_other_shape.__name__])


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith("optfuse.")


@dataclass(frozen=True, slots=True)
class Asked:
    """The backend's options, checked. ``cache``: where solutions are kept; None: nothing is kept.

    ``checkpoint_price``: whether checkpointed regions are priced.
    """

    device: str
    solver: SolveOptions
    cudagraphs: GraphChoice
    tune: bool
    measure: int
    saving: str
    cache: Cache | None
    checkpoint_price: bool = False

    @property
    def searches_saving(self) -> bool:
        """Whether to search for what a training step saves."""
        return self.saving_search() is not None

    def saving_search(self) -> SavingSearch | None:
        """A search for what a training step saves, where it is asked for."""
        if self.saving == "auto" and self.solver.peak_memory is None:
            return None  # at once: the search imports OR-tools, which takes a second
        from optfuse.schedule.saving import saving_search

        return saving_search(self.saving, self.device, self.solver)


@dataclass(slots=True)
class Compilation:
    """Compiles the graphs of one call of the backend, which share memory for temporaries.

    Whether they use CUDA graphs is decided together with all others of the process that run in the same steps.
    """

    asked: Asked
    record: Record
    arena: Arena = field(default_factory=lambda: Arena(results_of_process()))
    pace: Pace = field(default_factory=pace_of_process)
    products: dict[str, Product | None] = field(default_factory=dict)
    searches: dict[str, SavingSearch] = field(default_factory=dict)
    prices: dict[str, CheckpointPrice] = field(default_factory=dict)

    def choose(self, step: JointStep) -> Choice | None:
        """What a training step saves for its backward graph; None: the fewest bytes, or as checkpointed regions say."""
        if self.asked.checkpoint_price and step.regions:
            self._price_regions(step)
        search = self.asked.saving_search()
        if search is None:
            return None
        self.searches[step.name] = search
        return search(step)

    def _price_regions(self, step: JointStep) -> None:
        """Say and keep what checkpointed regions cost, or why that is not known."""
        from optfuse.schedule.checkpoint_price import price_before_split

        try:
            price = price_before_split(step, self.asked.device, self.asked.solver)
        except CaptureError as error:
            logger.warning("%s: its checkpointed regions are not priced: %s", step.name, error)
            return
        if price is not None:
            self.prices[step.name] = price
            logger.info("%s: %s", step.name, price)

    def compile_graph(self, captured: Captured) -> Run:
        """Schedule a graph, or leave it as it was traced where it cannot be scheduled."""
        unfit = device_unfit(captured)
        if unfit is not None:
            self.record.leave(captured.name, unfit)
            return as_traced(captured)
        asked = self.asked
        try:
            problem = fusion_problem(captured, asked.device)
            options = _options_of(captured, asked.solver, self.searches)
            chosen = _with_matching_rules(problem.instance, options, self.record)
            search = self.searches.get(captured.name.rpartition(".")[0])
            known = None if search is None else search.solved
            made = schedule_graph(captured, problem, chosen, measure=asked.measure, cache=asked.cache, solved=known)
        except CaptureError as error:
            self.record.leave(captured.name, str(error))
            return as_traced(captured)
        require_one_order(made.graph, made.solution)
        made = made.tune() if asked.tune else made
        program = Program(made.source, captured.constants)
        constants = {name: value.cpu() for name, value in program.constants.items()}
        facts = facts_of(made)
        facts = replace(facts, opaque=(*facts.opaque, *captured.remainder))
        facts = replace(facts, checkpoints=self.prices.get(captured.name.removesuffix(".backward")))
        product = Product(made.source, constants, interest_of(captured), facts)
        run = self._running(program, product)
        self.record.schedules.append(made)
        self.products[captured.name] = product if product.is_kept(made.graph) else None
        _say(captured, made)
        return run

    def revive(self, name: str, product: Product) -> Run:
        """The function that runs a graph, of what an earlier compilation has kept of it."""
        named = replace(product, facts=replace(product.facts, name=name))
        return self._running(Program(product.source, product.constants), named)

    def keep(self, name: str, feeds: Sequence[Any]) -> Keeping | None:
        """How the graphs of a name are kept between processes."""
        asked = replace(self.asked, cache=None)
        make = partial(_reviving, asked)
        return keeping_of(name, feeds, asked.device, repr(asked), self.revive, make, self.products)

    def compile_range(self) -> RangeCompilation:
        """A compiler of the graphs of one function for a range of sizes."""
        return RangeCompilation(self, self.record.begin_range())

    def _running(self, program: Program, product: Product) -> Run:
        facts = product.facts
        run = runner(program, self.asked.cudagraphs, product.interest, self.arena, self.pace, facts.predicted_us)
        remember(facts, run)
        return run


def _reviving(asked: Asked) -> tuple[Callable[[str, Product], Run], Callable[[str, str], None]]:
    """What revives kept graphs in a process in which the backend is not called, and what says that it cannot."""
    work = Compilation(asked, Record())
    return work.revive, work.record.leave


@dataclass(frozen=True, slots=True)
class RangeCompilation:
    """Compiles the graphs of one function for a range of sizes, which have the same text at each size of the range.

    ``made`` has their schedules by name, ``captured`` the graphs, ``begun`` the ranges of sizes that the trace has left
    when each graph was scheduled.
    """

    work: Compilation
    made: dict[str, Schedule]
    captured: list[Captured] = field(default_factory=list)
    begun: list[dict[str, Interval]] = field(default_factory=list)

    def __call__(self, captured: Captured) -> Run:
        """Schedule one graph at the first sizes.

        Raises:
            CaptureError: If it can have no schedule for a range.
        """
        unfit = device_unfit(captured)
        if unfit is not None:
            raise CaptureError(unfit)
        work, asked = self.work, self.work.asked
        begun = {} if captured.decisions is None else dict(captured.decisions.ranges)
        problem = fusion_problem(captured, asked.device)
        chosen = _with_matching_rules(problem.instance, asked.solver, work.record)
        made = self.made[captured.name] = schedule_graph(captured, problem, chosen, cache=asked.cache)
        self.captured.append(captured)
        self.begun.append(begun)
        require_one_order(made.graph, made.solution)
        peak, cap = size_peak(made.extraction, made.solution), asked.solver.peak_bytes
        if cap is not None and not peak.within(cap):
            raise CaptureError(f"its buffers, allocated one by one, need {peak} bytes, above the cap")
        work.record.schedules.append(made)
        symbols = _symbols(captured)
        # a graph is recorded for one size, and of those that data decides few come again
        choice = asked.cudagraphs is True if any(map(is_data_size, symbols)) else asked.cudagraphs
        interest, predicted = interest_of(captured), made.objective / 1e6
        budget = GraphBudget(GraphStatistics())
        remember(replace(facts_of(made), peak=str(peak)), calls=budget.statistics if choice is not False else None)
        show_scheduled(captured, made)
        constants = captured.constants

        def run_of(module: ModuleType, share: float) -> Run:
            program = Program(made.source, constants, module=module)
            return runner(program, choice, interest, work.arena, work.pace, share * predicted, budget)

        places = places_of(made, symbols, captured.numbers)
        return RangedRun(SizedModule(made.source, frozenset(symbols)), places, len(captured.inputs), run_of)

    def check(self, decisions: Decisions) -> None:
        """Check by ``require_same`` that each graph has the same text at the sizes of ``decisions``."""
        for captured, begun in zip(self.captured, self.begun, strict=True):
            decisions.narrow(begun)
            made = self.made[captured.name]
            problem = fusion_problem(replace(captured, decisions=decisions), self.work.asked.device)
            require_same(problem, made, places_of(made, _symbols(captured), captured.numbers))


def _symbols(captured: Captured) -> tuple[str, ...]:
    """The symbols of a graph for a range of sizes."""
    return () if captured.decisions is None else tuple(captured.decisions.hints)


def _say(captured: Captured, made: Schedule) -> None:
    show_scheduled(captured, made)
    if captured.remainder:
        logger.warning("%s: torch runs what no plan can hold after it: %s", made.name, ", ".join(captured.remainder))
    logger.info(
        "%s: %s, gap %.1f%%, %d library operators: %s; %s",
        made.name,
        made.status,
        100 * made.gap,
        len(made.library_ops),
        ", ".join(made.library_ops) or "none",
        made.certificate,
    )
    for cut in made.cuda_graph_cuts:
        logger.info("%s: cuts the CUDA graph: %s", made.name, cut)


def device_unfit(captured: Captured) -> str | None:
    """Why no kernels are made where a graph's tensors lie, in words; None where they are."""
    values = tree_leaves([node.meta.get("val") for node in captured.graph.graph.nodes])
    kinds = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    if other := sorted(kinds - {"cpu", "cuda"}):
        return f"it has tensors on the device {other[0]!r}, for which there are no kernels"
    if kinds <= {"cpu"} and environment.mode() == "compile":
        return "its tensors are on the CPU, and kernels are compiled for the GPU here"
    return None


def _options_of(captured: Captured, options: SolveOptions, searches: Mapping[str, SavingSearch]) -> SolveOptions:
    """The options for one graph; of a training step's two, what the step's cap leaves for its buffers."""
    step, _, half = captured.name.rpartition(".")
    found = searches[step].found if step in searches else None
    return options if found is None else found.options_of(options, half)


def _with_matching_rules(instance: Instance, options: SolveOptions, record: Record) -> SolveOptions:
    """The options with the rules that match in this graph; the others are said once."""
    kept = []
    for rule in options.rules:
        try:
            meaning(instance, rule)
        except RuleError as error:
            record.unmatched.append((instance.name, str(error)))
            logger.warning("%s", error)
        else:
            kept.append(rule)
    return replace(options, rules=tuple(kept))
