"""optfuse: optimal kernel fusion for PyTorch, proven by a constraint solver and emitted as Triton."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optfuse import errors, rules

if TYPE_CHECKING:
    from optfuse.batch.read import read_run
    from optfuse.checking import check_replays, check_steps
    from optfuse.lab.packing.pack import pack
    from optfuse.pipeline import optimize
    from optfuse.plan import load
    from optfuse.runtime.compiled import compiled_graphs
    from optfuse.schedule import Schedule, TrainingSchedule
    from optfuse.solve.options import SolveOptions
    from optfuse.sweeping import pareto

__version__ = "0.1.0"
__all__ = [
    "Schedule",
    "SolveOptions",
    "TrainingSchedule",
    "check_replays",
    "check_steps",
    "compiled_graphs",
    "errors",
    "load",
    "optimize",
    "pack",
    "pareto",
    "read_run",
    "rules",
]

#: Public names and the modules that hold them: torch is imported only when something needs it.
_HOMES = {
    "Schedule": "optfuse.schedule",
    "SolveOptions": "optfuse.solve.options",
    "TrainingSchedule": "optfuse.schedule",
    "check_replays": "optfuse.checking",
    "check_steps": "optfuse.checking",
    "compiled_graphs": "optfuse.runtime.compiled",
    "load": "optfuse.plan",
    "optimize": "optfuse.pipeline",
    "pack": "optfuse.lab.packing.pack",
    "read_run": "optfuse.batch.read",
    "pareto": "optfuse.sweeping",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'optfuse' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
