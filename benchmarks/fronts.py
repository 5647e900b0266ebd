"""Time and memory of a training step: ours under caps, Inductor's, checkpointed layers, eager. Rows and a table.

    python benchmarks/fronts.py gpt2,bert,resnet --out FRONTS.jsonl [--size bench] [--shares 0.9 0.75]
                                [--caps gpt2:2742,3330 bert:3327,4400] [--budgets 1.0 0.6 0.3 0.0]
                                [--groups ours,inductor,checkpoint] [--jobs N] [--total S]
    python benchmarks/fronts.py --table FRONTS.jsonl

A step is forward with the loss inside of the model, and backward; no optimizer. Measured are the median of its
milliseconds and the peak of ``torch.cuda.max_memory_allocated``, without CUDA graphs. The groups of points of a model:

- ours: optfuse without a cap, with caps of each of the shares of the predicted peak of torch's own choice of what to
  save, and the gradients under the last but one of these beside float32's; predicted figures stand beside measured
  ones. A model that ``--caps`` names has those caps, in MiB, in place of the shares, and its gradients under the
  lowest;
- inductor: with ``torch._functorch.config.activation_memory_budget`` at each of the budgets;
- checkpoint: Inductor with each layer in ``torch.utils.checkpoint``;
- eager: eager, plain and with each layer in ``torch.utils.checkpoint``.

Each group of a model has a process of its own, ``--jobs`` of them side by side; one at a time measures. A point that
fails costs itself, and its row has the error. After ``--total`` seconds no point is begun and what runs is ended. A row
is added to FRONTS.jsonl as it comes, and one that is there without an error is not measured again. The table marks with
* the points that no other of their model beats in both. Below it, ours are compared with each point of Inductor: at no
more time, by the memory of the step beyond what was held before it; and at no more memory, by time.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.front_comparison import Row, comparison

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "models").is_dir())
MIB = 1 << 20
#: A model's layers, by the name of their class.
LAYERS = {
    "gpt2": "GPT2Block",
    "bert": "BertLayer",
    "vit": "ViTLayer",
    "t5": "T5Block",
    "llama": "LlamaDecoderLayer",
    "swin": "SwinLayer",
    "resnet": "ResNetBottleNeckLayer",
    "convnext": "ConvNextLayer",
    "mobilenetv2": "MobileNetV2InvertedResidual",
}
GROUPS = ("ours", "inductor", "checkpoint", "eager")


@dataclass(frozen=True)
class Point:
    """One measurement.

    ``setting``: Inductor's budget, or our cap: in MiB if the system is called "optfuse-capped", else as a share of the
    free step's peak. None for none.
    """

    model: str
    system: str
    setting: float | None = None

    @staticmethod
    def of(row: Row) -> Point:
        """The measurement that made a row."""
        return Point(row["model"], row["system"], row["setting"])


def points(
    model: str, group: str, shares: Sequence[float], budgets: Sequence[float], caps: Sequence[float] = ()
) -> Iterator[Point]:
    """What a group measures of a model, in order; optfuse without a cap comes before its caps, which follow from it.

    ``caps``: in MiB, in place of the shares.
    """
    match group:
        case "ours" if caps:
            yield Point(model, "optfuse")
            for cap in caps:
                yield Point(model, "optfuse-capped", cap)
            yield Point(model, "optfuse-capped-gradients", min(caps))
        case "ours":
            yield Point(model, "optfuse")
            for share in shares:
                yield Point(model, "optfuse", share)
            for share in shares[-2:-1] or shares[:1]:
                yield Point(model, "optfuse-gradients", share)
        case "inductor":
            for budget in budgets:
                yield Point(model, "inductor", budget)
        case "checkpoint":
            yield Point(model, "inductor-checkpoint")
        case _:
            yield from (Point(model, system) for system in ("eager", "eager-checkpoint"))


def measure(point: Point, size: str, cap: int | None) -> Row:
    """Measure one point in this process."""
    import torch

    from optfuse.lab.bench.meter import meter
    from optfuse.lab.bench.records import Settings, Task
    from optfuse.lab.bench.systems import load_case

    torch.set_float32_matmul_precision("high")
    on = meter()
    path = str(ROOT / "models" / f"{point.model}.py")
    torch.manual_seed(0)
    case = load_case(Task(path, point.model, True, ()), Settings(size=size, loss="inside"), on.device)
    start = time.perf_counter()
    row: Row = {"torch": torch.__version__, "held_mib": on.allocated() / MIB}
    if point.system.endswith("-checkpoint"):
        checkpoint_layers(case.model, LAYERS[point.model])
    if point.system.endswith("-gradients"):
        return row | gradients(case, cap, on)
    if point.system.startswith("optfuse"):
        call, predicted = ours(case, cap)
        row |= predicted
    elif point.system.startswith("inductor"):
        call = inductor(case.model, point.setting)
    else:
        call = case.model
    step = partial(case.run, call)
    step()
    on.synchronize()
    row["compile_s"] = time.perf_counter() - start
    with on.alone():
        step()
        times = on.times(step, 0.7)
        peak = on.peak(step)[0]
    return row | {"ms": times.median, "low_ms": times.low, "high_ms": times.high, "peak_mib": peak / MIB}


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

    torch._dynamo.reset()  # noqa: SLF001 - torch's name for it
    config.activation_memory_budget = 1.0 if budget is None else budget
    return torch.compile(model)


def ours(case: Any, cap: int | None) -> tuple[Callable[..., Any], Row]:
    """The model compiled by optfuse within a cap in bytes, and what is predicted of it."""
    import optfuse

    start = time.perf_counter()
    chosen = {"time_limit": 10, "workers": 2} | ({} if cap is None else {"peak_memory": cap})
    options = optfuse.SolveOptions.from_mapping(chosen)
    step = optfuse.optimize(case.model, case.args, case.kwargs, train=True, saving="search", options=options)
    found = step.saving
    assert found is not None
    again = () if found.choice is None else found.choice.again
    row = {
        "optimize_s": time.perf_counter() - start,
        "cap_mib": None if cap is None else cap / MIB,
        "chosen": found.chosen.name,
        "gap": found.gap,
        "predicted_ms": found.chosen.objective / 1e9,
        "predicted_mib": found.chosen.peak_bytes / MIB,
        "saved_mib": found.chosen.saved_bytes / MIB,
        "fewest_mib": found.proposals[0].peak_bytes / MIB,
        "drawn_again": sum(name.startswith("seeded_random") for name in again),
    }
    return step.compile(cudagraphs=False), row


def gradients(case: Any, cap: int | None, on: Any) -> Row:
    """The errors of the gradients of optfuse and of eager, with dropout off, by norms: against float32's."""
    import torch
    from torch.utils import _pytree as pytree

    from optfuse.lab.bench.systems import Case

    for module in case.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]:
            setattr(module, name, 0.0)
    wide, args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda x: x.float() if x.is_floating_point() else x, (None, case.args, case.kwargs)
    )
    call, row = ours(case, cap)

    def after(some: Any, run: Callable[..., Any]) -> dict[str, Any]:
        some.run(run)
        on.synchronize()
        return {name: p.grad.float().cpu() for name, p in some.model.named_parameters() if p.grad is not None}

    with on.alone():
        mine, eager = after(case, call), after(case, case.model)
        torch.set_float32_matmul_precision("highest")
        wide = copy.deepcopy(case.model).float()
        exact = after(Case(case.task, wide, args, kwargs, case.loss), wide)

    def error(found: dict[str, Any]) -> float:
        missing = exact.keys() - found.keys()
        assert not missing, f"no gradient of {sorted(missing)[0]}"
        return (
            sum(float((found[k] - exact[k]).square().sum()) for k in exact)
            / sum(float(one.square().sum()) for one in exact.values())
        ) ** 0.5

    return row | {"gradient_error": error(mine), "eager_gradient_error": error(eager)}


