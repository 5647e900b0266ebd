"""One plan for a range of sizes on the clock: at five sizes, against a plan of one size and Inductor's dynamic code.

    python benchmarks/sizes.py [NAME[,NAME...]] --out ROWS.jsonl [--train NAME[,NAME...]] [--size bench|small]
                               [--layers N] [--processes N] [--patience S] [--total S]
    python benchmarks/sizes.py --table ROWS.jsonl [MORE.jsonl...]

NAME is a model file's. The length of a language model changes, the batch of others: the example's size (the hint; half
of the example's length), then a quarter, a half, three halves and twice of it. "static" is ``torch.compile`` with
``dynamic=False`` at the hint, "ours" and "inductor" have ``dynamic=True`` and see the hint first. A row a system and
size: median milliseconds, seconds of the first call, graphs that Dynamo has handed over until then (another one at a
further size is a recompilation), schedules that there are, and the relative L2 distance of the results from eager's.

Each model and system has a process of its own; they compile side by side, and one is timed at a time. On the CPU the
times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[1] / "models"
NINE = "gpt2 bert llama t5 vit convnext swin resnet mobilenetv2".split()
#: Models whose length changes.
LANGUAGE = ("gpt2", "bert", "llama", "t5")
SYSTEMS = ("ours", "inductor", "static")
SHARES = (1.0, 0.25, 0.5, 1.5, 2.0)
#: Fields of a configuration that hold a number of layers.
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "num_decoder_layers")

Row = dict[str, Any]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Task:
    """One model under one system."""

    model: str
    system: str
    train: bool = False
    size: str = "bench"
    layers: int = 2


def main() -> None:
    """Measure, or print the table of rows that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="?", default=",".join(NINE))
    parser.add_argument("--out", type=Path, default=Path("sizes.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--train", default="")
    parser.add_argument("--size", default=Task.size)
    parser.add_argument("--layers", type=int, default=Task.layers)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--patience", type=float, default=600.0)
    parser.add_argument("--total", type=float, default=3600.0)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task is not None:
        measure(Task(**json.loads(given.task)), given.out)
        return
    if given.table:
        print(table([json.loads(line) for path in given.table for line in path.read_text().splitlines()]))
        return
    pairs = [(name, False) for name in filter(None, given.names.split(","))]
    pairs += [(name, True) for name in filter(None, given.train.split(","))]
    tasks = [Task(name, system, train, given.size, given.layers) for name, train in pairs for system in SYSTEMS]
    run(tasks, given.out, given.processes, given.patience, given.total)
    if given.out.exists():
        print(table([json.loads(line) for line in given.out.read_text().splitlines()]))


def run(tasks: Sequence[Task], out: Path, processes: int, patience: float, total: float) -> None:
    """Each task in a process of its own, which adds its rows to ``out`` as they come."""
    begun, waiting, running = time.monotonic(), list(tasks), dict[subprocess.Popen[bytes], tuple[Task, float]]()
    while waiting or running:
        left = total - (time.monotonic() - begun)
        while waiting and len(running) < processes and left > 0:
            task = waiting.pop(0)
            command = [sys.executable, __file__, "--task", json.dumps(asdict(task)), "--out", str(out)]
            running[subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)] = (
                task,
                time.monotonic(),
            )
        if not running:
            return
        time.sleep(0.2)
        for child in list(running):
            task, start = running[child]
            late = time.monotonic() - start > patience or left < 0
            if child.poll() is None and not late:
                continue
            child.kill()
            child.wait()
            said = "not done in time" if late else f"exit {child.returncode}"
            print(f"{task.model:12} {'training' if task.train else 'inference':9} {task.system:8} {said}", flush=True)
            del running[child]


