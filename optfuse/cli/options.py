"""The flags that several commands have, and the solver's options out of flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from optfuse.rules import load_rules
from optfuse.solver.control.options import SolveOptions

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.py", help="A model file, such as models/gpt2.py.")]
ModelSize = Annotated[str, typer.Option(help="full, bench or small: which of the model's sizes.")]
Train = Annotated[bool, typer.Option("--train", help="The forward and backward graphs of a training step.")]
Device = Annotated[str, typer.Option(help="A shipped device's name, or the path of a device file.")]
GraphLimit = Annotated[float, typer.Option(metavar="S", help="Seconds for the solve of each graph.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Threads; one a core when left out.")]
Seed = Annotated[int, typer.Option(metavar="K", help="Seed of the search.")]
PeakMemory = Annotated[str | None, typer.Option(metavar="BYTES", help='A hard cap, such as "2.5GiB".')]
Recompute = Annotated[bool, typer.Option("--recompute", help="Ops may be computed in several kernels.")]
Rules = Annotated[Path | None, typer.Option(metavar="FILE.toml", help="What must and must not share a kernel.")]
JsonObject = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
JsonList = Annotated[bool, typer.Option("--json", help="Print one JSON list, a record a graph, on stdout.")]


def solve_options(**values: Any) -> SolveOptions:
    """The solver's options out of flags; those left out (None) keep the solver's own default.

    Raises:
        InvalidOptionError: On a value out of range.
        RuleError: When the file of ``rules`` cannot be read.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if "rules" in given:
        given["rules"] = load_rules(given["rules"])
    return SolveOptions.from_mapping(given)
