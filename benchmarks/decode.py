"""Decode steps of a Llama, a Qwen and a Mixtral over a static cache, beside eager execution and Inductor.

    python benchmarks/decode.py --out FOLDER [--rows llama-1,llama-int8-1,...|all] [--systems ...] [--total S] [--dry]

Each row is an ``optfuse bench --decode`` in a process of its own; rows compile side by side and are timed one at a
time. ``FOLDER`` gets each row's document as it grows, its log, and ``decode.jsonl`` with a line a row and system:
milliseconds of a step, milliseconds and launches on the GPU, and the milliseconds that the weights and the cache take
at the rate of a copy. Systems are those of ``optfuse bench``; inductor-max-autotune tries kernels on the GPU while
others are timed, so run it by itself. ``--dry`` runs small models without a GPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path
from typing import Any

from side_by_side import Job, Row, add_row, run_jobs

MODELS = ("llama", "qwen3", "mixtral")
BATCHES = (1, 8, 32, 128)
#: The rows that say most.
FEW = "llama-1,llama-32,qwen3-1,qwen3-32,mixtral-1,llama-int8-1"
#: Rows of a dry run: larger batches take the interpreter minutes.
DRY = "llama-1,qwen3-1,mixtral-1,llama-int8-1"
SYSTEMS = "eager,inductor-graphs,optfuse-compile-graphs,optfuse-compile,inductor"
CACHE = 1024
PEERS = ("eager", "inductor", "inductor-graphs", "inductor-max-autotune")


@dataclass(frozen=True)
class Point:
    """A row of the grid: a model, whether its weights are int8, and the sequences of a step."""

    model: str
    int8: bool
    batch: int

    @property
    def name(self) -> str:
        """The name, such as "llama-int8-1"."""
        return f"{self.model}{'-int8' * self.int8}-{self.batch}"

    @property
    def path(self) -> Path:
        """The model's file."""
        return Path(__file__).parent / "decode_models" / f"{self.model}.py"


GRID = {point.name: point for int8 in (False, True) for m in MODELS for b in BATCHES for point in [Point(m, int8, b)]}


def bytes_of(point: Point, config: dict[str, Any], cache: int) -> int:
    """The bytes that a step must read: weights of the layers and of the head, keys and values of the cache."""
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size, of_keys = config.get("head_dim", width // heads), config["num_key_value_heads"]
    attention = 2 * width * size * (heads + of_keys)
    experts = min(config.get("num_local_experts", 8), 2 * point.batch) if point.model == "mixtral" else 1
    products = config["num_hidden_layers"] * (attention + experts * 3 * width * inner) + width * config["vocab_size"]
    kept = config["num_hidden_layers"] * 2 * of_keys * size * cache * point.batch
    return products * (1 if point.int8 and point.model != "mixtral" else 2) + 2 * kept


def command(point: Point, options: argparse.Namespace) -> list[str]:
    """The bench of a row."""
    words = [sys.executable, "-m", "optfuse", "bench", str(point.path), "--decode", str(point.batch)]
    words += ["--only", options.systems, "--device", options.device, "--limit", str(options.total - options.spare)]
    words += ["--workers", "1", "--time-limit", "10", "--json", str(options.out / f"{point.name}.json")]
    words += ["--int8"] if point.int8 else []
    return words + (["--size", "small", "--cache", "32"] if options.dry else ["--cache", str(CACHE)])


def rows_of(point: Point, options: argparse.Namespace) -> list[Row]:
    """What a row's document holds: a line a system."""
    path = options.out / f"{point.name}.json"
    if not path.exists():
        return [{"row": point.name, "system": "all", "error": "nothing was measured"}]
    document = json.loads(path.read_text(encoding="utf-8"))
    copies = document["yardstick"].get("copies") or []
    size = "small" if options.dry else "full"
    moved = bytes_of(point, run_path(str(point.path))["CONFIGS"][size], 32 if options.dry else CACHE)
    rate = max((size / us for size, us in copies), default=0.0)
    floor = moved / rate / 1e3 if rate else None
    rows: list[Row] = []
    for system, found in document["rows"][0]["systems"].items():
        row: Row = {"row": point.name, "system": system, "mib": moved >> 20, "floor_ms": floor}
        if found["status"] != "ok":
            rows.append({**row, "error": found["reason"][:300]})
            continue
        figures = ("median_ms", "gpu_ms", "launches", "triton_launches", "compile_s", "predicted_ms", "note")
        check = found.get("check", {})
        judged = {"passed": check.get("passed"), "error_to_eager": check.get("distance_to_eager")}
        rows.append(row | {key: found[key] for key in figures if key in found} | judged)
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows side by side: a line a point, with the best peer over the best of ours."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = [f"| step | {' | '.join(systems)} | best peer / ours | ours on the GPU, launches | bytes take |"]
    lines += ["|---" * (len(systems) + 4) + "|"]
    for name in dict.fromkeys(row["row"] for row in rows):
        mine = {row["system"]: row for row in rows if row["row"] == name}
        ms = {system: row["median_ms"] for system, row in mine.items() if "median_ms" in row}
        ours = [system for system in ms if system.startswith("optfuse")]
        best = min(ours, key=lambda system: ms[system], default=None)
        peers = [ms[system] for system in PEERS if system in ms]
        cells = [f"{ms[s]:.3f}{' WRONG' * (mine[s]['passed'] is False)}" if s in ms else "-" for s in systems]
        ratio = f"{min(peers) / ms[best]:.2f}x" if best and peers else "-"
        gpu = f"{mine[best]['gpu_ms']:.3f}, {mine[best]['launches']}" if best and "gpu_ms" in mine[best] else "-"
        floor = next((row["floor_ms"] for row in mine.values() if row.get("floor_ms")), None)
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} | {gpu} | {f'{floor:.3f}' if floor else '-'} |")
    failed = [f"{row['row']}, {row['system']}: {row['error']}" for row in rows if "error" in row]
    return "\n".join([*lines, "", *failed])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows")
    parser.add_argument("--systems")
    parser.add_argument("--device", default="h100")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--total", type=float, default=230.0, help="seconds after which all ends")
    parser.add_argument("--spare", type=float, default=30.0, help="in the last so many seconds nothing is begun")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args(arguments)
    options.systems = options.systems or ("eager,optfuse-compile" if options.dry else SYSTEMS)
    options.rows = options.rows or (DRY if options.dry else FEW)
    options.out.mkdir(parents=True, exist_ok=True)
    points = list(GRID.values()) if options.rows == "all" else [GRID[name] for name in options.rows.split(",")]

    def job(point: Point) -> Job:
        def ended(how: str) -> None:
            print(f"{point.name}: {how}", flush=True)
            for row in rows_of(point, options):
                add_row(options.out / "decode.jsonl", row)

        return Job(command(point, options), options.out / f"{point.name}.log", ended)

    run_jobs([job(point) for point in points], options.processes, options.total, options.total)
    print(table([row for point in points for row in rows_of(point, options)]))


if __name__ == "__main__":
    main()
