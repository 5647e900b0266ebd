"""The torch.compile backend "optfuse": ``torch.compile(model, backend="optfuse", options={"time_limit": 10})``."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch._inductor import list_options
from torch.fx import GraphModule

from optfuse.compiler.frontend.aot_autograd.kept_code import torch_keeps
from optfuse.compiler.frontend.calls.random_numbers import drawn_numbers, with_random_numbers
from optfuse.compiler.frontend.dynamo_backend import make_backend
from optfuse.compiler.frontend.sizes.buckets import checked_buckets
from optfuse.compiler.frontend.torch_internals.function_modes import outside_function_modes
from optfuse.errors import InvalidOptionError
from optfuse.problem.device_files import load_device
from optfuse.problem.rules import rules_from_plain
from optfuse.rules import load_rules
from optfuse.runtime.environment import device_here
from optfuse.runtime.graph_choice import checked_choice, choice_under
from optfuse.schedule.solve_once import solution_cache
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.sizes.size_regions import SizeRegions
from optfuse.torch_compile.compilation import Asked, Compilation, Record
from optfuse.tuning.rank import require_measurable

logger = logging.getLogger("optfuse")

#: Options that are not the solver's.
_OWN = (
    *("device", "cudagraphs", "tune", "measure", "cache", "strict", "saving", "ranges", "regions", "buckets"),
    "checkpoint_price",
)

#: How often a compiled graph is expected to run, unless the caller says so.
EXPECTED_CALLS = 200_000
#: Ours for some of Inductor's options, by a part of their names.
_INDUCTORS = {"cudagraphs": '{"cudagraphs": True}', "max_autotune": '{"tune": True}'}


def backend(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch.compile's, for inference or training.

    Args:
        graph, example_inputs: As torch.compile hands them over.
        options: Fields of ``SolveOptions``, ``calls`` being 200,000 by default; ``device``: a shipped device's name or
            a device file (by default the shipped one that this process's GPU is; "h200" for others and without a GPU);
            ``cudagraphs``: True, False or "auto" (the default), see ``runtime.graphs``; ``tune``: whether tiles are
            searched on the GPU, as by ``Schedule.tune`` (False by default); ``measure``, as for ``optfuse.optimize``;
            ``saving``: what decides what a training step saves, as for ``optfuse.optimize``; ``regions``: those of a
            schedule of ``optfuse.optimize(..., dynamic=...)`` whose one size changes, by which each call's size has the
            plan of its region (else a range's plan is that of the first size); ``buckets``: sizes that
            changing ones are filled up to, such as ``{0: (8, 16, 32)}`` for a batch of rows that do not depend on each
            other, see ``frontend.sizes.buckets``; ``checkpoint_price``: whether regions that the model hands to
            ``torch.utils.checkpoint`` are priced (False by default: it takes as long as scheduling the step twice),
            which is logged and kept in ``compiled_graphs()``; ``cache``: whether solutions and compiled graphs are
            kept between processes (True by default), see ``schedule.solve_once`` and
            ``frontend.aot_autograd.kept_code``; and ``strict``: whether a defect of optfuse is raised (False by
            default, True under ``OPTFUSE_STRICT=1``).
            Else the graph that met it runs as it was traced, which is said, with the traceback, and counted. ``rules``
            may be rules, a table as in a TOML file, or the path of one. A rule that matches no op of a graph is logged
            and kept in the record: torch.compile may still bring the graph that it is meant for.
        mode: torch.compile's own, with its usual meaning: see ``options_of_mode``.

    Returns:
        The compiled function. Its attribute ``record`` tells what was compiled: schedules, library operators, and
        graphs that could not be scheduled.

    Raises:
        InvalidOptionError: An unknown option or device, or a value out of range.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidOptionError(f'options must be a dictionary such as {{"time_limit": 10}}, not {options!r}')
    options = {**options_of_mode(mode), **(options or {})}
    work = Compilation(_asked(options), Record())
    run = outside_function_modes(_compiled(graph, example_inputs, work, options))
    run.record = work.record  # type: ignore[attr-defined]
    return run


def _compiled(
    graph: GraphModule, example_inputs: Sequence[Any], work: Compilation, options: Mapping[str, Any]
) -> Callable[..., Any]:
    """The graph compiled as ``options`` say, or itself where it cannot be planned."""
    asked, record = work.asked, work.record
    strict = options.get("strict", os.environ.get("OPTFUSE_STRICT") == "1")
    made_backend = make_backend(
        work.compile_graph,
        leave=record.leave,
        survive=None if strict else record.survive,
        choose=work.choose if asked.searches_saving or asked.checkpoint_price else None,
        compile_range=work.compile_range if options.get("ranges", True) else None,
        leave_range=record.leave_range,
        buckets=checked_buckets(options.get("buckets")),
        plan_size=_plan_size(options.get("regions")),
        keep=work.keep if asked.cache is not None and torch_keeps() and not drawn_numbers(graph) else None,
    )
    return with_random_numbers(graph, made_backend(graph, example_inputs))


def _plan_size(regions: object) -> Callable[[int], int] | None:
    """The option ``regions``: given a size, the size at which the plan of its region was solved."""
    if regions is None:
        return None
    if isinstance(regions, SizeRegions):
        return regions.solved_at
    raise InvalidOptionError(
        f"regions must be those of optfuse.optimize(..., dynamic=...) with one size that changes, not {regions!r:.80}"
    )


def _asked(options: Mapping[str, Any]) -> Asked:
    """What ``options`` ask for, checked."""
    device, solve_options = parse_options({"calls": EXPECTED_CALLS, **options})
    cudagraphs = choice_under(solve_options.peak_bytes, checked_choice(options.get("cudagraphs", "auto")))
    measure = options.get("measure", 0)
    require_measurable(measure)
    return Asked(
        device,
        solve_options,
        cudagraphs,
        tune=options.get("tune", False),
        measure=measure,
        saving=options.get("saving", "auto"),
        cache=solution_cache() if options.get("cache", True) else None,
        checkpoint_price=options.get("checkpoint_price", False),
    )


def options_of_mode(mode: str | None) -> dict[str, Any]:
    """The options that a mode of torch.compile stands for.

    "default": none. "reduce-overhead": CUDA graphs whose results are valid until the next call. "max-autotune": those,
    and tiles that are searched where there is a GPU; "max-autotune-no-cudagraphs": the search alone.

    Raises:
        InvalidOptionError: If there is no such mode.
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

    Raises:
        InvalidOptionError: An unknown key, with the nearest known one; an unknown device; a value out of range.
    """
    known = [*_OWN, *(item.name for item in fields(SolveOptions))]
    for key in options:
        if key not in known:
            raise InvalidOptionError(f"unknown option {key!r}{_instead(str(key), known)} (known: {', '.join(known)})")
    for key in ("tune", "cache", "strict", "ranges", "checkpoint_price"):
        if not isinstance(options.get(key, False), bool):
            raise InvalidOptionError(f"{key} must be True or False, not {options[key]!r}")
    device = options.get("device") or device_here()
    if not isinstance(device, str | Path):
        raise InvalidOptionError(f"device must be a device's name or the path of a device file, not {device!r}")
    device = str(device)
    load_device(device)
    values = {key: value for key, value in options.items() if key not in _OWN}
    if isinstance(values.get("rules"), (str, Path)):
        values["rules"] = load_rules(values["rules"])
    elif isinstance(values.get("rules"), Mapping):
        values["rules"] = rules_from_plain(values["rules"])
    return device, SolveOptions.from_mapping(values)


def _instead(key: str, known: Sequence[str]) -> str:
    """What to write in place of an unknown option, in words that follow its name."""
    if key in list_options():
        ours = next((ours for part, ours in _INDUCTORS.items() if part in key), None)
        return ", which is Inductor's; " + (f"write {ours}" if ours else "leave it out")
    near = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
