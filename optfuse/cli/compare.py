"""``optfuse compare``: TorchInductor's own fusion of a model, greedy's and the solver's, in one table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optfuse.cli.options import Device, GraphLimit, JsonList, ModelFile, ModelSize, Train, Workers, solve_options
from optfuse.cli.output import MIB, US, print_json, print_table, quiet_stdout, say
from optfuse.errors import InvalidOptionError

if TYPE_CHECKING:
    from optfuse.compiler.frontend.graph.captured import Captured
    from optfuse.compiler.frontend.zoo import Size
    from optfuse.inductor.compare import Comparison
    from optfuse.solver.control.options import SolveOptions


def command(
    model: ModelFile,
    train: Train = False,
    device: Device = "h200",
    time_limit: GraphLimit = 30.0,
    workers: Workers = None,
    size: ModelSize = "full",
    inductor_limit: Annotated[float, typer.Option(metavar="S", help="Seconds for Inductor, each graph.")] = 600.0,
    max_autotune: Annotated[
        bool, typer.Option("--max-autotune", help="Let Inductor time templates of products on the GPU, and use them.")
    ] = False,
    json: JsonList = False,
) -> None:
    """Compare Inductor's own fusion of a model with greedy's and the solver's, all priced by one cost model."""
    # torch takes seconds to import: only commands that need it pay
    from optfuse.compiler.frontend.zoo import known_size
    from optfuse.problem.device_files import load_device

    options = solve_options(time_limit=time_limit, workers=workers)
    if not 0 < inductor_limit < math.inf:
        raise InvalidOptionError(f"--inductor-limit must be a number of seconds above zero, not {inductor_limit!r}")
    chosen = known_size(size)
    load_device(device)
    tuned = {"max_autotune": max_autotune and _times_kernels()}
    with quiet_stdout(json):
        graphs = _graphs(model, train, chosen)
        found = [_compared(captured, device, options, inductor_limit, tuned) for captured in graphs]
    if json:
        print_json([comparison.as_json() for comparison in found])
    else:
        print_comparisons([comparison.as_json() for comparison in found])


def _times_kernels() -> bool:
    """Whether there is a GPU; an error if not."""
    import torch

    if not torch.cuda.is_available():
        raise InvalidOptionError("--max-autotune times kernels on a GPU, and this machine has none: leave it out")
    return True


def _graphs(path: Path, train: bool, size: Size) -> tuple[Captured, ...]:
    from optfuse.compiler.frontend.tracing.inference import capture
    from optfuse.compiler.frontend.tracing.training import capture_training
    from optfuse.compiler.frontend.zoo import load_model_file

    entry = load_model_file(path)
    args, kwargs = entry.inputs(size, train=train)
    model = entry.model(size).train(train)
    if train:
        return capture_training(model, args, kwargs, name=entry.name)
    return (capture(model, args, kwargs, name=f"{entry.name}.inference"),)


def _compared(
    captured: Captured, device: str, options: SolveOptions, limit: float, asked: Mapping[str, bool]
) -> Comparison:
    from optfuse.compiler.stages import fusion_problem
    from optfuse.inductor.compare import compare, inductor_answer
    from optfuse.inductor.graph_record import graph_record
    from optfuse.inductor.process import run_inductor
    from optfuse.solver.solve import solve

    say(f"{captured.name}: Inductor fuses")
    extraction = fusion_problem(captured, device)
    answer = inductor_answer(extraction, run_inductor({**graph_record(captured), **asked}, time_limit=limit))
    say(f"{captured.name}: solving")
    result = solve(extraction.instance, options)
    return compare(extraction, answer, result.greedy_solution, {options.solver: result.solution})


def print_comparisons(records: Sequence[Mapping[str, Any]]) -> None:
    """Print a row a graph and partition, then what the table cannot say, a line a graph."""
    from rich.table import Table

    table = Table(title="Predicted time of one run under the stated cost model", title_justify="left")
    for heading in ("graph", "partition", "kernels", "us", "against greedy", "MiB moved"):
        table.add_column(heading, justify="left" if heading in ("graph", "partition") else "right")
    for record in records:
        greedy = next(p["objective"] for p in record["partitions"] if p["name"] == "greedy")
        for number, partition in enumerate(record["partitions"]):
            table.add_row(
                record["graph"] if number == 0 else "",
                partition["name"],
                f"{partition['kernels']:,}",
                f"{partition['objective'] / US:,.1f}",
                f"{(partition['objective'] - greedy) / greedy:+.2%}" if greedy else "-",
                f"{partition['moved_bytes'] / MIB:,.1f}",
            )
    print_table(table, 120)
    for record in records:
        print(fidelity_line(record))


def fidelity_line(record: Mapping[str, Any]) -> str:
    """What became of Inductor's kernels on the way to ours, and how far greedy agrees with it."""
    agreed = (
        f"{record['agreement']:.1%} of the pairs that share a kernel in either (of ops that Inductor computes once "
        f"{record['agreement_once']:.1%}; Rand index {record['rand_index']:.4f})"
    )
    counts = (
        f"{record['launches']} launches",
        f"{record['unmapped']} ops unmapped{_by_cause(record['unmapped_reasons'])}",
        f"{record['split']} kernels split{_by_cause(record['split_reasons'])}",
        f"{record['repeated']} ops in several kernels",
    )
    return f"{record['graph']}: greedy agrees on {agreed}; Inductor {record['torch']}: {', '.join(counts)}"


def _by_cause(causes: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{count} {cause}' for cause, count in causes.items())})" if causes else ""
