"""``optfuse demo``: some models for inference and training, greedy beside the answer, and a check of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optfuse.cli.optimize import print_schedules, schedule_model
from optfuse.cli.options import Device, GraphLimit, Workers, solve_options
from optfuse.cli.output import say
from optfuse.problem.device_files import load_device


def command(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.py...", help="Model files.")],
    device: Device = "h200",
    time_limit: GraphLimit = 15.0,
    workers: Workers = None,
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
    print_schedules(schedules)
    say("verifying the emitted kernels at the small size")
    from optfuse.cli.verification import verify_model

    for path in models:
        for train in (False, True):
            verify_model(path, train, device, options)
