"""``optfuse pareto``: predicted time against peak memory, as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optfuse.cli.options import solve_options
from optfuse.cli.output import print_json, print_table, quiet_stdout, say
from optfuse.errors import OutputError

if TYPE_CHECKING:
    from optfuse.problem.instance import Instance


def command(
    problem: Annotated[Path, typer.Argument(metavar="INSTANCE.json|MODEL.py", help="A fusion problem, or a model.")],
    points: Annotated[int, typer.Option(metavar="N", help="Caps to try, the free peak included.")] = 8,
    train: Annotated[bool, typer.Option("--train", help="A model's forward and backward graphs.")] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="Ops may be computed in several kernels.")] = False,
    device: Annotated[str, typer.Option(help="For a model: a shipped device's name, or a device file.")] = "h200",
    size: Annotated[str, typer.Option(help="For a model: full or small.")] = "full",
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds for each cap.")] = 30.0,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Threads; one a core when left out.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to save plots and rows.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list, a record a cap, on stdout.")] = False,
) -> None:
    """Sweep the cap on peak memory: how much less memory can do, and what that costs."""
    from optfuse.report.pareto import pareto_rows, pareto_table, save_pareto_plot
    from optfuse.solver.pareto import sweep

    options = solve_options(time_limit=time_limit, workers=workers, recompute=recompute or None)
    if out is not None and out.exists() and not out.is_dir():
        raise OutputError(f"{out}: exists and is not a folder; name another with --out")
    with quiet_stdout(json):
        paretos = [sweep(instance, options, points) for instance in _instances(problem, size, train, device)]
    rows = [row for pareto in paretos for row in pareto_rows(pareto)]
    if out is not None:
        _make_folder(out)
        for pareto in paretos:
            save_pareto_plot(pareto, out / f"{pareto.name}.pareto.svg")
            save_pareto_plot(pareto, out / f"{pareto.name}.pareto.png")
            say(f"wrote {out / f'{pareto.name}.pareto.svg'} and .png")
    if json:
        print_json(rows)
    else:
        print_table(pareto_table(paretos))


def _instances(path: Path, size: str, train: bool, device: str) -> list[Instance]:
    if path.suffix != ".py":
        from optfuse.problem.serialize import load_instance

        return [load_instance(path)]
    from optfuse.api import fusion_problems
    from optfuse.compiler.frontend.zoo import known_size, load_model_file

    chosen = known_size(size)
    entry = load_model_file(path)
    args, kwargs = entry.inputs(chosen, train=train)
    model = entry.model(chosen).train(train)
    say(f"{path}: capturing ({'training' if train else 'inference'}, {size} size)")
    return list(fusion_problems(model, args, kwargs, train=train, device=device, name=entry.name))


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be made ({error.strerror or error}); name another with --out") from error
