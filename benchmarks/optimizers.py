"""Optimizer steps on one GPU: eager execution's lists and fused kernels, Inductor, and ours.

    python benchmarks/optimizers.py [--rows gpt2,resnet50,llama,sgd] [--out rows.jsonl] [--dry]

A line a row and system: milliseconds of a step with gradients that stay and with gradients that move, milliseconds and
launches on the GPU, microseconds of the host where it is alone, seconds of the first step, and the largest difference
of a parameter from eager execution's after five steps. ``--dry`` tries it without a GPU on small tensors.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

STEPS, PROFILED, ALONE, WARM = 40, 5, 10, 60
SYSTEMS = ("eager", "fused", "inductor", "optfuse")
COLUMNS = ("ms", "moved_ms", "gpu_ms", "launches", "host_us", "first_s", "differs")

Step = Callable[[], Any]
Shapes = list[tuple[int, ...]]


def gpt2(layers: int = 12, d: int = 768, vocabulary: int = 50257) -> Shapes:
    """The shapes of GPT-2's 148 parameters."""
    norm: Shapes = [(d,), (d,)]
    layer = [*norm, (d, 3 * d), (3 * d,), (d, d), (d,), *norm, (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return [(vocabulary, d), (1024, d), *(layer * layers), *norm]


def resnet50(width: int = 64) -> Shapes:
    """The shapes of ResNet-50's 161 parameters."""
    shapes: Shapes = [(width, 3, 7, 7), (width,), (width,)]
    before = width
    for planes, blocks in ((width, 3), (2 * width, 4), (4 * width, 6), (8 * width, 3)):
        for k in range(blocks):
            kernels = [(planes, before, 1), (planes, planes, 3), (4 * planes, planes, 1)]
            for out, inside, size in [*kernels, *([(4 * planes, before, 1)] if k == 0 else [])]:
                shapes += [(out, inside, size, size), (out,), (out,)]
            before = 4 * planes
    return [*shapes, (1000, before), (1000,)]


def llama(layers: int = 8, d: int = 2048, vocabulary: int = 32000) -> Shapes:
    """The shapes of the parameters of a Llama with grouped heads."""
    layer: Shapes = [(d,), (d, d), (d // 4, d), (d // 4, d), (d, d), (d,), (4 * d, d), (4 * d, d), (d, 4 * d)]
    return [(vocabulary, d), *(layer * layers), (d,), (vocabulary, d)]


#: By row: the optimizer, its shapes, and small ones.
ROWS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[], Shapes], Callable[[], Shapes]]] = {
    "gpt2": (torch.optim.AdamW, gpt2, lambda: gpt2(1, 16, 99)),
    "resnet50": (torch.optim.AdamW, resnet50, lambda: resnet50(2)),
    "llama": (torch.optim.AdamW, llama, lambda: llama(1, 16, 99)),
    "sgd": (lambda *a, **k: torch.optim.SGD(*a, lr=0.01, momentum=0.9, **k), gpt2, lambda: gpt2(1, 16, 99)),
}


class Bench:
    """Measures on a GPU, or runs everything once without one."""

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.steps, self.alone, self.warm = (1, 1, 1) if dry else (STEPS, ALONE, WARM)

    def wait(self) -> None:
        """Until the GPU has done all."""
        if not self.dry:
            torch.cuda.synchronize()

    def parameters(self, shapes: Shapes) -> list[nn.Parameter]:
        """Parameters with gradients, the same in each call."""
        generator = torch.Generator(self.device).manual_seed(0)
        made: list[nn.Parameter] = []
        for shape in shapes:
            made.append(nn.Parameter(torch.randn(shape, device=self.device, generator=generator)))
            made[-1].grad = torch.randn(shape, device=self.device, generator=generator)
        return made

    def row(self, name: str, system: str, expected: list[Tensor]) -> dict[str, Any]:
        """Figures of a system. ``expected``: eager execution's parameters, which its own row puts there."""
        make, large, small = ROWS[name]
        torch.compiler.reset()
        parameters = self.parameters(small() if self.dry else large())
        optimizer = make(parameters, **({"fused": True} if system == "fused" else {"foreach": True}))
        step: Step = optimizer.step
        if system in ("inductor", "optfuse"):
            step = torch.compile(optimizer.step, backend=system)
        start = time.perf_counter()
        step()
        self.wait()
        first = time.perf_counter() - start
        for _ in range(4):
            step()
        if not expected:
            expected += [p.detach().clone() for p in parameters]
        differs = max(float((p.detach() - q).abs().max()) for p, q in zip(parameters, expected, strict=True))
        for _ in range(self.warm):  # CUDA graphs are tried and decided on meanwhile
            step()
        ms = median(self.timed([step] * self.steps) for _ in range(3))
        gpu_ms, launches = self.profiled(step)
        alone: list[float] = []
        for _ in range(self.alone):
            self.wait()
            start = time.perf_counter()
            step()
            alone.append(1e6 * (time.perf_counter() - start))
        moved_ms = self.timed(self.moving(parameters, step))
        figures = [ms, moved_ms, gpu_ms, launches, median(alone), first, differs]
        return {"row": name, "system": system, **dict(zip(COLUMNS, figures, strict=True))}

    def timed(self, steps: Sequence[Step]) -> float:
        """Milliseconds of a step, from an idle GPU to an idle GPU."""
        self.wait()
        start = time.perf_counter()
        for step in steps:
            step()
        self.wait()
        return 1e3 * (time.perf_counter() - start) / len(steps)

    def moving(self, parameters: Sequence[nn.Parameter], step: Step) -> list[Step]:
        """Steps whose gradients lie where those of the step before the last one lay."""
        places = [[p.grad for p in parameters], [None if p.grad is None else p.grad.clone() for p in parameters]]

        def at(k: int) -> Step:
            def moved() -> None:
                for p, gradient in zip(parameters, places[k % 2], strict=True):
                    p.grad = gradient
                step()

            return moved

        for k in range(4):
            at(k)()
        return [at(k) for k in range(self.steps)]

    def profiled(self, step: Step) -> tuple[float, float]:
        """Milliseconds and launches of a step on the GPU."""
        if self.dry:
            return 0.0, 0
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(PROFILED):
                step()
            torch.cuda.synchronize()
        events = [event for event in seen.events() or [] if event.device_type.name == "CUDA"]
        spans = [event.time_range.elapsed_us() for event in events if "Sync" not in event.name]
        return sum(spans) / PROFILED / 1e3, len(spans) / PROFILED


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"{row['row']:9} {row['system']:9} {row['error']}"
    return f"{row['row']:9} {row['system']:9} " + " ".join(f"{row[column]:10.4g}" for column in COLUMNS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args(arguments)
    bench = Bench(dry=given.dry)
    print(" " * 20 + " ".join(f"{column:>10}" for column in COLUMNS))
    for name in given.rows.split(","):
        expected: list[Tensor] = []
        for system in given.systems.split(","):
            try:
                row = bench.row(name, system, expected)
            except Exception as error:  # the other rows are measured all the same
                row = {"row": name, "system": system, "error": f"{type(error).__name__}: {error}"[:300]}
            print(line(row), flush=True)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
