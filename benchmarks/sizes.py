"""One plan for a range of sizes on the clock: at five sizes, against a plan of one size and Inductor's dynamic code.

    python benchmarks/sizes.py [NAME[,NAME...]] --out ROWS.jsonl [--train NAME[,NAME...]] [--size bench|small]
                               [--layers N] [--systems ours,static,inductor] [--marked] [--processes N] [--patience S]
                               [--total S] [--models FOLDER]
    python benchmarks/sizes.py --table ROWS.jsonl [MORE.jsonl...]

NAME is a model file's. The length of a language model changes, the batch of others: the example's size (the hint; half
of the example's length), then a quarter, a half, three halves and twice of it. "ours" and "inductor" have
``dynamic=True`` (``--marked``: no other dimension may change) and see the hint first; "static" is ours with
``dynamic=False`` at the hint. A row a system and size: median milliseconds, milliseconds in which the GPU is busy,
seconds of the first call, graphs that Dynamo has handed over until then (another one at a further size is a
recompilation), schedules that there are, the relative L2 distance of the results from eager's, and how calls were
served until then. The logs say why a schedule does not serve a size.

Each system has a process for each model; they compile side by side, and one is timed at a time. What is not done after
``--total`` seconds is left out, and the table says so. On the CPU the times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from side_by_side import Job, Row, add_row, alone, busy_ms, distance, join, median_ms, read_rows, run_jobs

NINE = "gpt2 bert llama t5 vit convnext swin resnet mobilenetv2".split()
#: Models whose length changes.
LANGUAGE = ("gpt2", "bert", "llama", "t5")
SYSTEMS = ("ours", "static", "inductor")
SHARES = (1.0, 0.25, 0.5, 1.5, 2.0)
#: Steps before those that are timed: by then it is decided whether CUDA graphs shorten a step.
WARM = 48
#: Rounds that are timed; the least is taken. Steps below a millisecond follow the host's load.
ROUNDS = 5
#: Fields of a configuration that hold a number of layers.
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "num_decoder_layers")

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Task:
    """One model under one system."""

    model: str
    system: str
    train: bool = False
    size: str = "bench"
    layers: int = 2
    marked: bool = False
    models: str = str(Path(__file__).resolve().parents[1] / "models")


def main() -> None:
    """Measure, or print the table of rows that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="?", default=",".join(NINE))
    parser.add_argument("--out", type=Path, default=Path("sizes.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--train", default="")
    parser.add_argument("--size", default=Task.size)
    parser.add_argument("--layers", type=int, default=Task.layers)
    parser.add_argument("--marked", action="store_true")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--models", default=Task.models)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--patience", type=float, default=600.0)
    parser.add_argument("--total", type=float, default=3600.0)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task is not None:
        measure(Task(**json.loads(given.task)), given.out)
        return
    if given.table:
        print(table(read_rows(*given.table)))
        return
    pairs = [(name, False) for name in filter(None, given.names.split(","))]
    pairs += [(name, True) for name in filter(None, given.train.split(","))]
    options = {key: getattr(given, key) for key in ("size", "layers", "marked", "models")}
    tasks = [Task(name, system, train, **options) for name, train in pairs for system in given.systems.split(",")]
    run(tasks, given.out, given.processes, given.patience, given.total)
    print(table(read_rows(given.out)))


def run(tasks: Sequence[Task], out: Path, processes: int, patience: float, total: float) -> None:
    """Each task in a process of its own, which adds its rows to ``out`` as they come."""
    out.parent.mkdir(parents=True, exist_ok=True)
    run_jobs([_job(task, out) for task in tasks], processes, patience, total)


def _job(task: Task, out: Path) -> Job:
    kind = "training" if task.train else "inference"
    log = out.with_name(f"{out.stem}.{task.model}.{kind}.{task.system}.log")
    begun = time.monotonic()

    def ended(reason: str) -> None:
        print(f"{time.monotonic() - begun:4.0f} s {task.model:12} {kind:9} {task.system:8} {reason}", flush=True)

    return Job([sys.executable, __file__, "--task", json.dumps(asdict(task)), "--out", str(out)], log, ended)


def measure(task: Task, out: Path) -> None:
    """Add a row a system and size to ``out``."""
    import torch

    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message).1000s")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    join(out)
    row: Row = {"model": task.model, "train": task.train}
    model, inputs, dims, hint = made(task, "cuda" if torch.cuda.is_available() else "cpu")
    dynamic = None if task.marked else task.system != "static"
    fast = torch.compile(model, backend="inductor" if task.system == "inductor" else "optfuse", dynamic=dynamic)
    for share in SHARES[:1] if task.system == "static" else SHARES:
        size = max(2, int(hint * share))
        try:
            given = resized(inputs, dims, size)
            if task.marked and task.system != "static":
                mark(given, dims)
            found = _at_size(model, fast, given, task.train, out) | _made_so_far()
        except Exception as error:
            traceback.print_exc()
            found = {"error": repr(error)[:300]}
        add_row(out, {**row, "system": task.system, "size": size, "share": share, **found})


