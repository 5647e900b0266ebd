"""Models of transformers, timm, torchvision and others at random, as users call them: eager, Inductor, optfuse.

    python benchmarks/foreign.py NAME[,NAME...]|all|more|packages --out ROWS.jsonl [--train]
                                 [--systems eager,inductor,optfuse] [--processes N] [--patience S] [--total S]
                                 [--layers N] [--batch N] [--length N]
                                 [--numbers bfloat16|float32|autocast]
    python benchmarks/foreign.py --table ROWS.jsonl [MORE.jsonl...]

A name is ``hf:TYPE`` (a model type of transformers, as ``hf:gpt_neo``: its default width, ``--layers`` layers, at most
8 experts in each), ``timm:NAME``, ``tv:NAME``, of another package, as ``diffusers:flux``, or a file in the form of
KernelBench's problems, as ``file:PATH.py``, or a folder of them; ``foreign_models.py`` and ``foreign_packages.py`` have
the lists. Weights are random: in bfloat16, or by ``--numbers`` in float32, where TF32 is allowed, or in float32 under
autocast to bfloat16. Results are returned, and the loss of a training step is computed outside of the model. Each model
has a process of its own and ``--patience`` seconds; what fails costs itself, and its row has the error. Measured are
medians of milliseconds, milliseconds in which the GPU is busy, seconds of the first call, relative L2 errors of the
results (of the gradients, for a training step) against float32, and what became of the model's graphs. A compiled model
that is far from eager execution is compared with what Dynamo traces, executed in float32, as some models compute
something else while they are traced, and with float64, in case it is float32 that is far from it; a note says so.
Without a GPU everything runs, slowly, and no time means anything: to see that a model is made.

With more than one process, models are compiled side by side, and the others stand still while one is timed. Time again
with ``--processes 1`` what looks slow.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from foreign_models import ALL, ALL_MORE, made
from foreign_packages import PACKAGES
from side_by_side import Job, Row, add_row, alone, busy_ms, distance, join, median_ms, read_rows, run_jobs

#: Calls before one is timed; until then it is decided whether CUDA graphs pay.
WARM = 80


@dataclass(frozen=True)
class Task:
    """One model and how it is run."""

    name: str
    train: bool = False
    systems: str = "eager,inductor,optfuse"
    layers: int = 4
    batch: int = 8
    length: int = 512
    numbers: str = "bfloat16"

    @property
    def dtype(self) -> Any:
        """The type of the weights."""
        import torch

        return torch.bfloat16 if self.numbers == "bfloat16" else torch.float32


def main() -> None:
    """Measure, or print the table of rows that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="?", default="all")
    parser.add_argument("--out", type=Path, default=Path("foreign.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--systems", default=Task.systems)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--total", type=float, default=3600.0)
    for field in ("layers", "batch", "length"):
        parser.add_argument(f"--{field}", type=int, default=getattr(Task, field))
    parser.add_argument("--numbers", default=Task.numbers, choices=("bfloat16", "float32", "autocast"))
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task is not None:
        print("ROW" + json.dumps(measured(Task(**json.loads(given.task)), given.out)), flush=True)
    elif given.table:
        print(table(read_rows(*given.table)))
    else:
        lists = {"all": ALL, "more": ALL_MORE, "packages": tuple(PACKAGES)}
        names = [each for name in lists.get(given.names) or given.names.split(",") for each in _in_folder(name)]
        options = {field: getattr(given, field) for field in (f.name for f in fields(Task)[1:])}
        run([Task(name, **options) for name in names], given.out, given.processes, given.patience, given.total)


def _in_folder(name: str) -> list[str]:
    """A name by itself, or those of the files in the folder that it names."""
    folder = Path(name.removeprefix("file:"))
    return (
        [f"file:{path}" for path in sorted(folder.glob("*.py"))]
        if name.startswith("file:") and folder.is_dir()
        else [name]
    )


def run(tasks: Sequence[Task], out: Path, processes: int, patience: float, total: float) -> None:
    """Each task in a process of its own; a row is added to ``out`` as it comes."""
    run_jobs([_job(task, out) for task in tasks], processes, patience, total)


def _job(task: Task, out: Path) -> Job:
    log = out.with_name(f"{out.stem}.{re.sub('[:/]', '.', task.name)}.{'train' if task.train else 'infer'}.log")

    def ended(reason: str) -> None:
        row = _row_of(task, log.read_text(), reason)
        if "error" not in row:
            log.unlink()
        add_row(out, row)
        print(line(row), flush=True)

    return Job([sys.executable, __file__, "--task", json.dumps(asdict(task)), "--out", str(out)], log, ended)


def _row_of(task: Task, text: str, reason: str) -> Row:
    rows = [json.loads(each[3:]) for each in text.splitlines() if each.startswith("ROW")]
    return (
        rows[-1]
        if rows
        else {"model": task.name, "train": task.train, "numbers": task.numbers, "error": f"{reason}: {text[-300:]}"}
    )


def measured(task: Task, out: Path) -> Row:
    """The row of one task."""
    import torch

    import optfuse

    torch.set_float32_matmul_precision("high")
    join(out)
    row: Row = {"model": task.name, "train": task.train, "numbers": task.numbers}
    exact = replace(task, numbers="float32")
    try:
        made = made_model(task)
    except Exception as error:
        return {**row, "error": f"not built: {error!r}"[:300]}
    model, inputs = made
    reference = results(model.float(), as_type(inputs, torch.float32), exact)
    model.to(task.dtype)
    seen = {"float32": reference}
    for system in task.systems.split(","):
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        called, found = model, list[Any]()
        if system != "eager":
            called = torch.compile(model, backend=system.removesuffix("-graphs"), options=_options(system))
        try:
            start = time.perf_counter()
            found = results(called, inputs, task)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            row[f"{system}_s"] = round(time.perf_counter() - start, 1)
            row[f"{system}_error"] = distance(found, reference)
            if system == "eager":
                seen[system] = found
            with alone(out):
                row[system] = median_ms(stepped(called, inputs, task), warm=WARM)
                row[f"{system}_busy"] = busy_ms(stepped(called, inputs, task))
        except Exception as error:
            traceback.print_exc()
            row[f"{system}_failed"] = repr(error)[:300]
        graphs = optfuse.compiled_graphs()
        row["graphs"] = [(g.name, g.status, g.kernels, sum(g.library_calls.values()), g.why_not) for g in graphs]
        row["replays"] = [g.calls.replays if g.calls else 0 for g in graphs]
        print("ROW" + json.dumps(row), flush=True)  # what comes later may take too long
        if system != "eager" and row.get(f"{system}_error", 0.0) > 2 * row.get("eager_error", 0.0) + 1e-4:
            row[f"{system}_worst"] = worst(found, reference, model, task)
            row |= errors(system, found, reference, partial(traced, model, inputs, exact))
            row |= from_float64({**seen, system: found}, model, inputs, task)
    return row


def _options(system: str) -> dict[str, Any] | None:
    if not system.endswith("-graphs"):
        return None
    return {"cudagraphs": True} if system.startswith("optfuse") else {"triton.cudagraphs": True}


def device() -> str:
    """The kind of device that models run on."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def made_model(task: Task) -> tuple[Any, dict[str, Any]]:
    """A model on the GPU with its inputs by name or number; without dropout, so that errors compare."""
    import torch

    torch.manual_seed(0)
    with torch.device(device()):
        model, inputs = made(task.name, task.layers, task.batch, task.length)
    model = model.train(task.train).requires_grad_(task.train)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):  # noqa: SLF001 - the base has no public name
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    return model.to(device(), task.dtype), as_type(inputs, task.dtype)


def as_type(inputs: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """The inputs, those of floating point in another type."""
    floats = {key: value for key, value in inputs.items() if hasattr(value, "is_floating_point")}
    return inputs | {key: value.to(dtype) for key, value in floats.items() if value.is_floating_point()}


def forward(model: Any, inputs: dict[str, Any], task: Task) -> Any:
    """The tensor of floating point that a model returns, or the first of several."""
    import torch
    from torch.utils import _pytree

    positional = [value for key, value in inputs.items() if key.isdigit()]
    with torch.autocast(device(), torch.bfloat16, enabled=task.numbers == "autocast"):
        out = model(*positional, **{key: value for key, value in inputs.items() if not key.isdigit()})
    out = getattr(out, "logits", out)
    leaves = _pytree.tree_leaves(out)
    return next(x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point())


def results(model: Any, inputs: dict[str, Any], task: Task) -> list[Any]:
    """What is compared: the result, or a training step's gradients. Buffers are as before afterwards."""
    import torch

    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(1)
    if not task.train:
        with torch.no_grad():
            found = [forward(model, inputs, task).float()]
    else:
        model.zero_grad(set_to_none=True)
        forward(model, inputs, task).float().square().mean().backward()
        # a parameter that only an unread result depends on has no gradient in eager execution, zeros where traced
        known = [p for p in model.parameters() if p.requires_grad]
        found = [torch.zeros_like(p).float() if p.grad is None else p.grad.float() for p in known]
        model.zero_grad(set_to_none=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])
    return found


