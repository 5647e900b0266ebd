"""``optfuse generate``: a fusion problem of a seeded family, the same on every machine. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optfuse.cli.output import say
from optfuse.lab.generated.families import FAMILIES, generate
from optfuse.problem.serialize import save_instance


def command(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help=f"One of {', '.join(FAMILIES)}.")],
    out: Annotated[Path, typer.Option(metavar="INSTANCE.json", help="Where to save it; gzip if named *.gz.")],
    size: Annotated[int, typer.Option(metavar="N", help="About how many ops.")] = 100,
    seed: Annotated[int, typer.Option(metavar="K", help="Of the choices made.")] = 0,
) -> None:
    """Make a fusion problem: chains, trees, grids, layers, and two kinds that are made to be hard."""
    instance = generate(family, size, seed)
    save_instance(instance, out)
    say(f"wrote {out}: {instance.name}, {len(instance.ops):,} ops")