def _made_so_far() -> dict[str, int]:
    """Graphs that Dynamo has handed over in this process, and schedules."""
    from torch._dynamo.utils import counters

    import optfuse

    scheduled = sum(not graph.why_not for graph in optfuse.compiled_graphs())
    return {"graphs": counters["stats"]["unique_graphs"], "schedules": scheduled}


def _at_size(model: Any, fast: Any, inputs: Call, train: bool, out: Path) -> Row:
    import torch

    import optfuse

    wanted = results(model, model, inputs, train)
    start = time.perf_counter()
    found = results(fast, model, inputs, train)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
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
        ms = median_ms(step, warm=WARM, rounds=ROUNDS)
        busy = busy_ms(step)
    left = [f"{graph.name}: {graph.why_not}" for graph in optfuse.compiled_graphs() if graph.why_not]
    calls = [asdict(graph.calls) for graph in optfuse.compiled_graphs() if graph.calls is not None]
    return {"ms": ms, "busy": busy, "first_s": round(first, 2), "left": left, "distance": apart, "calls": calls}


def made(task: Task, device: str) -> tuple[Any, Call, dict[int | str, int], int]:
    """A model, its inputs, which dimension of each input changes, and the hint."""
    import torch

    from optfuse.compiler.frontend.zoo import load_model_file

    entry = load_model_file(Path(task.models) / f"{task.model}.py")
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


def mark(inputs: Call, dims: Mapping[int | str, int]) -> None:
    """Let these dimensions change, and no others."""
    import torch

    for key, value in (*enumerate(inputs[0]), *inputs[1].items()):
        if key in dims:
            torch._dynamo.mark_dynamic(value, dims[key])  # noqa: SLF001 - its public face


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


def table(rows: Sequence[Row]) -> str:
    """A line a model: at the hint against the plan of one size, at five sizes against Inductor, and what it took."""
    shares = "/".join(f"{share:g}" for share in SHARES)
    lines = [f"{'model':12} {'':9} {'hint':>5} {'static':>8} {'ours':>8} ours/static busy  inductor/ours at {shares:27}"
             " first calls s  graphs  schedules  distance"]  # fmt: skip
    ratios: dict[bool, list[float]] = {}
    for name, train in dict.fromkeys((row["model"], row["train"]) for row in rows):
        own = [row for row in rows if (row["model"], row["train"]) == (name, train)]
        by = {(row["system"], row["share"]): row for row in own if "ms" in row}
        static, ours, other = (by.get((system, 1.0), {}) for system in ("static", "ours", "inductor"))
        last = max((row for (system, _), row in by.items() if system == "ours"), key=lambda x: x["graphs"], default={})
        against = [(by.get(("inductor", share), {}), by.get(("ours", share), {})) for share in SHARES]
        ratios.setdefault(train, []).extend(a["ms"] / b["ms"] for a, b in against if a and b)
        lines.append(
            f"{name:12} {_kind(train)} {ours.get('size', '-'):>5} {_ms(static)} {_ms(ours)} "
            f"{_ratio(ours, static):>11} {_ratio(ours, static, 'busy'):>5} "
            f"{'  '.join(f'{_ratio(a, b):>6}' for a, b in against):44} "
            f"{'/'.join(str(row.get('first_s', '-')) for row in (ours, other)):>13}  "
            f"{last.get('graphs', '-'):>6}  {last.get('schedules', '-'):>9}  "
            f"{max((row['distance'] for row in by.values()), default=math.nan):.1e}"
        )
        lines += [f"    {row['system']} at {row['size']}: {row['error']}" for row in own if "error" in row]
        lines += [f"    {reason}"[:160] for reason in dict.fromkeys(last.get("left", []))]
    for train, found in ratios.items():
        if found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            lines.append(
                f"{_kind(train)}: {len(found)} sizes, inductor/ours {mean:.2f} in geometric mean, "
                f"least {min(found):.2f}"
            )
    return "\n".join(lines)


def _kind(train: bool) -> str:
    return "training " if train else "inference"


def _ms(row: Row) -> str:
    return f"{row['ms']:8.3f}" if row else f"{'-':>8}"


def _ratio(one: Row, other: Row, key: str = "ms") -> str:
    return f"{one[key] / other[key]:.3f}" if one.get(key) and other.get(key) else "-"


if __name__ == "__main__":
    main()
