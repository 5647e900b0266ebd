"""``optfuse demo``: some models for inference and training, greedy beside the answer, and a check of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optfuse.cli.optimize import schedule_model
from optfuse.cli.options import solve_options
from optfuse.cli.output import print_summary, say
from optfuse.problem.device_files import load_device


def command(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.py...", help="Model files.")],
    device: Annotated[str, typer.Option(help="A shipped device's name, or the path of a device file.")] = "h200",
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds for the solve of each graph.")] = 15.0,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Threads; one a core when left out.")] = None,
) -> None:
    """Schedule models at full size for inference and training, and verify the emitted kernels at small size."""
    options = solve_options(time_limit=time_limit, workers=workers)
    load_device(device)
    schedules = [
        schedule
        for path in models
        for train in (False, True)
        for schedule in schedule_model(path, "full", train, device, options)
    ]
    print_summary(schedule.summary() for schedule in schedules)
    for schedule in schedules:
        print(f"{schedule.name}: {schedule.certificate}.")
    say("verifying the emitted kernels at the small size")
    from optfuse.cli.verification import verify_model

    for path in models:
        for train in (False, True):
            verify_model(path, train, device, options)
