"""The torch.compile backend "optfuse": ``torch.compile(model, backend="optfuse", options={"time_limit": 10})``."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.api import Schedule, schedule_graph
from optfuse.compiler.frontend.aot import as_traced, make_backend
from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.joint import Choice, JointStep
from optfuse.compiler.frontend.torch_bridge import tree_leaves
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import (
    CaptureError,
    InfeasibleError,
    InvalidOptionError,
    OutputError,
    RankOrderError,
    RuleConflictError,
    RuleError,
)
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Instance
from optfuse.problem.rules import meaning, rules_from_plain
from optfuse.rules import load_rules
from optfuse.runtime import environment
from optfuse.runtime.graphs import checked_choice, choice_under, interest_of, runner
from optfuse.runtime.pace import Pace
from optfuse.runtime.program import Arena, Program
from optfuse.schedule.saving import SavingSearch, saving_search
from optfuse.schedule.solve_once import solution_cache
from optfuse.solver.control.options import SolveOptions
from optfuse.torch_compile.artifacts import show_left, show_scheduled
from optfuse.torch_compile.compiled import remember_left, remember_scheduled
from optfuse.torch_compile.ranged import RangedRun, places_of, require_same
from optfuse.torch_compile.rank_agreement import require_one_order
from optfuse.tuning.rank import require_measurable

logger = logging.getLogger("optfuse")

DEVICE = "h200"
#: Options that are not the solver's.
_OWN = ("device", "cudagraphs", "tune", "measure", "cache", "strict", "saving", "ranges")
#: Errors that the caller mends: they are raised. Any other one is a defect of ours, and its graph runs as traced.
_CALLERS = (InvalidOptionError, RuleError, RuleConflictError, InfeasibleError, OutputError, RankOrderError)


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
        if isinstance(error, _CALLERS) or type(error).__module__.startswith("torch"):
            raise error
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
        remember_left(name, reason)
        show_left(name, reason)
        logger.warning("%s is not scheduled and runs as it was traced: %s", name, reason)


def backend(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch.compile's, for inference or training.

    Parameters
    ----------
    graph, example_inputs
        As torch.compile hands them over.
    options
        Fields of ``SolveOptions``; ``device``: a shipped device's name or a device file ("h200" by default);
        ``cudagraphs``: True, False or "auto" (the default), see ``runtime.graphs``; ``tune``: whether tiles are
        searched on the GPU, as by ``Schedule.tune`` (False by default); ``measure``, as for ``optfuse.optimize``;
        ``saving``: what decides what a training step saves, as for ``optfuse.optimize``;
        ``cache``: whether solutions are kept between processes (True by default), see ``schedule.solve_once``; and
        ``strict``: whether a defect of optfuse is raised (False by default, True under ``OPTFUSE_STRICT=1``). Else the
        graph that met it runs as it was traced, which is said, with the traceback, and counted.
        ``rules`` may be rules, a table as in a TOML file, or the path of one. A rule that matches no op of a graph is
        logged and kept in the record: torch.compile may still bring the graph that it is meant for.
    mode
        torch.compile's own, with its usual meaning: see ``options_of_mode``.

    Returns
    -------
    The compiled function. Its attribute ``record`` tells what was compiled: schedules, library operators, and graphs
    that could not be scheduled.

    Raises
    ------
    InvalidOptionError
        An unknown option or device, or a value out of range.
    """
    options = {**options_of_mode(mode), **(options or {})}
    device, solve_options = parse_options(options)
    cudagraphs = choice_under(solve_options.peak_bytes, checked_choice(options.get("cudagraphs", "auto")))
    tune, measure = options.get("tune", False), options.get("measure", 0)
    require_measurable(measure)
    strict = options.get("strict", os.environ.get("OPTFUSE_STRICT") == "1")
    cache = solution_cache() if options.get("cache", True) else None
    saving = options.get("saving", "auto")
    searches: dict[str, SavingSearch] = {}
    record = Record()
    arena, pace = Arena(), Pace()

    def choose(step: JointStep) -> Choice | None:
        search = saving_search(saving, device, solve_options)
        if search is None:
            return None
        searches[step.name] = search
        return search(step)

    def compile_graph(captured: Captured) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
        if environment.mode() == "compile" and is_on_host(captured):
            record.leave(captured.name, "its tensors are on the CPU, and kernels are compiled for the GPU here")
            return as_traced(captured)
        try:
            problem = fusion_problem(captured, device)
            chosen = _with_matching_rules(problem.instance, _options_of(captured, solve_options, searches), record)
            made = schedule_graph(captured, problem, chosen, measure=measure, cache=cache)
        except CaptureError as error:
            record.leave(captured.name, str(error))
            return as_traced(captured)
        require_one_order(made.graph, made.solution)
        made = made.tune() if tune else made
        record.schedules.append(made)
        remember_scheduled(made)
        show_scheduled(captured, made)
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
        program = Program(made.source, captured.constants)
        return runner(program, cudagraphs, interest_of(captured), arena, pace, made.objective / 1e6)

    def compile_range() -> Callable[[Captured], Callable[[list[torch.Tensor]], Sequence[Any]]]:
        """A compiler of one graph for a range of sizes, called again at other sizes: the text must be the same."""
        first = record.begin_range()

        def compile_one(captured: Captured) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
            if environment.mode() == "compile" and is_on_host(captured):
                raise CaptureError("its tensors are on the CPU")
            problem = fusion_problem(captured, device)
            if captured.name in first:
                made = first[captured.name]
                require_same(problem, made, places_of(made))
                return as_traced(captured)
            chosen = _with_matching_rules(problem.instance, solve_options, record)
            made = first[captured.name] = schedule_graph(captured, problem, chosen, cache=cache)
            require_one_order(made.graph, made.solution)
            record.schedules.append(made)
            remember_scheduled(made)
            show_scheduled(captured, made)

            def run_of(source: str) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
                program = Program(source, captured.constants)
                return runner(program, cudagraphs, interest_of(captured), arena, pace, made.objective / 1e6)

            return RangedRun(made.source, places_of(made), run_of)

        return compile_one

    survive = None if strict else record.survive
    if any(isinstance(value, torch.Tensor) and value.is_nested for value in example_inputs):
        record.leave("compiled0", "a nested tensor's sizes have no numbers to plan with")
        compiled = graph
    else:
        chooser = None if saving_search(saving, device, solve_options) is None else choose
        made_backend = make_backend(
            compile_graph,
            leave=record.leave,
            survive=survive,
            choose=chooser,
            compile_range=compile_range if options.get("ranges", True) else None,
            leave_range=record.leave_range,
        )
        compiled = made_backend(graph, example_inputs)

    def run(*inputs: Any) -> Any:
        return compiled(*inputs)

    run.record = record  # type: ignore[attr-defined]
    return run


