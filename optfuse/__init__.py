"""optfuse: optimal kernel fusion for PyTorch, proven by a constraint solver and emitted as Triton."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optfuse import errors, rules
from optfuse.version import __version__

if TYPE_CHECKING:
    from optfuse.api import Schedule, TrainingSchedule, fusion_problems, load, optimize, pareto, saving_front
    from optfuse.batch.read import read_run
    from optfuse.compiler.ir.printer import print_nest
    from optfuse.problem.checker import check
    from optfuse.problem.cost import kernel_price
    from optfuse.problem.serialize import load_instance, load_solution, save_instance
    from optfuse.report.plot import plot
    from optfuse.report.table import differences, kernel_rows
    from optfuse.runtime.check.check import check_replays, check_steps
    from optfuse.solver.baseline.greedy import greedy_partition
    from optfuse.solver.control.options import SolveOptions
    from optfuse.solver.solve import solve
    from optfuse.torch_compile.compiled import compiled_graphs

__all__ = [
    "Schedule",
    "SolveOptions",
    "TrainingSchedule",
    "__version__",
    "check",
    "check_replays",
    "check_steps",
    "compiled_graphs",
    "differences",
    "errors",
    "fusion_problems",
    "greedy_partition",
    "kernel_price",
    "kernel_rows",
    "load",
    "load_instance",
    "load_solution",
    "optimize",
    "pareto",
    "plot",
    "print_nest",
    "read_run",
    "rules",
    "save_instance",
    "saving_front",
    "solve",
]

#: Public names and the modules that hold them: torch is imported only when something needs it.
_HOMES = {
    "Schedule": "optfuse.api",
    "SolveOptions": "optfuse.solver.control.options",
    "TrainingSchedule": "optfuse.api",
    "check": "optfuse.problem.checker",
    "check_replays": "optfuse.runtime.check.check",
    "check_steps": "optfuse.runtime.check.check",
    "compiled_graphs": "optfuse.torch_compile.compiled",
    "differences": "optfuse.report.table",
    "fusion_problems": "optfuse.api",
    "greedy_partition": "optfuse.solver.baseline.greedy",
    "kernel_price": "optfuse.problem.cost",
    "kernel_rows": "optfuse.report.table",
    "load": "optfuse.api",
    "load_instance": "optfuse.problem.serialize",
    "load_solution": "optfuse.problem.serialize",
    "optimize": "optfuse.api",
    "pareto": "optfuse.api",
    "plot": "optfuse.report.plot",
    "print_nest": "optfuse.compiler.ir.printer",
    "read_run": "optfuse.batch.read",
    "save_instance": "optfuse.problem.serialize",
    "saving_front": "optfuse.api",
    "solve": "optfuse.solver.solve",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'optfuse' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
