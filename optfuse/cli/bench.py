"""``optfuse bench``: models measured in several compilers side by side, in one process a model."""

from __future__ import annotations

import json as json_format
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optfuse.cli.options import GraphLimit, solve_options
from optfuse.cli.output import say
from optfuse.errors import InvalidOptionError
from optfuse.files import write_whole

if TYPE_CHECKING:
    from optfuse.lab.bench.records import Task

Model = Annotated[list[Path], typer.Argument(metavar="MODEL.py...", help="Model files, such as models/gpt2.py.")]
Against = Annotated[
    str, typer.Option(help="Peers, by commas: eager, inductor, inductor-graphs, inductor-max-autotune.")
]
SYSTEMS_HELP = (
    'Exactly these systems, by commas; "ours" is optfuse,optfuse-graphs, "called" each compiler by torch.compile, '
    '"thesis" one code generator with several partitions, ours and Inductor\'s.'
)
Only = Annotated[str | None, typer.Option(help=SYSTEMS_HELP)]
Decode = Annotated[
    str | None,
    typer.Option(metavar="BATCHES", help="A decode step over a static cache, at each of these batches: 1,8,32,128."),
]
Limit = Annotated[float, typer.Option(metavar="S", help="Seconds after which nothing more is begun.")]
Patience = Annotated[float, typer.Option(metavar="S", help="Seconds without a sign after which a system has failed.")]


def command(
    models: Model,
    train: Annotated[bool, typer.Option("--train", help="A training step: forward, backward.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Inference, and then a training step.")] = False,
    against: Against = "eager,inductor,inductor-graphs",
    only: Only = None,
    size: Annotated[str, typer.Option(help="full, bench or small: which of the models' sizes.")] = "full",
    device: Annotated[str, typer.Option(help="The cost model's device: a shipped name, or a device file.")] = "h200",
    time_limit: GraphLimit = 10.0,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Solver threads; one a core when left out.")] = None,
    check: Annotated[bool, typer.Option(help="Compare results with eager and float64.")] = True,
    loss: Annotated[str, typer.Option(help="inside or outside: where a training step's loss is computed.")] = "inside",
    decode: Decode = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights of linear layers in int8, with a scale a row.")] = False,
    cache: Annotated[int, typer.Option(metavar="TOKENS", help="What a decode step's cache holds.")] = 1024,
    limit: Limit = 3600.0,
    patience: Patience = 400.0,
    json: Annotated[Path | None, typer.Option(metavar="OUT.json", help="Everything, rewritten as it grows.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="OUT.csv", help="A line a kernel of optfuse's.")] = None,
    plans: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep optfuse's plans here.")] = None,
) -> None:
    """Measure models in optfuse and other compilers side by side, and hold each kernel against its prediction."""
    # torch takes seconds to import: only commands that need it pay.
    from optfuse.compiler.frontend.zoo import known_size, load_model_file
    from optfuse.lab.bench.records import Settings, Task, known_systems
    from optfuse.lab.bench.run import run
    from optfuse.lab.bench.summary import kernels_csv, markdown
    from optfuse.lab.bench.thesis import thesis, thesis_markdown
    from optfuse.problem.device_files import load_device

    solve_options(time_limit=time_limit, workers=workers)
    for name, value in (("limit", limit), ("patience", patience)):
        if not 0 < value < math.inf:
            raise InvalidOptionError(f"--{name} must be a number of seconds above zero, not {value!r}")
    if loss not in ("inside", "outside"):
        raise InvalidOptionError(f"--loss must be inside or outside, not {loss!r}")
    batches = _batches(decode, cache, training=train or both)
    ours = "ours" if decode is None else "optfuse-compile,optfuse-compile-graphs"
    systems = known_systems(only if only is not None else f"{against},{ours}")
    kept = "" if plans is None else str(plans)
    settings = Settings(known_size(size), device, time_limit, workers or 0, check, plans=kept, loss=loss, cache=cache)
    load_device(device)
    tasks: list[Task] = []
    for path in models:
        entry = load_model_file(path)
        for training in (False, True) if both else (train,):
            tasks += [Task(str(path), entry.name, training, systems, batch, int8) for batch in batches]

    def keep(document: dict[str, Any]) -> None:
        if json is not None:
            write(json, json_format.dumps(document, indent=1) + "\n")
        if csv is not None:
            write(csv, kernels_csv(document["kernels"]))

    document = run(tasks, settings, limit=limit, patience=patience, say=say, keep=keep)
    print(_flags(document))
    print(markdown(document))
    found = thesis_markdown(thesis(document))
    if found:
        print("\n" + found)


def _batches(decode: str | None, cache: int, *, training: bool) -> list[int]:
    """The batches of ``--decode``; [0] without it."""
    if decode is None:
        return [0]
    if training:
        raise InvalidOptionError("--decode is inference: leave --train and --both out")
    if cache < 2:
        raise InvalidOptionError(f"--cache must be at least 2 tokens, not {cache}")
    words = [word.strip() for word in decode.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise InvalidOptionError(f"--decode must be batches above zero, separated by commas, not {decode!r}")
    return [int(word) for word in words]


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        OutputError: When it cannot be written.
    """
    write_whole(path, text, "name another file")


def _flags(document: dict[str, Any]) -> str:
    versions = dict(document["versions"])
    inductor = versions.pop("inductor", {})
    facts = [", ".join(f"{key} {value}" for key, value in versions.items())]
    return "\n".join([*facts, "Inductor: " + ", ".join(f"{key}={value}" for key, value in inductor.items()), ""])
