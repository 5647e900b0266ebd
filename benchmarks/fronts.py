"""Time and memory of a training step: ours under caps, Inductor's, checkpointed layers, eager. Rows and a table.

    python benchmarks/fronts.py gpt2,bert,resnet --out FRONTS.jsonl [--size bench] [--shares 0.9 0.8 0.7]
                                [--budgets 1.0 0.6 0.3 0.0] [--limit S] [--total S]
    python benchmarks/fronts.py --table FRONTS.jsonl

A step is forward with the loss inside of the model, and backward; no optimizer. Measured are the median of its
milliseconds and the peak of ``torch.cuda.max_memory_allocated``, without CUDA graphs. What is measured of each model:

- eager, and eager with each layer in ``torch.utils.checkpoint``;
- inductor with ``torch._functorch.config.activation_memory_budget`` at each of the budgets, and inductor with each
  layer in ``torch.utils.checkpoint``;
- optfuse without a cap, and with caps of each of the shares of the predicted peak of torch's own choice of what to
  save; beside what was measured stand the predicted milliseconds and peak.

Each measurement has a process of its own and ``--limit`` seconds: one that fails costs itself, and its row has the
error. After ``--total`` seconds none is begun. A row is added to FRONTS.jsonl as it comes, and one that is there
without an error is not measured again. The table marks with * the points that no other of their model beats in both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
#: A model's layers, by the name of their class.
LAYERS = {
    "bert": "BertLayer",
    "convnext": "ConvNextLayer",
    "gpt2": "GPT2Block",
    "llama": "LlamaDecoderLayer",
    "mobilenetv2": "MobileNetV2InvertedResidual",
    "resnet": "ResNetBottleNeckLayer",
    "swin": "SwinLayer",
    "t5": "T5Block",
    "vit": "ViTLayer",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One measurement. ``setting``: Inductor's budget, or the share of the peak that is our cap; None for none."""

    model: str
    system: str
    setting: float | None = None

    @staticmethod
    def of(row: Row) -> Point:
        """The measurement that made a row."""
        return Point(row["model"], row["system"], row["setting"])


def points(model: str, shares: Sequence[float], budgets: Sequence[float]) -> Iterator[Point]:
    """Everything that is measured of a model; optfuse without a cap comes before its caps, which follow from it."""
    yield Point(model, "optfuse")
    for share in shares:
        yield Point(model, "optfuse", share)
    for budget in budgets:
        yield Point(model, "inductor", budget)
    for system in ("eager", "eager-checkpoint", "inductor-checkpoint"):
        yield Point(model, system)


def measure(point: Point, size: str, cap: int | None) -> Row:
    """Measure one point in this process."""
    import torch

    from optfuse.lab.bench.meter import meter
    from optfuse.lab.bench.records import Settings, Task
    from optfuse.lab.bench.systems import load_case

    torch.set_float32_matmul_precision("high")
    on = meter()
    path = str(ROOT / "models" / f"{point.model}.py")
    case = load_case(Task(path, point.model, True, ()), Settings(size=size, loss="inside"), on.device)
    start = time.perf_counter()
    if point.system.endswith("-checkpoint"):
        checkpoint_layers(case.model, LAYERS[point.model])
    row: Row = {"torch": torch.__version__, "held_mib": on.allocated() / MIB}
    if point.system == "optfuse":
        call, predicted = ours(case, cap)
        row |= predicted
    elif point.system.startswith("inductor"):
        call = inductor(case.model, point.setting)
    else:
        call = case.model
    step = partial(case.run, call)
    for _ in range(3):
        step()
    on.synchronize()
    row["compile_s"] = time.perf_counter() - start
    times = on.times(step, 1.0)
    return row | {"ms": times.median, "low_ms": times.low, "high_ms": times.high, "peak_mib": on.peak(step)[0] / MIB}


def checkpoint_layers(model: Any, name: str) -> None:
    """Let each layer, a module whose class has the name, keep its inputs alone.

    Raises
    ------
    ValueError
        If the model has no such layer.
    """
    from torch.utils.checkpoint import checkpoint

    layers = [module for module in model.modules() if type(module).__name__ == name]
    if not layers:
        raise ValueError(f"the model has no layer of class {name}; correct LAYERS in {Path(__file__).name}")
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def inductor(model: Any, budget: float | None) -> Callable[..., Any]:
    """The model compiled by Inductor; the budget holds for this process."""
    import torch
    import torch._functorch.config as config

    if budget is not None:
        config.activation_memory_budget = budget
    return torch.compile(model)


