"""What a user calls: ``optimize`` and what it returns, plans from disk, and time against memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram

from optfuse.cache import Cache
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.aot_autograd.joint import JointStep
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_step, capture_training
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import CaptureError, InvalidOptionError
from optfuse.problem.device_files import load_device
from optfuse.problem.garbage_collection import rarely_collecting
from optfuse.problem.instance import Instance
from optfuse.problem.rules import Rule, matching
from optfuse.report.pareto import pareto_rows
from optfuse.schedule.build import solve_prepared
from optfuse.schedule.interface import interface_of
from optfuse.schedule.plan import load_plan, save_plan
from optfuse.schedule.prepared import Prepared
from optfuse.schedule.scheduled import ScheduledGraph, ScheduledStep
from optfuse.schedule.solve_once import Solved
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.control.progress import relative_gap
from optfuse.solver.pareto import sweep
from optfuse.tuning.rank import rank, require_measurable

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from optfuse.runtime.graph_choice import Choice
    from optfuse.runtime.model_program import ModelProgram
    from optfuse.schedule.checkpoint_price import CheckpointPrice
    from optfuse.schedule.resized import Dynamic, Inputs
    from optfuse.schedule.saving import SavingMode
    from optfuse.solver.sizes.size_box import SizeBox
    from optfuse.solver.sizes.size_regions import SizeRegions


@dataclass(frozen=True, slots=True)
class Schedule(ScheduledGraph):
    """A graph's schedule, as ``optimize`` and ``load`` return it: its reports, and how to run and keep it."""

    @classmethod
    def of(cls, scheduled: ScheduledGraph) -> Schedule:
        """The same schedule, with what a user can do with it."""
        if isinstance(scheduled, cls):
            return scheduled
        return cls(**{item.name: getattr(scheduled, item.name) for item in fields(scheduled)})

    def tune(self) -> Schedule:
        """The schedule with tiles and warps that a small search on the GPU found to be faster, kernel by kernel.

        What was found is kept in the user's cache, by the kernel's content, the device and the versions. ``optfuse.
        tuning.tune.tune`` returns the figures, too.

        Raises:
            InvalidOptionError: If there is no GPU.
        """
        from optfuse.tuning.tune import tune

        return Schedule.of(tune(self).schedule)

    def compile(
        self, model: torch.nn.Module | None = None, *, cudagraphs: Choice = "auto", tune: bool = False
    ) -> ModelProgram:
        """Load the emitted module and bind it to the model's parameters.

        Runs where the tensors live: compiled for CUDA, else by Triton's interpreter, which checks and does not race.

        Args:
            model: Replaces the model that was captured (or gives one to a plan saved without weights).
            cudagraphs: On a GPU, replay calls from a CUDA graph. "auto": where that saves time, and results stay the
                caller's own. True: results are valid until the next call. False: launch every kernel.
            tune: Search tiles and warps on the GPU first, as ``tune`` does.
        """
        from optfuse.runtime.graph_choice import checked_choice
        from optfuse.runtime.model_program import bind

        return bind(self.tune() if tune else self, model, cudagraphs=checked_choice(cudagraphs))

    def save(self, path: str | Path, *, weights: bool = True) -> None:
        """Write the plan to a folder, all or nothing; ``optfuse.load`` reads it back."""
        save_plan(self, path, weights=weights)


@dataclass(frozen=True, slots=True)
class TrainingSchedule(ScheduledStep):
    """The schedules of a training step's two graphs, as ``optimize(..., train=True)`` returns them."""

    forward: Schedule
    backward: Schedule

    def __iter__(self) -> Iterator[Schedule]:
        """Forward, then backward."""
        return iter((self.forward, self.backward))

    def tune(self) -> TrainingSchedule:
        """Both graphs' schedules tuned, as ``Schedule.tune`` does."""
        return replace(self, forward=self.forward.tune(), backward=self.backward.tune())

    def compile(self, *, cudagraphs: Choice = "auto", tune: bool = False) -> Callable[..., Any]:
        """A callable like the model, whose outputs carry gradients computed by the backward schedule.

        ``cudagraphs`` and ``tune`` as for ``Schedule.compile``. Gradients, and what a forward call saves for its
        backward call, are never overwritten while they are in use.
        """
        from optfuse.runtime.graph_choice import checked_choice
        from optfuse.runtime.training_program import bind_training

        return bind_training(self.tune() if tune else self, cudagraphs=checked_choice(cudagraphs))

    def checkpoint_price(
        self, *, device: str = "h200", options: SolveOptions | Mapping[str, Any] | None = None
    ) -> CheckpointPrice | None:
        """What the regions that the model hands to ``torch.utils.checkpoint`` cost in time and save in peak memory.

        The step is traced and solved once more, without them. ``device`` and ``options`` are those of ``optimize``.
        None if the model has no such region.
        """
        from optfuse.schedule.checkpoint_price import checkpoint_price

        options = SolveOptions.of(options)
        return checkpoint_price(self, device, replace(options, rules=(), peak_memory=None))


