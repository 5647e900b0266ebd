"""Measures the device's limits in the same run: copy times by size, and the time of a launch in a CUDA graph."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any

import torch

from optfuse.lab.bench.meter import Meter
from optfuse.lab.bench.trace import Run

#: Bytes that a copy moves (reads and writes together): from 64 KiB to 2 GiB, two sizes an octave.
SIZES = tuple(int(2 ** (16 + k / 2)) // 512 * 512 for k in range(31))
#: Bytes written between copies, to flush L2.
FLUSH_BYTES = 256 << 20
#: Kernels of one element in the graph that measures a launch.
LAUNCHES = 512


@dataclass(frozen=True, slots=True)
class Yardstick:
    """``copies``: (bytes moved, microseconds) with nothing in L2, ascending.

    ``gap_us`` is the time between kernels of a graph, ``tiny_us`` the duration of a kernel of one element.
    """

    copies: tuple[tuple[int, float], ...]
    gap_us: float
    tiny_us: float

    def copy_us(self, moved: int) -> float:
        """Microseconds of a copy that moves ``moved`` bytes, log-interpolated; 0 if nothing was measured."""
        if not self.copies or moved <= 0:
            return 0.0
        sizes = [size for size, _ in self.copies]
        if moved <= sizes[0]:
            return self.copies[0][1]
        if moved >= sizes[-1]:
            return self.copies[-1][1] * moved / sizes[-1]
        k = bisect_left(sizes, moved)
        (a, low), (b, high) = self.copies[k - 1], self.copies[k]
        part = (log(moved) - log(a)) / (log(b) - log(a))
        return exp(log(low) + part * (log(high) - log(low)))

    @property
    def peak(self) -> float:
        """The best copy's bytes a second."""
        return max((size / (us * 1e-6) for size, us in self.copies), default=0.0)


NOTHING = Yardstick((), 0.0, 0.0)


def measure_yardstick(meter: Meter) -> Yardstick:
    """Copies of all sizes that fit into the device's free memory, and launches."""
    if meter.device.type != "cuda":
        return NOTHING
    free, _ = torch.cuda.mem_get_info()
    sizes = [size for size in SIZES if size * 3 + FLUSH_BYTES < free]
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=meter.device)
    source = torch.zeros(sizes[-1] // 2, dtype=torch.uint8, device=meter.device)
    target = torch.empty_like(source)

    def copies() -> None:
        for size in sizes:
            flush.fill_(1)
            target[: size // 2].copy_(source[: size // 2])

    trace = meter.trace(copies, 5)
    found = [] if trace is None else [_copy_times(run) for run in trace.runs]
    good = [times for times in found if len(times) == len(sizes)]
    curve = tuple((size, median(times[k] for times in good)) for k, size in enumerate(sizes)) if good else ()
    gap, tiny = _launch_gap(meter)
    return Yardstick(curve, gap, tiny)


def _copy_times(run: Run) -> list[float]:
    return [item.us for item in run.work if "DtoD" in item.name or "Device -> Device" in item.name]


def _launch_gap(meter: Meter) -> tuple[float, float]:
    """Microseconds between the kernels of a graph, and the duration of such a kernel."""
    x = torch.zeros(1, device=meter.device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)

    replay = graph_of(launches)
    total_us = 1e3 * meter.times(replay, 0.1).median / LAUNCHES
    trace = meter.trace(replay, 3)
    durations = [] if trace is None else [item.us for run in trace.runs for item in run.work]
    tiny = median(durations) if durations else 0.0
    return max(0.0, total_us - tiny), tiny


def graph_of(call: Callable[[], Any]) -> Callable[[], None]:
    """``call`` captured in a CUDA graph, as the function that replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
