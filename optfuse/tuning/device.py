"""Measures candidates on the GPU: compiled in parallel processes, then timed in turns with L2 flushed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import torch

from optfuse.cache import store
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.module import kernels_module
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.kernel_spec import KernelSpec
from optfuse.compiler.ir.nodes import Buffer
from optfuse.errors import InvalidOptionError
from optfuse.runtime.aot import KernelReport, compile_kernels
from optfuse.runtime.environment import mode
from optfuse.runtime.loader import load_source
from optfuse.tuning.operands import make_operands
from optfuse.tuning.search import Trial
from optfuse.version import __version__

#: Bytes written between runs to flush L2: more than twice an H200's.
FLUSH_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """A kernel to tune: its spec, its buffers, and exclusive upper bounds (``ends``) of the buffers of indices."""

    spec: KernelSpec
    buffers: Mapping[str, Buffer]
    ends: Mapping[str, int]


def versions() -> dict[str, str]:
    """Versions of the packages that compile and run the kernels."""
    return {"optfuse": __version__, "torch": torch.__version__, "triton": version("triton")}


def require_gpu(what: str) -> torch.device:
    """The GPU to measure on.

    Raises:
        InvalidOptionError: If there is none, or Triton's interpreter is to run kernels.
    """
    if mode() == "interpret":
        raise InvalidOptionError(
            f"{what} needs a GPU to run kernels on, and there is none (or TRITON_INTERPRET is set); leave it out here"
        )
    return torch.device("cuda", torch.cuda.current_device())


class DeviceMeasure:
    """Measures trials of some problems: the ``Measure`` of ``tuning.search``."""

    def __init__(self, problems: Sequence[Problem], device: torch.device, folder: Path) -> None:
        """``folder`` is for modules of candidates, which Triton reads its functions from."""
        self.problems = problems
        self.device = device
        self.folder = folder
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
        self._ready: dict[Trial, Callable[[Sequence[torch.Tensor]], None] | None] = {}

    def __call__(self, trials: Sequence[Trial], runs: int) -> list[float | None]:
        """Microseconds of each; trials of one kernel take turns."""
        self._prepare([trial for trial in trials if trial not in self._ready])
        times: dict[Trial, float | None] = {}
        for kernel, group in groupby(trials, key=lambda trial: trial.kernel):
            times |= self._timed(kernel, list(group), runs)
        return [times[trial] for trial in trials]

    def _prepare(self, trials: Sequence[Trial]) -> None:
        """Emit and compile trials; one that spills is not launched unless it is its kernel's first."""
        if not trials:
            return
        sources = [self._source(trial, number) for number, trial in enumerate(trials)]
        path = store(kernels_module(sources), self.folder)
        module: Any = load_source(path.read_text(encoding="utf-8"), self.folder)
        reports = {report.name: report for report in precompile(path, self.device)}
        seen = {trial.kernel for trial in self._ready}
        for trial, source in zip(trials, sources, strict=True):
            report = reports[source.name]
            bad = report.error is not None or (report.spills > 0 and trial.kernel in seen)
            self._ready[trial] = None if bad else _launcher(module, source)

    def _source(self, trial: Trial, number: int) -> KernelSource:
        problem = self.problems[trial.kernel]
        return emit_kernel(replace(problem.spec, name=f"c{number}"), problem.buffers, config=trial.config)

    def _timed(self, kernel: int, trials: Sequence[Trial], runs: int) -> dict[Trial, float | None]:
        problem = self.problems[kernel]
        names = self._source(trials[0], 0).pointers
        given = make_operands(names, problem.buffers, problem.ends, self.device)
        calls: dict[Trial, Callable[[], None]] = {}
        for trial in trials:
            ready = self._ready[trial]
            if ready is not None and _starts(call := _bound(ready, given)):
                calls[trial] = call
        times = interleaved(list(calls.values()), runs, self._clear)
        found = dict(zip(calls, map(median, times), strict=True))
        return {trial: found.get(trial) for trial in trials}

    def _clear(self) -> None:
        self.flush.fill_(1)


def precompile(path: Path, device: torch.device) -> list[KernelReport]:
    """Compile a module's kernels in as many processes as there are cores; Triton's own cache then has them."""
    major, minor = torch.cuda.get_device_capability(device)
    with tempfile.TemporaryDirectory() as fresh:  # reports that are known already would leave Triton's cache empty
        target = f"cuda:{10 * major + minor}"
        return compile_kernels(path, target, processes=os.cpu_count() or 1, cache=Path(fresh))


def interleaved(calls: Sequence[Callable[[], Any]], runs: int, before: Callable[[], None]) -> list[list[float]]:
    """Microseconds of every run of some calls that take turns, each after ``before``, by the device's clock."""
    events = [
        [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
        for _ in calls
    ]
    torch.cuda.synchronize()
    for run in range(runs):
        for call, mine in zip(calls, events, strict=True):
            before()
            mine[run][0].record()
            call()
            mine[run][1].record()
    torch.cuda.synchronize()
    return [[1e3 * begin.elapsed_time(end) for begin, end in mine] for mine in events]


def _launcher(module: Any, source: KernelSource) -> Callable[[Sequence[torch.Tensor]], None]:
    function = module.KERNELS[source.name]["function"]
    return lambda given: module.launch(function, *given)


def _bound(ready: Callable[[Sequence[torch.Tensor]], None], given: Sequence[torch.Tensor]) -> Callable[[], None]:
    return lambda: ready(given)


def _starts(call: Callable[[], None]) -> bool:
    """Whether a kernel launches: tried twice, since the second launch takes Triton's cached path."""
    from triton.runtime.errors import OutOfResources

    try:
        call()
        call()
    except OutOfResources:
        return False
    return True
