"""``optfuse pack``: offsets for buffers with known lifetimes. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optfuse.cli.files import require_parent
from optfuse.cli.options import JsonObject, Seed, Workers
from optfuse.cli.output import print_json, say
from optfuse.errors import InvalidPackingError
from optfuse.files import write_whole


def command(
    problem: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Rows id,lower,upper,size; upper is exclusive.")],
    capacity: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Memory to stay within; the least possible when left out.")
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds.")] = 60.0,
    workers: Workers = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(metavar="OUT.csv", help="Where to save the offsets.")] = None,
    json: JsonObject = False,
) -> None:
    """Pack buffers into one memory and say what was proved; prints the table with offsets unless --out or --json."""
    from optfuse.lab.packing.pack import pack
    from optfuse.problem.packing_csv import format_packing, parse_packing

    table = parse_packing(_read(problem), str(problem))
    require_parent(out)
    result = pack(table.buffers, capacity, time_limit=time_limit, workers=workers, seed=seed)
    text = format_packing(table, result.offsets)
    if out is not None:
        write_whole(out, text, "name another with --out")
        say(f"wrote {out}")
    least = "the least there is" if result.status == "OPTIMAL" else f"none needs less than {result.bound:,}"
    say(f"{len(table.buffers):,} buffers in {result.height:,} bytes ({least}); {result.method}, {result.wall_s:.2f} s")
    for line in result.given_up:
        say(f"given up: {line}")
    if json:
        print_json(
            {
                "status": result.status,
                "buffers": len(table.buffers),
                "capacity": result.capacity,
                "height": result.height,
                "bound": result.bound,
                "method": result.method,
                "nodes": result.nodes,
                "wall_s": round(result.wall_s, 3),
                "given_up": list(result.given_up),
                "offsets": {b.id: offset for b, offset in zip(table.buffers, result.offsets, strict=True)},
            }
        )
    elif out is None:
        print(text, end="")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidPackingError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InvalidPackingError(f"{path}: not a text file in UTF-8") from error
