"""Predicted time and memory of training steps: ours within the memory of each peer, and the least peak of ours.

    python benchmarks/predicted_fronts.py gpt2,resnet --out ROWS.jsonl [--size bench] [--budgets 0.7 0.4 0.1]
    python benchmarks/predicted_fronts.py --table ROWS.jsonl

Nothing runs: parameters are fake. Peers are priced by the same model and solver as ours: torch's minimum cut, its
``activation_memory_budget``, and each layer in ``torch.utils.checkpoint``. Ours are the cheapest step without a cap,
that within the peak of each peer, and the least peak found under a cap of 1 MiB. Seconds are of the processor, with
those of the trace. A row is added to ROWS.jsonl as it comes.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fronts import LAYERS, MIB, ROOT, checkpoint_layers

Row = dict[str, Any]


def measure(model: str, asked: str, budgets: Sequence[float], device: str, add: Callable[[Row], None]) -> None:
    """Add the rows of a model."""
    import torch._functorch.config as config

    from optfuse.compiler.frontend.aot_autograd.joint import JointStep
    from optfuse.compiler.frontend.fake_weights import fake_parameters
    from optfuse.compiler.frontend.tracing.training import capture_step
    from optfuse.compiler.frontend.zoo import known_size, load_model_file
    from optfuse.errors import InfeasibleError
    from optfuse.schedule.proposals import price
    from optfuse.schedule.saving import SavingSearch
    from optfuse.solver.control.options import SolveOptions

    size = known_size(asked)
    path = ROOT / "models" / f"{model}.py"
    entry = load_model_file(path if path.is_file() else ROOT / "benchmarks" / f"{model}.py")
    args, kwargs = entry.inputs(size, train=True)
    with fake_parameters():
        module = entry.model(size).train()
    options = SolveOptions()
    peers: dict[str, float] = {}

    def row(name: str, step: JointStep, start: float, before: float, cap: float | None) -> Row:
        found: Row = {"model": model, "size": size, "name": name, "cap_mib": cap}
        search = SavingSearch(device, options if cap is None else replace(options, peak_memory=int(cap * MIB)))
        try:
            search(step)
        except InfeasibleError as error:
            found["error"] = str(error)
            if said := re.search(r"least peak that was found is ([\d.,]+) MiB", str(error)):
                found["mib"] = float(said[1].replace(",", ""))
            found["seconds"] = before + time.process_time() - start
            return found
        seconds = before + time.process_time() - start
        assert search.found is not None
        chosen = search.found.chosen
        return found | {
            "us": chosen.objective / 1e6,
            "mib": chosen.peak_bytes / MIB,
            "saved_mib": chosen.saved_bytes / MIB,
            "gap": search.found.gap,
            "chosen": chosen.name,
            "tried": len(search.found.proposals),
            "seconds": seconds,
        }

    def plain(step: JointStep) -> None:
        now = time.process_time
        before = now() - began
        add(row("ours", step, now(), before, None))
        for budget in (1.0, *budgets):
            with config.patch(activation_memory_budget=budget):
                proposal = price(f"budget {budget:g}", None, step.halves(None), device, options).proposal
            peers[proposal.name] = proposal.peak_bytes / MIB
            add(
                {
                    "model": model,
                    "size": size,
                    "name": proposal.name,
                    "us": proposal.objective / 1e6,
                    "mib": proposal.peak_bytes / MIB,
                    "saved_mib": proposal.saved_bytes / MIB,
                }
            )
        for name, peak in peers.items():
            add(row(f"ours within {name}", step, now(), before, peak))
        add(row("ours, least", step, now(), before, 1.0))

    def layers(step: JointStep) -> None:
        found = row("layers checkpointed", step, time.process_time(), 0, None)
        peers["layers checkpointed"] = found["mib"]
        add(found)

    with fake_parameters():
        other = entry.model(size).train()
    checkpoint_layers(other, LAYERS[model.removesuffix("7b")])
    capture_step(other, args, dict(kwargs), name=entry.name, choose=layers)
    began = time.process_time()
    capture_step(module, args, dict(kwargs), name=entry.name, choose=plain)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| model | step | us | peak MiB | saved MiB | gap | s |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row["model"], row["name"]]
        for key, form in (("us", ",.0f"), ("mib", ",.0f"), ("saved_mib", ",.0f"), ("gap", ".1%"), ("seconds", ".0f")):
            cells.append(format(row[key], form) if row.get(key) is not None else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", default=",".join(LAYERS))
    parser.add_argument("--out", type=Path, default=Path("predicted_fronts.jsonl"))
    parser.add_argument("--size", choices=("bench", "full", "small"), default="bench")
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.7, 0.4, 0.1])
    parser.add_argument("--device", default="h200")
    parser.add_argument("--table", type=Path, metavar="ROWS")
    arguments = parser.parse_args()
    if arguments.table is None:
        for model in arguments.models.split(","):

            def add(row: Row) -> None:
                print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")

            try:
                measure(model, arguments.size, arguments.budgets, arguments.device, add)
            except Exception as error:
                add(
                    {
                        "model": model,
                        "size": arguments.size,
                        "name": "failed",
                        "error": f"{type(error).__name__}: {error}"[:300],
                    }
                )
                raise
    path = arguments.table or arguments.out
    print(table([json.loads(line) for line in path.read_text().splitlines()]))


if __name__ == "__main__":
    main()
