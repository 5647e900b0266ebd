"""The pure combinatorial problem: instances, solutions, cost, legality, the checker, and their files. Stdlib only."""

from optfuse.problem.checker import check
from optfuse.problem.checker_case import Violation
from optfuse.problem.cost import Price, default_writes, kernel_cost, kernel_price
from optfuse.problem.instance import (
    ALONE,
    FORMAT_VERSION,
    Buffer,
    Device,
    Edge,
    Instance,
    Limits,
    Offer,
    Op,
    Read,
    Rules,
    Scheme,
    Variant,
    Work,
    Write,
)
from optfuse.problem.legality import is_legal, why_illegal
from optfuse.problem.serialize import (
    digest,
    instance_from_json,
    instance_to_json,
    load_instance,
    load_solution,
    save_instance,
    save_solution,
    solution_from_json,
    solution_to_json,
)
from optfuse.problem.solution import Kernel, Placement, Solution
from optfuse.problem.validate import validate

__all__ = [
    "ALONE",
    "FORMAT_VERSION",
    "Buffer",
    "Device",
    "Edge",
    "Instance",
    "Kernel",
    "Limits",
    "Offer",
    "Op",
    "Placement",
    "Price",
    "Read",
    "Rules",
    "Scheme",
    "Solution",
    "Variant",
    "Violation",
    "Work",
    "Write",
    "check",
    "default_writes",
    "digest",
    "instance_from_json",
    "instance_to_json",
    "is_legal",
    "kernel_cost",
    "kernel_price",
    "load_instance",
    "load_solution",
    "save_instance",
    "save_solution",
    "solution_from_json",
    "solution_to_json",
    "validate",
    "why_illegal",
]