def is_on_host(captured: Captured) -> bool:
    """Whether all that a graph computes and is given lies in the host's memory."""
    values = tree_leaves([node.meta.get("val") for node in captured.graph.graph.nodes])
    return all(value.device.type == "cpu" for value in values if isinstance(value, torch.Tensor))


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


def options_of_mode(mode: str | None) -> dict[str, Any]:
    """The options that a mode of torch.compile stands for.

    "default": none. "reduce-overhead": CUDA graphs whose results are valid until the next call. "max-autotune": those,
    and tiles that are searched where there is a GPU; "max-autotune-no-cudagraphs": the search alone.

    Raises
    ------
    InvalidOptionError
        If there is no such mode.
    """
    search = {"tune": torch.cuda.is_available()}
    modes: dict[str, dict[str, Any]] = {
        "default": {},
        "reduce-overhead": {"cudagraphs": True},
        "max-autotune": {"cudagraphs": True, **search},
        "max-autotune-no-cudagraphs": {"cudagraphs": False, **search},
    }
    if mode is not None and mode not in modes:
        raise InvalidOptionError(f"mode must be one of {', '.join(modes)}, not {mode!r}")
    return modes[mode or "default"]


def parse_options(options: Mapping[str, Any]) -> tuple[str, SolveOptions]:
    """The device and the solver's options.

    Raises
    ------
    InvalidOptionError
        An unknown key, with the nearest known one; an unknown device; a value out of range.
    """
    known = [*_OWN, *(item.name for item in fields(SolveOptions))]
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise InvalidOptionError(f"unknown option {key!r}; did you mean {near!r}? (known: {', '.join(known)})")
    for key in ("tune", "cache", "strict", "ranges"):
        if not isinstance(options.get(key, False), bool):
            raise InvalidOptionError(f"{key} must be True or False, not {options[key]!r}")
    device = str(options.get("device", DEVICE))
    load_device(device)
    values = {key: value for key, value in options.items() if key not in _OWN}
    if isinstance(values.get("rules"), (str, Path)):
        values["rules"] = load_rules(values["rules"])
    elif isinstance(values.get("rules"), Mapping):
        values["rules"] = rules_from_plain(values["rules"])
    return device, SolveOptions.from_mapping(values)
