"""The measuring loop, with a meter that makes up durations from what it sees called; and the kernels' results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optfuse.lab.bench.meter import Call, CpuMeter
from optfuse.lab.bench.trace import Run, Trace, Work
from optfuse.lab.calibrate.measure import measure
from optfuse.lab.calibrate.probes import Probe
from optfuse.runtime.environment import prepare


class Log(TorchDispatchMode):
    """Every operator is a kernel; the first call of a product after a marker is slow, the next one fast."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Work] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        us = 7.0 if self.work and self.work[-1].name != str(func) else 3.0
        self.work.append(Work(str(func), us, float(len(self.work)), -1, {}))
        return func(*args, **(kwargs or {}))


class FakeMeter(CpuMeter):
    """Profiles by logging."""

    def trace(self, call: Call, runs: int) -> Trace | None:
        found = []
        for _ in range(runs):
            with Log() as log:
                call()
            found.append(Run(tuple(log.work), ()))
        return Trace(tuple(found))


def test_families_are_measured_cold_and_warm_and_failures_are_recorded() -> None:
    a = torch.ones(4, 4)

    def products() -> list[Probe]:
        out = torch.empty(4, 4)
        return [Probe("products", (k,), 10 * k, lambda: torch.mm(a, a, out=out)) for k in (1, 2)]

    def failing() -> list[Probe]:
        raise RuntimeError("out of memory")

    lines: list[str] = []
    families: dict[str, Callable[[], list[Probe]]] = {"failing": failing, "products": products}
    found = measure(FakeMeter(), lines.append, families)
    assert found["failed"]["failing"] == "RuntimeError: out of memory"
    assert set(found["failed"]) == {"failing", "launch"}  # no graphs without a GPU
    assert [(p["key"], p["amount"], p["cold_us"], p["warm_us"]) for p in found["probes"]] == [
        ([1], 10, 7.0, 3.0),
        ([2], 20, 7.0, 3.0),
    ]
    assert len(lines) == 2


def test_the_kernels_do_what_they_say() -> None:
    prepare()
    from optfuse.lab.calibrate import kernels
    from optfuse.lab.calibrate.probes import start

    x = torch.randn(6, 40)
    y = torch.zeros(6, 40)
    start(kernels.copy, 2, x, y, x.numel(), BLOCK=128)
    assert torch.equal(x, y)
    turned = torch.zeros(40, 6)
    start(kernels.turned, 2, x, turned, 6, 40, BLOCK=128)
    assert torch.equal(turned, x.t())
    index = torch.tensor([3, 0, 3])
    rows = torch.zeros(3, 40)
    start(kernels.gather, 1, x, index, rows, 40, 120, BLOCK=128)
    assert torch.equal(rows, x[index])
    sums = torch.zeros(40)
    start(kernels.row_sums, 6, x, sums, 40, BLOCK=16)
    torch.testing.assert_close(sums[:6], x.sum(1))
    start(kernels.column_sums, 2, x, sums, 6, 40, X=32, R=4)
    torch.testing.assert_close(sums, x.sum(0))
    counts = torch.zeros(4)
    start(kernels.atomics, 1, torch.tensor([0, 2, 2, 3], dtype=torch.int32), counts, 4, BLOCK=8)
    assert counts.tolist() == [1, 0, 2, 1]
    kept = torch.zeros(64)
    for number in (0, *kernels.FUNCTIONS):
        if kernels.FUNCTIONS.get(number) not in ("erf", "tanh"):
            start(kernels.arithmetic, 1, kept, F=number, TIMES=2, BLOCK=64)
    assert not kept.any()
    start(kernels.nothing, 1, kept)