def measure_group(todo: Sequence[Point], size: str, out: Path, until: float) -> None:
    """Measure points one after the other in this process, and add a row to a file for each.

    ``until``: the time after which none is begun.
    """
    fewest = None
    for point in todo:
        row: Row = {"model": point.model, "system": point.system, "setting": point.setting, "size": size}
        try:
            if time.time() > until:
                raise TimeoutError("not begun: the time was over")
            row |= measure(point, size, cap_of(point, fewest))
            fewest = row.get("fewest_mib", fewest)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:400]
        add_row(out, row)
        gc.collect()


def cap_of(point: Point, fewest: float | None) -> int | None:
    """A point's cap in bytes; ``fewest``: the peak in MiB that shares are of, None if it is not known.

    Raises
    ------
    RuntimeError
        If the cap is a share of what is not known.
    """
    if point.setting is None or not point.system.startswith("optfuse"):
        return None
    if point.system.startswith("optfuse-capped"):
        return int(point.setting * MIB)
    if fewest is None:
        raise RuntimeError("no cap without the free step")
    return int(point.setting * fewest * MIB)


def in_process(todo: Sequence[Point], size: str, out: Path, until: float) -> None:
    """Measure some points in a process of their own, and add rows for those that it did not reach, with the reason."""
    with tempfile.TemporaryDirectory(prefix="optfuse-fronts-") as folder:
        task = json.dumps([[[p.model, p.system, p.setting] for p in todo], size, str(out.resolve()), until])
        own = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        command = [sys.executable, str(Path(__file__).resolve()), "--some", task]
        before = len(rows_of(out, todo, size))
        left = max(0.01, until - time.time())
        try:
            done = subprocess.run(
                command, env={**os.environ, **own, **threads}, capture_output=True, text=True, timeout=left, check=False
            )
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        except subprocess.TimeoutExpired:
            lines = ["not done in time"]
    for point in todo[len(rows_of(out, todo, size)) - before :]:
        row = {"model": point.model, "system": point.system, "setting": point.setting, "size": size}
        add_row(out, {**row, "error": lines[-1][:300]})
    print(f"{todo[0].model}, {todo[0].system}: {time.time() - until:+.0f} s", flush=True)


