"""The rows of models as users call them: ``torch.compile`` with each compiler, inference and training steps.

    python benchmarks/rows.py --out FOLDER [--rows gpt2,gpt2+outside,gpt2+inside,...] [--systems ...] [--dry]
    python benchmarks/rows.py --out FOLDER --table

A row is a model's name for inference, with "+outside" or "+inside" for a training step whose loss is computed there.
Each row is an ``optfuse bench`` in a process of its own; rows compile side by side and are timed one at a time.
``FOLDER`` gets each row's document as it grows, and its log. The table has each system's median milliseconds, and the
best peer's over ours (the better of ``backend="optfuse"`` by itself and with ``cudagraphs=True``).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from side_by_side import Job, run_jobs

MODELS = "gpt2 bert llama t5 vit convnext swin resnet mobilenetv2".split()
SYSTEMS = "eager,inductor,inductor-graphs,optfuse-compile,optfuse-compile-graphs"
FOLDER = Path(__file__).parent.parent / "models"


def command(row: str, options: argparse.Namespace) -> list[str]:
    """The bench of a row."""
    model, _, loss = row.partition("+")
    words = [sys.executable, "-m", "optfuse", "bench", str(FOLDER / f"{model}.py"), "--only", options.systems]
    words += ["--size", "small" if options.dry else "bench", "--device", options.device, "--workers", "1"]
    words += ["--limit", str(options.total - options.spare), "--json", str(options.out / f"{row}.json")]
    return words + (["--train", "--loss", loss] if loss else [])


def systems_of(row: str, out: Path) -> dict[str, Any]:
    """What a row's document says of each system; nothing where there is none."""
    path = out / f"{row}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"][0]["systems"] if path.exists() else {}


def table(rows: Sequence[str], out: Path) -> str:
    """A line a row, and the geometric mean of the ratios."""
    names = list(dict.fromkeys(name for row in rows for name in systems_of(row, out)))
    lines = [
        f"| row | {' | '.join(names)} | best peer / ours | compile s: Inductor, ours |",
        "|---" * (len(names) + 3) + "|",
    ]
    ratios: list[float] = []
    failed: list[str] = []
    for row in rows:
        found = systems_of(row, out)
        failed += [f"{row}, {name}: {one['reason'][:200]}" for name, one in found.items() if one["status"] != "ok"]
        failed += [] if found else [f"{row}: nothing was measured"]
        done = {name: one for name, one in found.items() if one["status"] == "ok"}
        failed += [f"{row}, {name}: WRONG" for name, one in done.items() if one.get("check", {}).get("passed") is False]
        ms = {name: one["median_ms"] for name, one in done.items()}
        ours = [value for name, value in ms.items() if name.startswith("optfuse")]
        peers = [value for name, value in ms.items() if not name.startswith("optfuse")]
        if ours and peers:
            ratios.append(min(peers) / min(ours))
        cells = [f"{ms[name]:.2f}" if name in ms else "-" for name in names]
        ratio = f"{ratios[-1]:.2f}x" if ours and peers else "-"
        seconds = (done.get(name, {}).get("compile_s") for name in ("inductor", "optfuse-compile"))
        spent = ", ".join("-" if one is None else f"{one:.0f}" for one in seconds)
        lines.append(f"| {row} | {' | '.join(cells)} | {ratio} | {spent} |")
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"Geometric mean of {len(ratios)}: {mean:.3f}, least {min(ratios):.2f}"]
    return "\n".join([*lines, "", *failed])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default=",".join(f"{m}{s}" for m in MODELS for s in ("", "+outside")))
    parser.add_argument("--systems", default=SYSTEMS)
    parser.add_argument("--device", default="h100")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--total", type=float, default=600.0, help="seconds after which all ends")
    parser.add_argument("--spare", type=float, default=30.0, help="in the last so many seconds nothing is begun")
    parser.add_argument("--dry", action="store_true", help="small models")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    options = parser.parse_args(arguments)
    rows = options.rows.split(",")
    if not options.table:
        options.out.mkdir(parents=True, exist_ok=True)

        def job(row: str) -> Job:
            log = options.out / f"{row}.log"
            return Job(command(row, options), log, lambda how: print(f"{row}: {how}", flush=True))

        run_jobs([job(row) for row in rows], options.processes, options.total, options.total)
    print(table(rows, options.out))


if __name__ == "__main__":
    main()
