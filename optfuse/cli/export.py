"""``optfuse export``: a fusion problem as one CP-SAT model, for those who tune solvers. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optfuse.cli.output import say
from optfuse.errors import OutputError
from optfuse.files import whole_file
from optfuse.problem.serialize import load_instance


def command(
    problem: Annotated[Path, typer.Argument(metavar="INSTANCE.json", help="The fusion problem.")],
    pb: Annotated[Path, typer.Option(metavar="MODEL.pb", help="Where to save the model, a binary CpModelProto.")],
) -> None:
    """Write the whole problem as one CP-SAT model, whose optimum is the least predicted time in picoseconds."""
    # ortools takes most of a second to import: `--help` does without.
    from optfuse.solve.cpsat.whole import whole_model

    instance = load_instance(problem)
    if not pb.parent.is_dir():
        raise OutputError(f"{pb}: there is no folder {pb.parent}; make it or name another with --pb")
    model = whole_model(instance)
    with whole_file(pb, "name another with --pb") as draft:
        draft.touch()  # what CP-SAT cannot write, it does not explain
        if not model.export_to_file(str(draft)):
            raise OutputError(f"{pb}: cannot be written: its folder or its disk takes no more; name another with --pb")
    size = pb.stat().st_size
    variables, constraints = len(model.proto.variables), len(model.proto.constraints)
    say(f"wrote {pb}: {variables:,} variables, {constraints:,} constraints, {size:,} bytes")
