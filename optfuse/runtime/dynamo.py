"""The torch.compile backend "optfuse": ``torch.compile(model, backend="optfuse", options={"time_limit": 10})``."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.errors import CaptureError, InvalidOptionError
from optfuse.extract.device import load_device
from optfuse.frontend.aot import make_backend
from optfuse.frontend.captured import Captured
from optfuse.pipeline import schedule
from optfuse.runtime.graphs import checked_choice, interest_of, runner
from optfuse.runtime.program import Arena, Program
from optfuse.schedule import Schedule
from optfuse.solve.options import SolveOptions

logger = logging.getLogger("optfuse")

DEVICE = "h200"


@dataclass(slots=True)
class Record:
    """What one call of the backend has compiled so far: the inference graph, or forward and later backward.

    ``unplanned`` has (graph, reason) for graphs that carry what cannot be scheduled: they run as they were traced.
    """

    schedules: list[Schedule] = field(default_factory=list)
    unplanned: list[tuple[str, str]] = field(default_factory=list)

    @property
    def library_ops(self) -> tuple[str, ...]:
        """ATen operators that are called as they are, in any of the graphs."""
        return tuple(sorted({op for schedule in self.schedules for op in schedule.library_ops}))


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
        Fields of ``SolveOptions``; ``device``: a shipped device's name or a device file ("h200" by default); and
        ``cudagraphs``: True, False or "auto" (the default), see ``runtime.graphs``.
    mode
        torch.compile's own; only its default has a meaning here.

    Returns
    -------
    The compiled function. Its attribute ``record`` tells what was compiled: schedules, library operators, and graphs
    that could not be scheduled.

    Raises
    ------
    InvalidOptionError
        An unknown option or device, or a value out of range.
    """
    if mode not in (None, "default"):
        raise InvalidOptionError(f"mode {mode!r} is Inductor's; the backend optfuse takes options={{...}} instead")
    device, solve_options = parse_options(options or {})
    cudagraphs = checked_choice((options or {}).get("cudagraphs", "auto"))
    record = Record()
    arena = Arena()

    def compile_graph(captured: Captured) -> Callable[[Sequence[torch.Tensor]], Sequence[Any]]:
        try:
            made = schedule(captured, device, solve_options)
        except CaptureError as error:
            record.unplanned.append((captured.name, str(error)))
            logger.warning("%s is not scheduled and runs as it was traced: %s", captured.name, error)
            return lambda inputs: captured.graph(*inputs)
        record.schedules.append(made)
        logger.info(
            "%s: %s, gap %.1f%%, %d library operators: %s",
            made.name,
            made.status,
            100 * made.gap,
            len(made.library_ops),
            ", ".join(made.library_ops) or "none",
        )
        return runner(Program(made.source, captured.constants), cudagraphs, interest_of(captured), arena)

    compiled = make_backend(compile_graph)(graph, example_inputs)

    def run(*inputs: Any) -> Any:
        return compiled(*inputs)

    run.record = record  # type: ignore[attr-defined]
    return run


def parse_options(options: Mapping[str, Any]) -> tuple[str, SolveOptions]:
    """The device and the solver's options.

    Raises
    ------
    InvalidOptionError
        An unknown key, with the nearest known one; an unknown device; a value out of range.
    """
    known = ["device", "cudagraphs", *(item.name for item in fields(SolveOptions))]
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise InvalidOptionError(f"unknown option {key!r}; did you mean {near!r}? (known: {', '.join(known)})")
    device = str(options.get("device", DEVICE))
    load_device(device)
    ours = ("device", "cudagraphs")
    return device, SolveOptions.from_mapping({key: value for key, value in options.items() if key not in ours})
