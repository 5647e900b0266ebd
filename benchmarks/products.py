"""What products of matrices as kernels of our own are worth: models with them and without, on one GPU.

    python benchmarks/products.py models/resnet.py models/swin.py:train

Each model runs through ``torch.compile`` at bench size with the shipped device file and with one without dots
(``dot_percent`` 0). A line a model: milliseconds of a step and microseconds on the GPU, both ways.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map_only

from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.problem.device_files import load_device

STEPS, PROFILED = 20, 3


def step_of(path: str, train: bool, device: str) -> Callable[[], Any]:
    """A step of a model file's model, compiled for a device file."""
    torch.compiler.reset()
    entry = load_model_file(path)
    args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.cuda, entry.inputs("bench", train=train))
    model = entry.model("bench").train(train).cuda()
    compiled = torch.compile(model, backend="optfuse", options={"device": device})

    def infer() -> Any:
        with torch.no_grad():
            return compiled(*args, **kwargs)

    def step() -> Any:
        found = compiled(*args, **kwargs)
        loss = found if isinstance(found, torch.Tensor) else found.loss
        loss.backward()
        model.zero_grad()

    return step if train else infer


def timed(step: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of a step, the median, and its microseconds on the GPU."""
    for _ in range(4):
        step()
    times: list[float] = []
    for _ in range(STEPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    busy = sum(event.device_time_total for event in profiled.key_averages()) / PROFILED
    return sorted(times)[STEPS // 2], busy


def main(rows: list[str]) -> None:
    """Measure each row both ways."""
    with tempfile.TemporaryDirectory() as folder:
        without = Path(folder) / "without.json"
        without.write_text(json.dumps(asdict(replace(load_device("h200"), dot_percent=0))))
        for row in rows:
            path, _, mode = row.partition(":")
            (ms, us), (before_ms, before_us) = (
                timed(step_of(path, mode == "train", device)) for device in ("h200", str(without))
            )
            print(
                f"{row:32s} {before_ms:8.3f} -> {ms:8.3f} ms  {before_us:8.0f} -> {us:8.0f} us on the GPU", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
