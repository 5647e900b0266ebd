"""Times of all probes on one device, cold (nothing in L2) and warm, as plain data: the raw material of the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from optfuse.lab.bench.meter import Meter
from optfuse.lab.bench.trace import Run
from optfuse.lab.bench.yardstick import FLUSH_BYTES, graph_of
from optfuse.lab.calibrate.probes import Probe, all_families, start

#: Profiled repetitions.
RUNS = 5
#: Launches in a row.
LAUNCHES = 512

Measurements = dict[str, Any]


def measure(
    meter: Meter, say: Callable[[str], None], families: dict[str, Callable[[], list[Probe]]] | None = None
) -> Measurements:
    """Run every family; one that fails is recorded with its reason, and the rest goes on.

    Returns:
        ``{"launch": {...}, "probes": [{"family", "key", "amount", "cold_us", "warm_us"}], "failed": {family:
            reason}}``.
    """
    found: Measurements = {"launch": {}, "probes": [], "failed": {}}
    try:
        found["launch"] = launches(meter)
    except (RuntimeError, ValueError, AttributeError) as error:
        found["failed"]["launch"] = _reason(error)
    families = all_families(meter.device) if families is None else families
    for name, make in families.items():
        try:
            probes = make()
            cold, warm = times(meter, probes, flush=True), times(meter, probes, flush=False)
        except (RuntimeError, ValueError, AttributeError) as error:
            found["failed"][name] = _reason(error)
            say(f"{name}: failed: {found['failed'][name]}")
            continue
        for probe, cold_us, warm_us in zip(probes, cold, warm, strict=True):
            found["probes"].append(
                {
                    "family": probe.family,
                    "key": list(probe.key),
                    "amount": probe.amount,
                    "cold_us": cold_us,
                    "warm_us": warm_us,
                }
            )
        say(f"{name}: {len(probes)} probes")
        del probes
        meter.allocated()  # gives the memory back before the next family
    return found


def times(meter: Meter, probes: Sequence[Probe], *, flush: bool) -> list[float]:
    """Microseconds of device work a call, the median over some runs.

    ``flush``: a large buffer is written before each call, so that it finds nothing in L2. Otherwise the call is made
    twice and the second one counts.

    Raises:
        RuntimeError: If the profile does not show the calls apart.
    """
    marker = torch.empty(FLUSH_BYTES if flush else 16, dtype=torch.uint8, device=meter.device)
    for probe in probes:
        probe.call()

    def run() -> None:
        for probe in probes:
            marker.fill_(1)
            probe.call()
            if not flush:
                probe.call()
        marker.fill_(1)

    trace = meter.trace(run, RUNS)
    found = [] if trace is None else [_segments(run, len(probes)) for run in trace.runs]
    good = [segments for segments in found if segments is not None]
    if not good:
        raise RuntimeError("the profile does not show the calls one by one")
    return [median(_second_half(segments[k], whole=flush) for segments in good) for k in range(len(probes))]


def _segments(run: Run, count: int) -> list[list[float]] | None:
    """Durations between the markers, which are the first kernel of the run; None if there are not as many."""
    if not run.work:
        return None
    name = run.work[0].name
    segments: list[list[float]] = []
    for item in run.work:
        if item.name == name:
            segments.append([])
        else:
            segments[-1].append(item.us)
    return segments[:-1] if len(segments) == count + 1 else None


def _second_half(durations: Sequence[float], *, whole: bool) -> float:
    return sum(durations if whole else durations[len(durations) // 2 :])


def launches(meter: Meter) -> dict[str, float]:
    """Microseconds a launch of a kernel that does nothing: in a graph, and one by one; and its duration."""
    from optfuse.lab.calibrate import kernels

    x = torch.zeros(16, device=meter.device)

    def many() -> None:
        for _ in range(LAUNCHES):
            start(kernels.nothing, 1, x)

    many()
    replay = graph_of(many)
    in_graph = 1e3 * meter.times(replay, 0.2).median / LAUNCHES
    apart = 1e3 * meter.times(many, 0.2).median / LAUNCHES
    trace = meter.trace(replay, 3)
    durations = [] if trace is None else [item.us for run in trace.runs for item in run.work]
    return {"graph_us": in_graph, "plain_us": apart, "duration_us": median(durations) if durations else 0.0}


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}"