def ours(case: Any, cap: int | None) -> tuple[Callable[..., Any], Row]:
    """The model compiled by optfuse within a cap in bytes, and what is predicted of it."""
    import optfuse

    start = time.perf_counter()
    chosen = {"time_limit": 10} if cap is None else {"time_limit": 10, "peak_memory": cap}
    options = optfuse.SolveOptions.from_mapping(chosen)
    step = optfuse.optimize(case.model, case.args, case.kwargs, train=True, saving="search", options=options)
    found = step.saving
    assert found is not None
    row = {
        "optimize_s": time.perf_counter() - start,
        "cap_mib": None if cap is None else cap / MIB,
        "chosen": found.chosen.name,
        "gap": found.gap,
        "predicted_ms": found.chosen.objective / 1e9,
        "predicted_mib": found.chosen.peak_bytes / MIB,
        "saved_mib": found.chosen.saved_bytes / MIB,
        "fewest_mib": found.proposals[0].peak_bytes / MIB,
    }
    return step.compile(cudagraphs=False), row


def in_process(point: Point, size: str, cap: int | None, limit: float) -> Row:
    """The row of a point, measured in a process of its own; if that fails, one with the error."""
    row: Row = {"model": point.model, "system": point.system, "setting": point.setting, "size": size}
    with tempfile.TemporaryDirectory(prefix="optfuse-fronts-") as folder:
        task = json.dumps([point.model, point.system, point.setting, size, cap, str(Path(folder) / "row.json")])
        own = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        command = [sys.executable, str(Path(__file__).resolve()), "--one", task]
        try:
            done = subprocess.run(
                command, env={**os.environ, **own}, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return row | {"error": f"not done after {limit:g} s"}
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return row | {"error": lines[-1][:300]}
        return row | json.loads((Path(folder) / "row.json").read_text())


def run(arguments: argparse.Namespace) -> None:
    """Measure what is asked for and not there yet."""
    start = time.monotonic()
    known = {Point.of(row): row for row in read_rows(arguments.out) if row["size"] == arguments.size}
    for point in (
        point for model in arguments.models.split(",") for point in points(model, arguments.shares, arguments.budgets)
    ):
        if "error" not in known.get(point, {"error": ""}):
            continue
        if time.monotonic() - start > arguments.total:
            print(f"{point.model}, {point.system}: not begun after {arguments.total:g} s", file=sys.stderr)
            continue
        cap = None
        if point.system == "optfuse" and point.setting is not None:
            free = known.get(Point(point.model, "optfuse"), {"error": ""})
            if "error" in free:
                print(f"{point.model}, optfuse {point.setting}: no cap without the free step", file=sys.stderr)
                continue
            cap = int(point.setting * free["fewest_mib"] * MIB)
        known[point] = row = in_process(point, arguments.size, cap, arguments.limit)
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, of each point the last; none if there is no file."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return list({(row["size"], Point.of(row)): row for row in rows}.values())


def table(rows: Sequence[Row]) -> str:
    """A Markdown table of every row, by model and time, with the failures below it."""
    lines = [
        "| model | system | ms | peak MiB | predicted ms | predicted MiB | its error |",
        "|---|---|---|---|---|---|---|",
    ]
    measured = [row for row in rows if "error" not in row]
    for row in sorted(measured, key=lambda row: (row["model"], row["ms"])):
        peers = [peer for peer in measured if peer["model"] == row["model"] and peer is not row]
        beaten = any(peer["ms"] <= row["ms"] and peer["peak_mib"] <= row["peak_mib"] for peer in peers)
        system = row["system"] + ("" if row["setting"] is None else f" {row['setting']:g}") + ("" if beaten else " *")
        cells = [row["model"], system, f"{row['ms']:,.2f}", f"{row['peak_mib']:,.0f}"]
        if "predicted_ms" in row:
            off = f"{row['predicted_mib'] / row['peak_mib'] - 1:+.1%}" if row["peak_mib"] else ""
            cells += [f"{row['predicted_ms']:,.2f}", f"{row['predicted_mib']:,.0f}", off]
        else:
            cells += ["", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    failed = [row for row in rows if "error" in row]
    lines += [f"\n{row['model']}, {row['system']} {row['setting']}: {row['error']}" for row in failed]
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", default=",".join(LAYERS), help="names of files in models/, with commas")
    parser.add_argument("--out", type=Path, default=Path("fronts.jsonl"))
    parser.add_argument("--size", choices=("bench", "full", "small"), default="bench")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.9, 0.8, 0.7])
    parser.add_argument("--budgets", type=float, nargs="*", default=[1.0, 0.6, 0.3, 0.0])
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one measurement")
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds after which none is begun")
    parser.add_argument("--table", type=Path, metavar="ROWS", help="print the table of a file, measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        model, system, setting, size, cap, path = json.loads(arguments.one)
        Path(path).write_text(json.dumps(measure(Point(model, system, setting), size, cap)))
        return
    if arguments.table is not None:
        if not arguments.table.is_file():
            parser.error(f"{arguments.table}: no such file; measure first, with --out")
        print(table(read_rows(arguments.table)))
        return
    unknown = [name for name in arguments.models.split(",") if name not in LAYERS]
    if unknown:
        parser.error(f"no layers are known of {', '.join(unknown)}; known: {', '.join(LAYERS)}")
    run(arguments)
    print(table(read_rows(arguments.out)))


if __name__ == "__main__":
    main()
