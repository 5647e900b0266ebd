"""``optfuse solve``: one instance in, a solution with its certificate out. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optfuse.cli.options import solve_options
from optfuse.cli.output import print_json, print_summary, say
from optfuse.errors import OutputError


def command(
    instance: Annotated[Path, typer.Argument(metavar="INSTANCE.json", help="The fusion problem.")],
    solver: Annotated[str, typer.Option(help="cpsat, greedy or exhaustive.")] = "cpsat",
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds for the whole solve.")] = 30.0,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Threads; one a core when left out.")] = None,
    seed: Annotated[int, typer.Option(metavar="K", help="Seed of the search.")] = 0,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="What must and must not share a kernel.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="SOLUTION.json", help="Where to save the solution.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Solve a fusion problem and say what was proved."""
    # ortools takes most of a second to import: `--help` and `check` do without.
    from optfuse.problem.serialize import load_instance, save_solution
    from optfuse.report.summary import certificate, summary
    from optfuse.solve.solve import solve

    options = solve_options(solver=solver, time_limit=time_limit, workers=workers, seed=seed, rules=rules)
    problem = load_instance(instance)
    if out is not None and not out.parent.is_dir():
        raise OutputError(f"{out}: there is no folder {out.parent}; make it or name another with --out")
    result = solve(problem, options)
    if out is not None:
        save_solution(result.solution, out)
        say(f"wrote {out}")
    record = summary(problem, result)
    if json:
        print_json(record)
    else:
        print_summary([record])
        print(f"{certificate(result)}.")
        for line in result.statistics.given_up:
            print(f"given up: {line}")
