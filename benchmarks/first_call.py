"""Seconds of a process's first call, and the host's microseconds of later ones: eager, Inductor, optfuse.

    python benchmarks/first_call.py models/gpt2.py [MORE...] --out ROWS.jsonl [--size bench] [--processes N] [--total S]
    python benchmarks/first_call.py --table ROWS.jsonl

Each of a model's rows, inference and a training step with the loss outside of the model, is called by
``torch.compile`` in two processes after each other, with one folder for all caches: the first process finds it empty
(cold), the second one finds what the first has left (warm). Before the call, each has run the model in eager execution
once, so that imports of the model's own and the set-up of CUDA are not counted; imports of the compiler's are.

The host's time is that from the beginning of a call to its return while the GPU has nothing to do: guards, autograd
and launches. It is the median of 20 calls, in the warm process; of a training step, forward, backward and the loss.
``optfuse-plain`` is optfuse without CUDA graphs, and ``inductor-graphs`` Inductor's reduce-overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SYSTEMS = ("inductor", "inductor-graphs", "optfuse", "optfuse-plain")
CALLS = 20
Row = dict[str, Any]


def main() -> None:
    """Measure, or print the table of rows that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("first_call.jsonl"))
    parser.add_argument("--size", default="bench")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--total", type=float, default=3600.0)
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        print("ROW" + json.dumps(measured(**json.loads(given.child))), flush=True)
        return
    if given.table:
        print(table([json.loads(line) for path in given.table for line in path.read_text().splitlines()]))
        return
    end = time.monotonic() + given.total
    tasks = [(path, train, system) for path in given.models for train in (False, True) for system in SYSTEMS]
    with ThreadPoolExecutor(given.processes) as pool:
        for row in pool.map(lambda task: both(*task, given.size, end), tasks):
            with given.out.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            print(row, flush=True)


def both(path: str, train: bool, system: str, size: str, end: float) -> Row:
    """The row of one system: a cold process, and a warm one."""
    row: Row = {"model": Path(path).stem, "train": train, "system": system}
    with tempfile.TemporaryDirectory(prefix="optfuse-first-call-") as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "XDG_CACHE_HOME": "user"}
        env = {**os.environ, **{key: f"{folder}/{name}" for key, name in caches.items()}}
        task = json.dumps({"path": path, "train": train, "system": system, "size": size})
        for state in ("cold", "warm"):
            if time.monotonic() > end:
                return {**row, "error": "not begun: no time was left"}
            command = [sys.executable, __file__, "--child", task]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            found = [json.loads(line[3:]) for line in done.stdout.splitlines() if line.startswith("ROW")]
            if not found:
                return {**row, "error": done.stderr[-400:]}
            row |= {f"{state}_s": found[0]["first_s"], "eager_s": found[0]["eager_s"]}
            row |= {key: found[0][key] for key in ("host_us", "eager_host_us", "tensors")}
    return row


def measured(path: str, train: bool, system: str, size: str) -> Row:
    """Seconds of the first call in this process, and the host's microseconds of later ones."""
    import torch

    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    entry = runpy.run_path(path)
    model = entry["model"](size).to(device).train(train)
    args, kwargs = torch.utils._pytree.tree_map_only(  # noqa: SLF001 - torch's name for it
        torch.Tensor, lambda x: x.to(device), entry["inputs"](size)
    )

    def step(call: Any) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        if not train:
            with torch.no_grad():
                call(*args, **kwargs)
            return
        model.zero_grad(set_to_none=True)
        results = torch.utils._pytree.tree_leaves(dict(call(*args, **kwargs)))  # noqa: SLF001
        next(x for x in results if isinstance(x, torch.Tensor)).float().mean().backward()

    def called(call: Any) -> float:
        synchronize()
        start = time.perf_counter()
        step(call)
        return time.perf_counter() - start

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def first(call: Any) -> float:
        start = time.perf_counter()
        called(call)
        synchronize()
        return time.perf_counter() - start

    def host_us(call: Any) -> float:
        for _ in range(24):  # until it is decided whether there are CUDA graphs
            called(call)
            synchronize()
        return round(1e6 * statistics.median(called(call) for _ in range(CALLS)), 1)

    ways: dict[str, dict[str, Any]] = {
        "inductor": {},
        "inductor-graphs": {"mode": "reduce-overhead"},
        "optfuse": {"backend": "optfuse"},
        "optfuse-plain": {"backend": "optfuse", "options": {"cudagraphs": False}},
    }
    first(model)
    again = first(model)
    compiled = torch.compile(model, **ways[system])
    seconds = first(compiled)
    return {
        "eager_s": round(again, 3),
        "first_s": round(seconds, 2),
        "eager_host_us": host_us(model),
        "host_us": host_us(compiled),
        "tensors": sum(1 for _ in model.parameters()) + sum(1 for _ in model.buffers()),
    }


def table(rows: Sequence[Row]) -> str:
    """A line a model and kind of call, as Markdown."""
    head = ["model", *(f"{name} cold, warm s" for name in SYSTEMS[::2]), "tensors", "host us: eager", *SYSTEMS]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    keys = dict.fromkeys((row["model"], row["train"]) for row in rows)
    for model, train in keys:
        by = {row["system"]: row for row in rows if (row["model"], row["train"]) == (model, train)}
        seconds = [
            f"{by[name].get('cold_s', '-')}, {by[name].get('warm_s', '-')}" for name in SYSTEMS[::2] if name in by
        ]
        known = next((row for row in by.values() if "error" not in row), {})
        host = [f"{by[name].get('host_us', '-')}" for name in SYSTEMS if name in by]
        facts = [str(known.get("tensors", "-")), str(known.get("eager_host_us", "-"))]
        lines.append(f"| {model}{' training' if train else ''} | " + " | ".join([*seconds, *facts, *host]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