def add_row(out: Path, row: Row) -> None:
    """Add a row to a file that several processes share."""
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows_of(out: Path, todo: Sequence[Point], size: str) -> list[Row]:
    """All rows of some points, in the order in which they came."""
    wanted = set(todo)
    return [row for row in all_rows(out) if row["size"] == size and Point.of(row) in wanted]


def run(arguments: argparse.Namespace) -> None:
    """Measure what is asked for and not there yet: a group is measured again where one of its points is missing."""
    until = time.time() + arguments.total
    known = {Point.of(row) for row in read_rows(arguments.out) if row["size"] == arguments.size and "error" not in row}
    groups: list[list[Point]] = []
    for model in arguments.models.split(","):
        for group in arguments.groups.split(","):
            found = list(points(model, group, arguments.shares, arguments.budgets, arguments.caps.get(model, ())))
            if not known.issuperset(found):
                groups.append(found)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda group: in_process(group, arguments.size, arguments.out, until), groups))


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, of each point the last; none if there is no file."""
    return list({(row["size"], Point.of(row)): row for row in all_rows(path)}.values())


def all_rows(path: Path) -> list[Row]:
    """The rows of a file, in order."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def table(rows: Sequence[Row]) -> str:
    """A Markdown table of every row, by model and time, with the failures below it."""
    lines = [
        "| model | system | ms | peak MiB | predicted ms | predicted MiB | its error |",
        "|---|---|---|---|---|---|---|",
    ]
    measured = [row for row in rows if "error" not in row and "ms" in row]
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
    judged = [row for row in rows if "gradient_error" in row]
    lines += [
        f"\n{row['model']}, gradients under {row['cap_mib']:,.0f} MiB: {row['gradient_error']:.2e} from float32's, "
        f"eager {row['eager_gradient_error']:.2e}"
        for row in judged
    ]
    failed = [row for row in rows if "error" in row]
    lines += [f"\n{row['model']}, {row['system']} {row['setting']}: {row['error']}" for row in failed]
    return "\n".join([*lines, *comparison(measured)])


def caps_of(texts: Sequence[str]) -> dict[str, list[float]]:
    """Caps in MiB by model, of texts like "gpt2:2742,3330".

    Raises
    ------
    ValueError
        If a text is none, or the model is not known.
    """
    found: dict[str, list[float]] = {}
    for text in texts:
        model, _, numbers = text.partition(":")
        if model not in LAYERS:
            raise ValueError(f"--caps {text}: no layers are known of {model!r}; known: {', '.join(LAYERS)}")
        try:
            found[model] = [float(number) for number in numbers.split(",")]
        except ValueError:
            raise ValueError(f"--caps {text}: give caps in MiB, as in gpt2:2742,3330") from None
        if not all(0 < cap < math.inf for cap in found[model]):
            raise ValueError(f"--caps {text}: a cap is a number above 0")
    return found


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", default=",".join(LAYERS), help="names of files in models/, with commas")
    parser.add_argument("--out", type=Path, default=Path("fronts.jsonl"))
    parser.add_argument("--size", choices=("bench", "full", "small"), default="bench")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.9, 0.75])
    parser.add_argument("--caps", nargs="*", default=[], metavar="MODEL:MIB,MIB", help="a model's caps, for the shares")
    parser.add_argument("--budgets", type=float, nargs="*", default=[1.0, 0.6, 0.3, 0.0])
    parser.add_argument("--groups", default=",".join(GROUPS), help="which groups of points, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side; one at a time measures")
    parser.add_argument(
        "--total", type=float, default=1e6, help="seconds after which none is begun, and what runs ends"
    )
    parser.add_argument("--dry", action="store_true", help="one small model, to try the script on any machine")
    parser.add_argument("--table", type=Path, metavar="ROWS", help="print the table of a file, measure nothing")
    parser.add_argument("--some", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.some is not None:
        some, size, out, until = json.loads(arguments.some)
        measure_group([Point(*one) for one in some], size, Path(out), until)
        return
    if arguments.table is not None:
        if not arguments.table.is_file():
            parser.error(f"{arguments.table}: no such file; measure first, with --out")
        print(table(read_rows(arguments.table)))
        return
    unknown = [name for name in arguments.models.split(",") if name not in LAYERS]
    if unknown:
        parser.error(f"no layers are known of {', '.join(unknown)}; known: {', '.join(LAYERS)}")
    if strange := set(arguments.groups.split(",")) - set(GROUPS):
        parser.error(f"no such group: {', '.join(sorted(strange))}; known: {', '.join(GROUPS)}")
    try:
        arguments.caps = caps_of(arguments.caps)
    except ValueError as error:
        parser.error(str(error))
    if arguments.dry:
        arguments.models, arguments.size = "gpt2", "small"
    run(arguments)
    print(table(read_rows(arguments.out)))


if __name__ == "__main__":
    main()