@rarely_collecting()
def optimize(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    device: str = "h200",
    options: SolveOptions | Mapping[str, Any] | None = None,
    rules: Sequence[Rule] = (),
    name: str | None = None,
    measure: int = 0,
    saving: SavingMode = "auto",
    dynamic: Dynamic | None = None,
) -> Schedule | TrainingSchedule:
    """Find the best kernel schedule of a model under the device's cost model, with a proof of how good it is.

    Args:
        model: A ``torch.nn.Module``, or a program of ``torch.export``. It is traced with fake tensors, never run; its
            weights may live anywhere.
        args, kwargs: Example inputs; by default those that a program was exported with. Their shapes, dtypes and
            strides are what the schedule holds for.
        train: Schedule a training step's forward and backward graphs instead of the inference graph.
        device: A shipped device's name, or the path of a device file.
        options: The solver's limits and choices: ``SolveOptions``, or a dictionary of its fields.
        rules: What must and must not share a kernel (``optfuse.rules``), beside those of ``options``. Of a training
            step's two graphs, a rule holds for those in which it matches.
        name: What to call the graphs; the class name in lower case by default.
        measure: Run so many of the best distinct plans of each graph on the GPU, and take the fastest one: its
            ``ranking`` has them all, with predicted and measured times. 0: the model decides alone.
        saving: Of a training step, what decides which values the forward graph saves and which the backward graph
            computes again. "fewest": torch's minimum cut of bytes. "search": both graphs are solved for several
            choices, and the cheapest step is taken; ``TrainingSchedule.saving`` has them all, with a bound on every
            choice. "auto": the search if ``options`` cap the peak memory, which is then the whole step's: parameters,
            inputs, results and gradients count, and an optimizer's state as ``options.optimizer_states`` says. Regions
            that the model checkpoints are split as they say.
        dynamic: Sizes that change: by argument (its position or keyword) and dimension the least and the most size, as
            in ``{"input_ids": {1: (16, 1024)}}``. Dimensions of equal size and range are one size; two may change. The
            schedule is that of the example's sizes, and its ``regions`` say at which sizes it is proven to be how good,
            and where which other one is better. Each of about seven sizes is traced and solved, or three of each with
            each of the other. Not with a cap on peak memory or rules. By default the dynamic dimensions of an exported
            program (one without an upper bound up to four times the example's size); ``{}``: none of them.

    Raises:
        CaptureError: If the model cannot be traced to one graph: the message names the line.
        InvalidOptionError: If an option or the device is unknown.
        InfeasibleError: If no schedule, or no choice of what to save, keeps the cap on peak memory.
        RuleError, RuleConflictError: If a rule matches no op of any graph, or no schedule obeys the rules.
    """
    options = SolveOptions.of(options)
    options = replace(options, rules=(*options.rules, *rules))
    load_device(device)
    require_measurable(measure)
    name = type(model).__name__.lower() if name is None else name
    inputs = (args, dict(kwargs or {}))
    if isinstance(model, ExportedProgram):
        model, inputs, dynamic = _unpacked(model, args, kwargs, dynamic, options)
    regions = None if dynamic is None else _regions(model, inputs, dynamic, device, options, name, train=train)
    if train:
        return replace(_training_schedule(model, inputs, device, options, name, measure, saving), regions=regions)
    captured = capture(model, *inputs, name=name)
    return replace(schedule_graph(captured, fusion_problem(captured, device), options, model, measure), regions=regions)


def _unpacked(
    program: ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    dynamic: Dynamic | None,
    options: SolveOptions,
) -> tuple[torch.nn.Module, Inputs, Dynamic | None]:
    """A program's module, its inputs, and its dynamic dimensions where sizes can be compared and none are given."""
    from optfuse.compiler.frontend import exported

    inputs = exported.inputs_of(program, args, kwargs)
    if dynamic is None and not options.rules and options.peak_bytes is None:
        dynamic = exported.ranges_of(program, inputs)
    return program.module(), inputs, dynamic or None


def _training_schedule(
    model: torch.nn.Module,
    inputs: Inputs,
    device: str,
    options: SolveOptions,
    name: str,
    measure: int,
    saving: SavingMode,
) -> TrainingSchedule:
    """The schedules of a training step's two graphs, which follow from what is saved between them."""
    from optfuse.schedule.saving import saving_search

    search = saving_search(saving, device, options)
    step = capture_step(model, *inputs, name=name, choose=search)
    found, solved = (None, None) if search is None else (search.found, search.solved)
    graphs = (step.forward, step.backward)
    problems = [fusion_problem(captured, device) for captured in graphs]
    holding = matching([problem.instance for problem in problems], options.rules)
    halves = [options if found is None else found.options_of(options, half) for half in ("forward", "backward")]
    forward, backward = (
        schedule_graph(captured, problem, replace(half, rules=own), model, measure, solved=solved)
        for captured, problem, half, own in zip(graphs, problems, halves, holding, strict=True)
    )
    return TrainingSchedule(forward, backward, model, *inputs, step, found)


