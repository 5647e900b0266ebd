"""``optfuse check``: judge a solution by the checker, which shares no code with the solvers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from optfuse.problem.checker import check
from optfuse.problem.serialize import load_instance, load_solution

#: At most so many violations are printed; the rest is counted.
SHOWN = 20


def command(
    instance: Annotated[Path, typer.Argument(metavar="INSTANCE.json", help="The fusion problem.")],
    solution: Annotated[Path, typer.Argument(metavar="SOLUTION.json", help="The answer to judge.")],
) -> None:
    """Check a solution: legality of each kernel, order, memory plan, and the objective it claims."""
    problem = load_instance(instance)
    answer = load_solution(solution)
    violations = check(problem, answer)
    for violation in violations[:SHOWN]:
        print(f"optfuse: error: {solution}: {violation.message}", file=sys.stderr)
    if len(violations) > SHOWN:
        print(f"optfuse: error: {solution}: and {len(violations) - SHOWN} more violations", file=sys.stderr)
    if violations:
        raise typer.Exit(2)
    print(
        f"{solution}: valid for {problem.name}; {len(answer.kernels)} kernels, objective {answer.objective} ps, "
        f"peak {answer.peak_bytes} bytes"
    )
