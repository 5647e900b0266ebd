"""Run the checker on a solver's answer; a refused answer is replaced by the unfused schedule, and reported."""

from __future__ import annotations

from optfuse.errors import DefectError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.rules.seeds import cheapest_schemes, seed_groups

#: Violations that a message shows.
SHOWN = 3


def unfused(instance: Instance) -> Solution:
    """The unfused schedule: a kernel an op, or a group that the rules fuse, each in its cheapest scheme."""
    return assemble(instance, cheapest_schemes(instance, seed_groups(instance)), hurried=True)


def why_refused(instance: Instance, solution: Solution, *, ignore_cap: bool = False) -> str:
    """The first violations that the checker finds in a solution, in words; "" when it finds none."""
    violations = [v for v in check(instance, solution) if not (ignore_cap and v.code == "peak_cap")]
    shown = "; ".join(f"{violation.code}: {violation.message}" for violation in violations[:SHOWN])
    return f"{shown} ({len(violations)} in all)" if len(violations) > SHOWN else shown


def checked_or_unfused(
    instance: Instance, solution: Solution, solver: str, *, ignore_cap: bool = False
) -> tuple[Solution, str]:
    """The solution and "", or the unfused schedule and the reason if the checker refuses the solution.

    Raises:
        DefectError: When the unfused schedule is refused too.
    """
    why = why_refused(instance, solution, ignore_cap=ignore_cap)
    if not why:
        return solution, ""
    plain = unfused(instance)
    still = why_refused(instance, plain, ignore_cap=ignore_cap)
    if still:
        raise DefectError(
            f"instance {instance.name!r}: the {solver} solver's answer breaks the format ({why}), and so does a kernel "
            f"an op ({still}); this is a defect of optfuse, please report it with the instance"
        )
    return plain, (
        f"checker: the {solver} solver's answer was refused ({why}); a kernel an op is returned instead; "
        "this is a defect of optfuse, please report it with the instance"
    )