def _regions(
    model: torch.nn.Module,
    inputs: Inputs,
    dynamic: Dynamic,
    device: str,
    options: SolveOptions,
    name: str,
    *,
    train: bool,
) -> SizeRegions | SizeBox:
    from optfuse.schedule.resized import regions_of

    if options.rules or options.peak_bytes is not None:
        raise InvalidOptionError("dynamic: sizes are compared without rules and without a cap on peak memory")

    def captured(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Captured]:
        if train:
            return capture_training(model, args, kwargs, name=name)
        return (capture(model, args, kwargs, name=name),)

    return regions_of(captured, inputs, dynamic, device, options)


@rarely_collecting()
def saving_front(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    points: int = 8,
    device: str = "h200",
    options: SolveOptions | Mapping[str, Any] | None = None,
    name: str | None = None,
) -> pd.DataFrame:
    """The time of a training step against its peak memory: a row for each of several choices of what is saved.

    Args:
        points: How many choices, from the cheapest one to that of the least peak; torch's comes first.
        model, args, kwargs, device, options, name: As for ``optimize``.

    Returns:
        DataFrame: Columns ``choice``, ``saved_bytes`` (kept for the backward graph), ``saved`` (which values: each has
            a ``name``, a ``module`` and ``bytes``), ``peak_memory_bytes`` (of the whole step), ``objective`` and
            ``bound`` (picoseconds under the model; no step with this peak takes fewer), ``gap``.

    Raises:
        CaptureError: As ``optimize``; also if the model checkpoints regions, which leave no choice.
    """
    import pandas as pd

    name = type(model).__name__.lower() if name is None else name
    from optfuse.schedule.saving import SavingSearch

    search = SavingSearch(device, SolveOptions.of(options))
    rows: list[dict[str, Any]] = []

    def sweep_step(step: JointStep) -> None:
        rows.extend(
            {
                "choice": proposal.name,
                "saved_bytes": proposal.saved_bytes,
                "saved": proposal.saved,
                "peak_memory_bytes": proposal.peak_bytes,
                "objective": proposal.objective,
                "bound": bound,
                "gap": relative_gap(proposal.objective, bound),
            }
            for proposal, bound in search.sweep(step, points)
        )

    capture_step(model, args, dict(kwargs or {}), name=name, choose=sweep_step)
    if not rows:
        raise CaptureError(f"{name}: its checkpointed regions say what is saved; capture it without them")
    return pd.DataFrame(rows)


def schedule_graph(
    captured: Captured,
    problem: Extraction,
    options: SolveOptions,
    model: torch.nn.Module | None = None,
    measure: int = 0,
    cache: Cache | None = None,
    solved: Solved | None = None,
) -> Schedule:
    """The solver and the stages after it, for one graph.

    ``cache``: where solutions are kept; ``solved``: results that are known already. None: it is solved.
    """
    made = solve_prepared(Prepared(problem, interface_of(captured, model)), options, cache, solved)
    return Schedule.of(rank(made, options, measure) if measure else made)


def fusion_problems(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    device: str = "h200",
    name: str | None = None,
) -> tuple[Instance, ...]:
    """The fusion problems of a model, unsolved: one for inference, two (forward, backward) for a training step.

    Parameters and errors are those of ``optimize``.
    """
    load_device(device)
    name = type(model).__name__.lower() if name is None else name
    if train:
        captures = capture_training(model, args, dict(kwargs or {}), name=name)
    else:
        captures = (capture(model, args, dict(kwargs or {}), name=name),)
    return tuple(fusion_problem(captured, device).instance for captured in captures)


def load(path: str | Path, *, operators: Collection[str] = ()) -> Schedule:
    """Read a plan, check its solution, and emit its module again. Nothing of the folder is run, imported or unpickled.

    Args:
        path: The folder. A link in it that leads elsewhere is refused.
        operators: Namespaces of custom operators that the plan may call, such as "torchvision", whose library you trust
            and have imported. Without, those of torch and optfuse are called alone, and of these none that takes a
            file's name.

    Raises:
        PlanError: If a file is missing or malformed, the solution does not answer the graph's own fusion problem, or
            the graph calls an operator that it may not.
        UnknownClassError: If arguments or results have a class whose library is not imported.
    """
    return Schedule.of(load_plan(path, operators=operators))


def pareto(
    problem: Instance | Schedule, *, points: int = 8, options: SolveOptions | Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """The cheapest schedule within each of a row of caps on peak memory, a row a cap, the highest first.

    Args:
        problem: A fusion problem, or the schedule of a graph whose problem it is.
        points: How many caps, from the peak of the cheapest schedule down to what no schedule can be below.
        options: As for ``optimize``; the time limit holds for each point.

    Returns:
        DataFrame: Columns ``cap_bytes``, ``status`` (OPTIMAL, FEASIBLE, INFEASIBLE: proven that none is within the cap,
            UNKNOWN: none found), ``peak_memory_bytes``, ``objective`` and ``bound`` (picoseconds under the model),
            ``gap``, ``kernels``, ``copied_ops`` (ops computed again) and ``floor_bytes`` (no schedule has a lower
            peak).
    """
    import pandas as pd

    instance = problem.instance if isinstance(problem, ScheduledGraph) else problem
    return pd.DataFrame(pareto_rows(sweep(instance, SolveOptions.of(options), points)))
