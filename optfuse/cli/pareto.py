"""``optfuse pareto``: predicted time against peak memory, as a table and a plot."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optfuse.cli.files import require_folder_place
from optfuse.cli.options import Recompute, Workers, solve_options
from optfuse.cli.output import print_json, print_table, quiet_stdout, say
from optfuse.errors import InvalidOptionError, OutputError

if TYPE_CHECKING:
    import pandas as pd

    from optfuse.problem.instance import Instance
    from optfuse.solver.control.options import SolveOptions


def command(
    problem: Annotated[Path, typer.Argument(metavar="INSTANCE.json|MODEL.py", help="A fusion problem, or a model.")],
    points: Annotated[int, typer.Option(metavar="N", help="Caps to try, the free peak included.")] = 8,
    train: Annotated[
        bool, typer.Option("--train", help="A model's training step: what it saves for backward.")
    ] = False,
    fake_weights: Annotated[
        bool, typer.Option("--fake-weights", help="With --train: parameters take no memory on this machine.")
    ] = False,
    recompute: Recompute = False,
    device: Annotated[str, typer.Option(help="For a model: a shipped device's name, or a device file.")] = "h200",
    size: Annotated[str, typer.Option(help="For a model: full or small.")] = "full",
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds for each cap.")] = 30.0,
    workers: Workers = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to save plots and rows.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list, a record a cap, on stdout.")] = False,
) -> None:
    """Sweep the cap on peak memory: how much less memory can do, and what that costs."""
    from optfuse.report.pareto import pareto_rows, pareto_table, save_pareto_plot, saving_table
    from optfuse.solver.pareto import sweep

    options = solve_options(time_limit=time_limit, workers=workers, recompute=recompute or None)
    require_folder_place(out)
    if train and problem.suffix == ".py":
        with quiet_stdout(json):
            front = _saving_front(problem, size, device, points, options, fake_weights).drop(columns="saved")
        if out is not None:
            _make_folder(out)
            front.to_csv(out / f"{problem.stem}.saving.csv", index=False)
            say(f"wrote {out / f'{problem.stem}.saving.csv'}")
        if json:
            print_json(front.to_dict("records"))
        else:
            print_table(saving_table(problem.stem, front))
        return
    if fake_weights:
        raise InvalidOptionError("--fake-weights is for a model's training step: add --train, and name a MODEL.py")
    with quiet_stdout(json):
        paretos = [sweep(instance, options, points) for instance in _instances(problem, size, device)]
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


def _saving_front(
    path: Path, size: str, device: str, points: int, options: SolveOptions, fake_weights: bool
) -> pd.DataFrame:
    from optfuse.api import saving_front
    from optfuse.compiler.frontend.fake_weights import fake_parameters
    from optfuse.compiler.frontend.zoo import known_size, load_model_file

    chosen = known_size(size)
    entry = load_model_file(path)
    args, kwargs = entry.inputs(chosen, train=True)
    with fake_parameters() if fake_weights else nullcontext():
        model = entry.model(chosen).train()
    say(f"{path}: capturing (training, {size} size)")
    return saving_front(model, args, kwargs, points=points, device=device, options=options, name=entry.name)


def _instances(path: Path, size: str, device: str) -> list[Instance]:
    if path.suffix != ".py":
        from optfuse.problem.serialize import load_instance

        return [load_instance(path)]
    from optfuse.api import fusion_problems
    from optfuse.compiler.frontend.zoo import known_size, load_model_file

    chosen = known_size(size)
    entry = load_model_file(path)
    args, kwargs = entry.inputs(chosen)
    say(f"{path}: capturing (inference, {size} size)")
    return list(fusion_problems(entry.model(chosen).eval(), args, kwargs, device=device, name=entry.name))


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be made ({error.strerror or error}); name another with --out") from error