def measure(task: Task, out: Path) -> None:
    """Add a row a size to ``out``."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    row: Row = {"model": task.model, "system": task.system, "train": task.train}
    try:
        model, inputs, dims, hint = made(task, device)
        backend = "inductor" if task.system == "inductor" else "optfuse"
        fast = torch.compile(model, backend=backend, dynamic=task.system != "static")
        for share in SHARES[:1] if task.system == "static" else SHARES:
            size = max(2, int(hint * share))
            _add(out, {**row, "size": size, **_at_size(model, fast, resized(inputs, dims, size), task.train, out)})
    except Exception as error:
        traceback.print_exc()
        _add(out, {**row, "error": repr(error)[:300]})


def _add(out: Path, row: Row) -> None:
    with out.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def _at_size(model: Any, fast: Any, inputs: Call, train: bool, out: Path) -> Row:
    import torch
    from torch._dynamo.utils import counters

    import optfuse

    wanted = results(model, model, inputs, train)
    start = time.perf_counter()
    found = results(fast, model, inputs, train)
    first = time.perf_counter() - start
    apart = distance(found, wanted)
    del found, wanted

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(train):
            result = output(fast(*inputs[0], **inputs[1]))
        if train:
            result.backward()

    with alone(out):
        ms = median_ms(step)
    graphs = optfuse.compiled_graphs()
    return {
        "ms": ms,
        "first_s": round(first, 2),
        "graphs": counters["stats"]["unique_graphs"],
        "schedules": sum(not graph.why_not for graph in graphs),
        "left": [f"{graph.name}: {graph.why_not}" for graph in graphs if graph.why_not],
        "distance": apart,
    }


def made(task: Task, device: str) -> tuple[Any, Call, dict[int | str, int], int]:
    """A model, its inputs, which dimension of each input changes, and the hint."""
    import torch

    from optfuse.compiler.frontend.zoo import load_model_file

    entry = load_model_file(MODELS / f"{task.model}.py")
    config = entry.module.CONFIGS[task.size]
    entry.module.CONFIGS[task.size] = {
        **config, **{depth: min(task.layers, config[depth]) for depth in DEPTHS if depth in config}
    }  # fmt: skip
    model = entry.model(task.size, entry.dtype).to(device).train(task.train).requires_grad_(task.train)  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):  # noqa: SLF001 - the base has no public name
            module.p = 0.0
    args, kwargs = entry.inputs(task.size, entry.dtype, train=task.train)  # type: ignore[arg-type]
    tensors = {key: value for key, value in (*enumerate(args), *kwargs.items()) if isinstance(value, torch.Tensor)}
    dims = {key: 1 if task.model in LANGUAGE else 0 for key in tensors}
    hint = (
        next(iter(tensors.values())).shape[1] // 2 if task.model in LANGUAGE else next(iter(tensors.values())).shape[0]
    )
    moved = tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in args)
    return model, (moved, {k: v.to(device) if k in tensors else v for k, v in kwargs.items()}), dims, hint


def resized(inputs: Call, dims: Mapping[int | str, int], size: int) -> Call:
    """The inputs with another size of these dimensions: what they hold is repeated."""
    import torch

    def other(key: int | str, value: Any) -> Any:
        if key not in dims:
            return value
        return value.index_select(dims[key], torch.arange(size, device=value.device) % value.shape[dims[key]])

    args, kwargs = inputs
    return tuple(other(k, x) for k, x in enumerate(args)), {key: other(key, x) for key, x in kwargs.items()}


def output(result: Any) -> Any:
    """The first tensor that a model returns: the loss, where there is one."""
    import torch
    from torch.utils import _pytree

    return next(x for x in _pytree.tree_leaves(result) if isinstance(x, torch.Tensor))


def results(call: Any, owner: Any, inputs: Call, train: bool) -> list[Any]:
    """The first result, and the gradients of a training step."""
    import torch

    owner.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(train):
        result = output(call(*inputs[0], **inputs[1]))
    if not train:
        return [result.clone()]
    result.backward()
    found = [p.grad for p in owner.parameters() if p.grad is not None]
    owner.zero_grad(set_to_none=True)
    return [result.detach().clone(), *found]


def distance(found: Sequence[Any], reference: Sequence[Any]) -> float:
    """The relative L2 distance of all tensors together."""
    apart = sum(float((a.float() - b.float()).square().sum()) for a, b in zip(found, reference, strict=True))
    whole = sum(float(b.float().square().sum()) for b in reference)
    return math.sqrt(apart / max(whole, 1e-30))


def median_ms(step: Callable[[], Any]) -> float:
    """Median milliseconds, nothing waiting in between, the least of two rounds."""
    import statistics
    from itertools import pairwise

    import torch

    if not torch.cuda.is_available():
        start = time.perf_counter()
        step()
        return round(1e3 * (time.perf_counter() - start), 3)
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = max(8, min(40, int(0.15 / (time.perf_counter() - start))))
    rounds = []
    for _ in range(2):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        for event in events[:-1]:
            event.record()
            step()
        events[-1].record()
        torch.cuda.synchronize()
        rounds.append(statistics.median(a.elapsed_time(b) for a, b in pairwise(events)))
    return round(min(rounds), 3)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No other process of this run is timed meanwhile."""
    import fcntl

    with out.with_suffix(".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def table(rows: Sequence[Row]) -> str:
    """A line a model and size: milliseconds, the ratios to the plan of one size and to Inductor, and what it took."""
    lines = [f"{'model':12} {'':9} {'size':>5} {'static':>8} {'ours':>8} {'inductor':>8}  ours/static  inductor/ours  "
             "first calls s  graphs  schedules"]  # fmt: skip
    kinds = dict.fromkeys((row["model"], row["train"]) for row in rows)
    ratios: dict[bool, list[float]] = {}
    for name, train in kinds:
        own = [row for row in rows if (row["model"], row["train"]) == (name, train)]
        by = {(row["system"], row["size"]): row for row in own if "size" in row}
        for size in dict.fromkeys(size for _, size in by):
            static, ours, other = (by.get((system, size), {}) for system in ("static", "ours", "inductor"))
            if "ms" in ours and "ms" in other:
                ratios.setdefault(train, []).append(other["ms"] / ours["ms"])
            firsts = "/".join(str(row.get("first_s", "-")) for row in (static, ours, other))
            left = "; ".join(ours.get("left", []))[:80]
            lines.append(
                f"{name:12} {'training' if train else 'inference':9} {size:5} {_ms(static)} {_ms(ours)} {_ms(other)}  "
                f"{_ratio(ours, static):>11}  {_ratio(other, ours):>13}  {firsts:>13}  "
                f"{ours.get('graphs', '-')}/{other.get('graphs', '-')}  {ours.get('schedules', '-')}  {left}"
            )
        lines += [f"{name:12} {row['system']}: {row['error']}" for row in own if "error" in row]
    for train, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        kind = "training" if train else "inference"
        lines.append(f"{kind}: {len(found)} rows, inductor/ours {mean:.2f} in geometric mean, least {min(found):.2f}")
    return "\n".join(lines)


def _ms(row: Row) -> str:
    return f"{row['ms']:8.3f}" if "ms" in row else f"{'-':>8}"


def _ratio(one: Row, other: Row) -> str:
    return f"{one['ms'] / other['ms']:.3f}" if "ms" in one and "ms" in other else "-"


if __name__ == "__main__":
    main()
