"""The stages in order, one line each. Read this file first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from optfuse.codegen.libraries import takes_out
from optfuse.emit import emit
from optfuse.extract.build import Extraction, extract
from optfuse.extract.decisions import of_graph, standing
from optfuse.extract.device import load_device
from optfuse.extract.passes import PASSES, UNSPLIT, rewrite
from optfuse.extract.variants import reduction_variants
from optfuse.frontend.captured import Captured
from optfuse.frontend.inference import capture
from optfuse.frontend.training import capture_step, capture_training
from optfuse.interface import donated_inputs, interface_of
from optfuse.ir.nodes import LibraryCall, LoopGraph
from optfuse.ir.verify import verify
from optfuse.lower import lower
from optfuse.prepared import Prepared
from optfuse.problem.instance import Device, Instance
from optfuse.problem.rules import Rule, matching
from optfuse.schedule import Schedule, TrainingSchedule
from optfuse.solve.conflict import under_rules
from optfuse.solve.options import SolveOptions
from optfuse.solve.solve import solve
from optfuse.tuning.rank import rank, require_measurable

Variants = Literal["rule", "all"]


def optimize(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    device: str = "h200",
    options: SolveOptions | None = None,
    rules: Sequence[Rule] = (),
    name: str | None = None,
    measure: int = 0,
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
    rules
        What must and must not share a kernel (``optfuse.rules``), beside those of ``options``. Of a training step's two
        graphs, a rule holds for those in which it matches.
    name
        What to call the graphs; the class name in lower case by default.
    measure
        Run so many of the best distinct plans of each graph on the GPU, and take the fastest one: its ``ranking`` has
        them all, with predicted and measured times. 0: the model decides alone.

    Raises
    ------
    CaptureError
        If the model cannot be traced to one graph: the message names the line.
    InvalidOptionError
        If an option or the device is unknown.
    RuleError, RuleConflictError
        If a rule matches no op of any graph, or no schedule obeys the rules.
    """
    options = SolveOptions() if options is None else options
    options = replace(options, rules=(*options.rules, *rules))
    load_device(device)
    require_measurable(measure)
    name = type(model).__name__.lower() if name is None else name
    if not train:
        captured = capture(model, args, dict(kwargs or {}), name=name)
        return schedule(captured, fusion_problem(captured, device), options, model, measure)
    both = capture_step(model, args, dict(kwargs or {}), name=name)
    graphs = (both.forward, both.backward)
    problems = [fusion_problem(captured, device) for captured in graphs]
    holding = matching([problem.instance for problem in problems], options.rules)
    forward, backward = (
        schedule(captured, problem, replace(options, rules=own), model, measure)
        for captured, problem, own in zip(graphs, problems, holding, strict=True)
    )
    return TrainingSchedule(forward, backward, model, args, dict(kwargs or {}), both)


def fusion_problem(captured: Captured, device: str, variants: Variants = "rule") -> Extraction:
    """The stages before the solver, for one graph; ``variants`` as for ``fusion_problems``."""
    target = load_device(device)
    made = rewrite(lowered(captured), target, PASSES if variants == "rule" else UNSPLIT)
    alternatives = None if variants == "rule" else reduction_variants(made.graph, target)
    graph = made.graph if alternatives is None else alternatives.graph
    donated = donated_inputs(captured, graph.inputs)
    problem = extract(graph, target, donated=donated, allocates=allocates, alternatives=alternatives)
    return replace(problem, decided=(*made.decided, *of_graph(graph)))


def allocates(call: LibraryCall) -> bool:
    """Whether a library call allocates its results itself."""
    return not takes_out(call)


def schedule(
    captured: Captured, problem: Extraction, options: SolveOptions, model: Any = None, measure: int = 0
) -> Schedule:
    """The solver and the stages after it, for one graph."""
    made = solve_prepared(Prepared(problem, interface_of(captured, model)), options)
    return rank(made, options, measure) if measure else made


def solve_prepared(prepared: Prepared, options: SolveOptions) -> Schedule:
    """The solver and the stages after it, for a graph that may come from a folder."""
    problem = prepared.extraction
    extraction = replace(problem, instance=under_rules(problem.instance, options.rules))  # the user's rules
    capped = options.peak_memory is not None or extraction.instance.rules.peak_memory is not None
    extraction = replace(extraction, decided=standing(extraction.decided, capped=capped))
    result = solve(extraction.instance, replace(options, rules=()))  # fusion problem to proven solution, checked
    source = emit(extraction, result)  # solution to Triton and host source
    return Schedule(extraction, result, source, prepared.interface)


def fusion_problems(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    device: str = "h200",
    name: str | None = None,
    variants: Variants = "rule",
) -> tuple[Instance, ...]:
    """The fusion problems of a model, unsolved: one for inference, two (forward, backward) for a training step.

    Parameters and errors are those of ``optimize``, but for one: ``variants`` says what of a reduction is left to the
    solver. "rule": nothing, long ones with few results are split before. "all": whether each of them is split.
    """
    load_device(device)
    name = type(model).__name__.lower() if name is None else name
    if train:
        captures = capture_training(model, args, dict(kwargs or {}), name=name)
    else:
        captures = (capture(model, args, dict(kwargs or {}), name=name),)
    return tuple(fusion_problem(captured, device, variants).instance for captured in captures)


def loop_graph(captured: Captured, device: Device) -> LoopGraph:
    """The graph that is scheduled: lowered, and rewritten by ``extract.passes.PASSES``."""
    return rewrite(lowered(captured), device).graph


def lowered(captured: Captured) -> LoopGraph:
    """The loop graph, one op for each of the capture's; verified."""
    graph = lower(
        captured.graph,
        name=captured.name,
        mutations=captured.mutations,
        constants=captured.constants,
        strides=captured.strides,
    )
    verify(graph)
    return graph
