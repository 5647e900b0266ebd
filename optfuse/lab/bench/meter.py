"""Times and memory of a call on the device that it runs on: events on a GPU, a clock on the CPU."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock

from optfuse.lab.bench.siblings import siblings_on
from optfuse.lab.bench.trace import RUN, Trace, read_trace

Call = Callable[[], Any]

#: Calls before anything is timed.
WARMUP = 3
#: Timed calls, at least and at most.
FEWEST, MOST = 10, 100


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds a call: the median, and the tenth and ninetieth percentile of ``runs`` calls."""

    median: float
    low: float
    high: float
    runs: int

    @staticmethod
    def of(times: list[float]) -> Timing:
        """Order statistics of a list of times."""
        ordered = sorted(times)
        last = len(ordered) - 1
        return Timing(
            ordered[(last + 1) // 2], ordered[round(0.1 * last)], ordered[round(0.9 * last)], runs=len(ordered)
        )


class Meter(Protocol):
    """Measures calls on a device."""

    @property
    def device(self) -> torch.device:
        """The device that models run on."""
        ...

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        ...

    def alone(self) -> AbstractContextManager[Any]:
        """Context in which no other bench of this machine measures on the device; others may compile."""
        ...

    def undisturbed(self) -> AbstractContextManager[Any]:
        """Context in which all other benches on the device stand still."""
        ...

    def times(self, call: Call, seconds: float) -> Timing:
        """Time calls one after the other, without waiting in between."""
        ...

    def trace(self, call: Call, runs: int) -> Trace | None:
        """The kernels that the device ran in ``runs`` calls; None if there is no profiler for it."""
        ...

    def allocated(self) -> int:
        """Bytes of live tensors, after unused memory was freed."""
        ...

    def peak(self, call: Call) -> tuple[int, int]:
        """The peak bytes of tensors during a call, and the bytes reserved on the device after it."""
        ...


class CudaMeter:
    """Measures on a GPU, by events, the allocator's counters and kineto."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        name = torch.cuda.get_device_properties(self.device).uuid
        self._turn = FileLock(Path(tempfile.gettempdir()) / f"optfuse-bench-{name}.lock")
        self._siblings = siblings_on(str(name))
        self._siblings.join()

    def alone(self) -> AbstractContextManager[Any]:
        """A lock that all benches on this device share; it may be taken again inside. Others stop in timed parts."""
        return self._turn

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Hold the lock of all benches on this device, and stop the others."""
        with self._turn, self._siblings.paused():
            yield

    def synchronize(self) -> None:
        """Wait for the device; errors of kernels are raised here."""
        torch.cuda.synchronize()

    def times(self, call: Call, seconds: float) -> Timing:
        """Device time from before to after each call; the device idles only where the host is slower than it."""
        with self.undisturbed():
            for _ in range(WARMUP):
                call()
            (first,) = self._timed(call, 1)
            return Timing.of(self._timed(call, _runs(first, seconds)))

    def _timed(self, call: Call, runs: int) -> list[float]:
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
        torch.cuda.synchronize()
        for before, after in pairs:
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in pairs]

    def trace(self, call: Call, runs: int) -> Trace | None:
        """Profile some calls. The host is slower then, the kernels are not."""
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        call()
        torch.cuda.synchronize()
        with self.undisturbed(), torch.profiler.profile(activities=activities) as profile:
            for run in range(runs):
                with torch.profiler.record_function(f"{RUN}{run}"):
                    call()
                    torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            return read_trace(path.read_text(), runs)

    def allocated(self) -> int:
        """Live bytes."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    def peak(self, call: Call) -> tuple[int, int]:
        """The allocator's own counters. A CUDA graph's memory counts as held, not as allocated."""
        self.allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()


class CpuMeter:
    """Measures by the host's clock, to try a bench without a GPU; kernels run in Triton's interpreter."""

    device = torch.device("cpu")

    def synchronize(self) -> None:
        """Return at once, since calls are synchronous."""

    def alone(self) -> AbstractContextManager[Any]:
        """Take no lock."""
        return nullcontext()

    def undisturbed(self) -> AbstractContextManager[Any]:
        """Stop nothing."""
        return nullcontext()

    def times(self, call: Call, seconds: float) -> Timing:
        """Wall time."""
        first = _wall(call)
        runs = _runs(first, seconds) if first < 1e3 * seconds else 1
        return Timing.of([_wall(call) for _ in range(runs)])

    def trace(self, call: Call, runs: int) -> Trace | None:
        """Return None: the CPU runs no kernels."""
        del call, runs

    def allocated(self) -> int:
        """Return 0: not measured on the CPU."""
        return 0

    def peak(self, call: Call) -> tuple[int, int]:
        """Return 0: not measured on the CPU."""
        call()
        return 0, 0


def meter() -> Meter:
    """Return the GPU's meter if there is a GPU, else the CPU's."""
    return CudaMeter() if torch.cuda.is_available() else CpuMeter()


def _runs(first_ms: float, seconds: float) -> int:
    return max(FEWEST, min(MOST, int(1e3 * seconds / max(first_ms, 1e-3))))


def _wall(call: Call) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)
