"""``optfuse passes``: what the compiler rewrites before the solver, in order, and what each rewrite is."""

from __future__ import annotations

from typing import Annotated

import typer

from optfuse.cli.output import print_json


def command(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list, a record a pass, on stdout.")] = False,
) -> None:
    """List the rewrites that run before the solver: normal forms, dominances, and decisions taken from the solver."""
    # sympy and torch take seconds to import: only commands that need them pay
    from optfuse.compiler.frontend.passes.listed import FRONTEND_PASSES
    from optfuse.compiler.simplify.pass_list import PASSES

    records = [
        *({"name": p.name, "kind": p.kind, "stage": f"frontend: {p.stage}", "says": p.says} for p in FRONTEND_PASSES),
        *({"name": p.name, "kind": p.kind, "stage": "extract", "says": p.says} for p in PASSES),
    ]
    if json:
        print_json(records)
        return
    name, kind = (max(len(record[key]) for record in records) for key in ("name", "kind"))
    stage = ""
    for record in records:
        if record["stage"] != stage:
            stage = record["stage"]
            print(f"{stage}")
        print(f"  {record['name']:{name}}  {record['kind']:{kind}}  {record['says']}")