def traced(model: Any, inputs: dict[str, Any], task: Task) -> list[Any]:
    """What is compared, of the model as Dynamo traces it, executed in the task's type. The model's type is kept."""
    import torch

    kept = next((p.dtype for p in model.parameters()), torch.float32)
    torch.compiler.reset()
    try:
        return results(torch.compile(model.to(task.dtype), backend="eager"), as_type(inputs, task.dtype), task)
    finally:
        model.to(kept)
        torch.compiler.reset()


def worst(found: Sequence[Any], reference: Sequence[Any], model: Any, task: Task) -> list[tuple[str, float, float]]:
    """The five results that are furthest from the reference: name, distance, and norm of the reference."""
    names = [name for name, p in model.named_parameters() if p.requires_grad] if task.train else ["result"]
    apart = [(name, float((a - b).norm()), float(b.norm())) for name, a, b in zip(names, found, reference, strict=True)]
    return sorted(apart, key=lambda row: -row[1])[:5]


def errors(system: str, found: Sequence[Any], reference: Sequence[Any], trace: Callable[[], list[Any]]) -> Row:
    """The error of a system against what is traced, and the distance of that from eager execution."""
    try:
        other = trace()
    except Exception as error:
        return {"traced_failed": repr(error)[:300]}
    return {f"{system}_error": distance(found, other), "traced_apart": distance(other, reference)}


