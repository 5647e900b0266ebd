"""``optfuse check``: judge a solution by the checker, which shares no code with the solvers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optfuse.cli.output import complain
from optfuse.problem.checker import check
from optfuse.problem.rules import with_rules
from optfuse.problem.serialize import load_instance, load_solution
from optfuse.rules import load_rules

#: At most so many violations are printed; the rest is counted.
SHOWN = 20


def command(
    instance: Annotated[Path, typer.Argument(metavar="INSTANCE.json", help="The fusion problem.")],
    solution: Annotated[Path, typer.Argument(metavar="SOLUTION.json", help="The answer to judge.")],
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="The rules that the problem was solved under.")
    ] = None,
) -> None:
    """Check a solution: legality of each kernel, order, memory plan, and the objective it claims."""
    problem = with_rules(load_instance(instance), () if rules is None else load_rules(rules))
    answer = load_solution(solution)
    violations = check(problem, answer)
    for violation in violations[:SHOWN]:
        complain(f"{solution}: {violation.message}")
    if len(violations) > SHOWN:
        complain(f"{solution}: and {len(violations) - SHOWN} more violations")
    if violations:
        raise typer.Exit(2)
    print(
        f"{solution}: valid for {problem.name}; {len(answer.kernels)} kernels, objective {answer.objective} ps, "
        f"peak {answer.peak_bytes} bytes"
    )
