"""``optfuse optimize``: a model file in, a proven schedule a graph out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optfuse.cli.files import require_folder_place, whole_folders
from optfuse.cli.options import (
    Device,
    GraphLimit,
    JsonList,
    ModelFile,
    ModelSize,
    PeakMemory,
    Recompute,
    Rules,
    Train,
    Workers,
    solve_options,
)
from optfuse.cli.output import print_json, print_summary, quiet_stdout, say
from optfuse.errors import InvalidOptionError
from optfuse.problem.device_files import load_device
from optfuse.report.summary import certificate

if TYPE_CHECKING:
    from optfuse.api import Schedule
    from optfuse.compiler.frontend.zoo import Size
    from optfuse.schedule.resized import Dynamic
    from optfuse.solver.control.options import SolveOptions


ChangingSizes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG.DIM[,ARG.DIM]=LEAST:MOST",
        help="Where the schedule holds when a size changes, as in input_ids.1=16:1024; given twice: two sizes.",
    ),
]


def command(
    model: ModelFile,
    train: Train = False,
    device: Device = "h200",
    time_limit: GraphLimit = 30.0,
    workers: Workers = None,
    size: ModelSize = "full",
    peak_memory: PeakMemory = None,
    optimizer_states: Annotated[
        int | None, typer.Option(metavar="N", help="Tensors that an optimizer keeps for each parameter (AdamW: 2).")
    ] = None,
    recompute: Recompute = False,
    rules: Rules = None,
    dynamic: ChangingSizes = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Save instance, solution, kernels, report.")] = None,
    json: JsonList = False,
    measure: Annotated[
        int, typer.Option(metavar="K", help="Run the K best plans on the GPU, and take the fastest; 0: none.")
    ] = 0,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search the kernels' tiles on the GPU, and keep the best.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check results and compile every kernel for sm_90.")] = False,
    check_kernels: Annotated[
        bool, typer.Option("--check-kernels", help="Check every launch and call by itself, at the small size.")
    ] = False,
) -> None:
    """Find the best kernel schedule of a model under the device's cost model, with a proof of how good it is."""
    # torch takes seconds to import: only commands that need it pay
    from optfuse.compiler.frontend.zoo import known_size
    from optfuse.tuning.device import require_gpu
    from optfuse.tuning.rank import require_measurable

    options = solve_options(
        time_limit=time_limit,
        workers=workers,
        rules=rules,
        peak_memory=peak_memory,
        optimizer_states=optimizer_states,
        recompute=recompute or None,
    )
    chosen = known_size(size)
    sizes = changing_sizes(dynamic) if dynamic else None
    load_device(device)
    require_folder_place(out)
    if tune:
        require_gpu("--tune")
    require_measurable(measure)
    with quiet_stdout(json):
        schedules = schedule_model(model, chosen, train, device, options, measure, sizes)
        if tune:
            schedules = tuple(map(tuned, schedules))
        if verify or check_kernels:
            _check(model, train, device, options, schedules if verify else None, check_kernels)
        if out is not None:
            save(schedules, out)
    if json:
        print_json([schedule.summary() for schedule in schedules])
    else:
        print_schedules(schedules)


def _check(
    model: Path,
    train: bool,
    device: str,
    options: SolveOptions,
    to_verify: Sequence[Schedule] | None,
    check_kernels: bool,
) -> None:
    """Check each kernel by itself if asked to, and verify the model's results and compile the schedules if given."""
    from optfuse.cli.verification import check_model, compile_schedules, verify_model

    if options.rules:  # they name ops of the full size's graph
        say("results are compared at the small size, without the rules")
    options = replace(options, rules=())
    if check_kernels:
        check_model(model, train, device, options)
    if to_verify is not None:
        verify_model(model, train, device, options)
        compile_schedules(to_verify)


def print_schedules(schedules: Sequence[Schedule]) -> None:
    """Print the table of some schedules' figures, then what was proved of each."""
    print_summary([schedule.summary() for schedule in schedules])
    for schedule in schedules:
        print(f"{schedule.name}: {schedule.certificate}.")


def schedule_model(
    path: Path,
    size: Size,
    train: bool,
    device: str,
    options: SolveOptions,
    measure: int = 0,
    dynamic: Dynamic | None = None,
) -> tuple[Schedule, ...]:
    """The schedules of a model file: one for inference, two (forward, backward) for training."""
    from optfuse.api import Schedule, optimize
    from optfuse.compiler.frontend.zoo import load_model_file
    from optfuse.tuning.rank import ranking_text

    entry = load_model_file(path)
    say(f"{path}: capturing and solving ({'training' if train else 'inference'}, {size} size)")
    args, kwargs = entry.inputs(size, train=train)
    model = entry.model(size).train(train)
    found = optimize(
        model,
        args,
        kwargs,
        train=train,
        device=device,
        options=options,
        name=entry.name,
        measure=measure,
        dynamic=dynamic,
    )
    schedules = (found,) if isinstance(found, Schedule) else tuple(found)
    for schedule in schedules:
        say(f"{schedule.name}: {schedule.result.statistics.wall_s:.1f} s, {certificate(schedule.result)}")
        if schedule.ranking:
            for line in ranking_text(schedule).splitlines():
                say(line)
    if found.regions is not None:
        for line in str(found.regions).splitlines():
            say(line)
    if not isinstance(found, Schedule) and found.capture is not None and found.capture.regions:
        say(f"{entry.name}: {found.checkpoint_price(device=device, options=options)}")
    return schedules


def changing_sizes(texts: Sequence[str]) -> Dynamic:
    """The arguments' dimensions and their ranges that ``--dynamic`` gives.

    >>> changing_sizes(["input_ids.1,0.1=16:1024", "input_ids.0=1:8"])
    {'input_ids': {1: (16, 1024), 0: (1, 8)}, 0: {1: (16, 1024)}}

    Raises:
        InvalidOptionError: If a text has another form.
    """
    sizes: dict[int | str, dict[int, tuple[int, int]]] = {}
    for text in texts:
        found = re.fullmatch(r"(\w+\.\d+(?:,\w+\.\d+)*)=(\d+):(\d+)", text)
        if found is None:
            raise InvalidOptionError(
                f"--dynamic: not ARG.DIM[,ARG.DIM]=LEAST:MOST, as in input_ids.1=16:1024: {text!r}"
            )
        for one in found[1].split(","):
            argument, dim = one.split(".")
            key = int(argument) if argument.isdecimal() else argument
            sizes.setdefault(key, {})[int(dim)] = (int(found[2]), int(found[3]))
    return sizes


def tuned(schedule: Schedule) -> Schedule:
    """The schedule with measured tiles; says what became faster."""
    from optfuse.api import Schedule
    from optfuse.tuning.tune import tune

    found = tune(schedule)
    for line in found.text().splitlines():
        say(line)
    return Schedule.of(found.schedule)


def save(schedules: Sequence[Schedule], out: Path) -> None:
    """One folder a graph under ``out``, each a plan that ``optfuse.load`` reads, with its report; all or none.

    Raises:
        OutputError: When something cannot be written.
    """
    names = [schedule.name for schedule in schedules]
    with whole_folders(out, names, "plan.json") as temporary:
        for schedule in schedules:
            # The model file has the weights, which may take gigabytes.
            schedule.save(temporary / schedule.name, weights=False)
    for name in names:
        say(f"wrote {out / name}")