def from_float64(found: Mapping[str, Sequence[Any]], model: Any, inputs: dict[str, Any], task: Task) -> Row:
    """The errors of eager execution, of a system and of float32 itself against float64. The model's type is kept."""
    import torch

    kept = next((p.dtype for p in model.parameters()), torch.float32)
    try:
        exact = results(model.double(), as_type(inputs, torch.float64), replace(task, numbers="float32"))
    except Exception as error:  # some models name a type
        return {"float64_failed": repr(error)[:300]}
    finally:
        model.to(kept)
    return {"from_float64": {system: distance(each, exact) for system, each in found.items()}}


def stepped(model: Any, inputs: dict[str, Any], task: Task) -> Callable[[], Any]:
    """A call, or a training step with the loss outside of the model and without an optimizer."""
    import torch

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        if not task.train:
            with torch.no_grad():
                return forward(model, inputs, task)
        model.zero_grad(set_to_none=True)
        return forward(model, inputs, task).float().square().mean().backward()

    return step


def peers(row: Row) -> list[float]:
    """Milliseconds of what is not ours."""
    return [row[name] for name in ("eager", "inductor", "inductor-graphs") if isinstance(row.get(name), float)]


def ours(row: Row) -> list[float]:
    """Milliseconds of ours."""
    return [row[name] for name in ("optfuse", "optfuse-graphs") if isinstance(row.get(name), float)]


def line(row: Row) -> str:
    """One row for a person."""
    numbers = row.get("numbers", Task.numbers)
    kind = ("training" if row["train"] else "inference") + ("" if numbers == Task.numbers else f" {numbers}")
    if "error" in row:
        return f"{row['model']:32} {kind:9} {row['error'][-200:]}"
    times = "  ".join(
        f"{name} {row.get(name, '-')}" for name in ("eager", "inductor", "inductor-graphs", "optfuse", "optfuse-graphs")
    )
    ratio = f"{min(peers(row)) / min(ours(row)):.2f}" if peers(row) and ours(row) else "-"
    busy = "/".join(str(row.get(f"{name}_busy", "-")) for name in ("inductor", "optfuse"))
    errors = "/".join(f"{row.get(f'{name}_error', math.nan):.1e}" for name in ("eager", "optfuse"))
    firsts = "/".join(str(row.get(f"{name}_s", "-")) for name in ("inductor", "optfuse"))
    odd = [f"{name}: {why or status}" for name, status, _, _, why in row["graphs"] if why or status != "OPTIMAL"]
    failed = [row[key] for key in row if key.endswith("_failed")]
    if row.get("traced_apart", 0.0) > 1e-3:
        failed.append(f"what is traced is {row['traced_apart']:.1e} from eager execution in float32")
    if row.get("from_float64", {}).get("float32", 0.0) > 1e-3:
        known = ", ".join(f"{name} {error:.1e}" for name, error in row["from_float64"].items())
        failed.append(f"float32 is far from float64 ({known})")
    notes = "; ".join(odd + failed)[:300]
    return f"{row['model']:32} {kind:9} {times}  ratio {ratio}  busy {busy}  errors {errors}  first {firsts}  {notes}"


def table(rows: Sequence[Row]) -> str:
    """All rows, the slowest first, and the geometric mean."""
    timed = [row for row in rows if "error" not in row and peers(row) and ours(row)]
    timed.sort(key=lambda row: min(peers(row)) / min(ours(row)))
    rest = [row for row in rows if row not in timed]
    lines = [line(row) for row in (*timed, *rest)]
    for train in (False, True):
        ratios = [min(peers(row)) / min(ours(row)) for row in timed if row["train"] is train]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            kind = "training" if train else "inference"
            lines.append(f"{kind}: {len(ratios)} rows, geometric mean {mean:.2f}, least {min(ratios):.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
