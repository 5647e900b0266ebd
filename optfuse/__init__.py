"""optfuse: optimal kernel fusion for PyTorch, proven by a constraint solver and emitted as Triton."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optfuse import errors, rules
from optfuse.version import __version__

if TYPE_CHECKING:
    from optfuse.api import Schedule, TrainingSchedule, fusion_problems, load, optimize, pareto
    from optfuse.batch.read import read_run
    from optfuse.lab.packing.pack import pack
    from optfuse.runtime.check.check import check_replays, check_steps
    from optfuse.solver.control.options import SolveOptions
    from optfuse.torch_compile.compiled import compiled_graphs

__all__ = [
    "Schedule",
    "SolveOptions",
    "TrainingSchedule",
    "__version__",
    "check_replays",
    "check_steps",
    "compiled_graphs",
    "errors",
    "fusion_problems",
    "load",
    "optimize",
    "pack",
    "pareto",
    "read_run",
    "rules",
]

#: Public names and the modules that hold them: torch is imported only when something needs it.
_HOMES = {
    "Schedule": "optfuse.api",
    "SolveOptions": "optfuse.solver.control.options",
    "TrainingSchedule": "optfuse.api",
    "check_replays": "optfuse.runtime.check.check",
    "check_steps": "optfuse.runtime.check.check",
    "compiled_graphs": "optfuse.torch_compile.compiled",
    "fusion_problems": "optfuse.api",
    "load": "optfuse.api",
    "optimize": "optfuse.api",
    "pack": "optfuse.lab.packing.pack",
    "pareto": "optfuse.api",
    "read_run": "optfuse.batch.read",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'optfuse' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
