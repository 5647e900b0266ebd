"""From measurements to a device file: which figure follows from which probes, and how.

- ``launch_ps``: a kernel that does nothing, in a graph: duration and gap. Everything below is on top of that.
- ``dram_ps_per_mib``, ``ramp_ps``: cold copies of 8 MiB and more take launch + 2 ramps + bytes times the rate. The
  line is fitted by least squares of *relative* errors, so that each size counts alike. A copy has two accesses, and the
  memory takes a while to come up to speed: each access of more than a little pays half of that.
- ``l2_ps_per_mib``, ``l2_write_ps_per_mib``: the same slope of warm copies of 1 to 8 MiB.
- ``l2_bytes``: eight times the largest buffer that a warm copy still finds in L2 (an eighth of ``l2_bytes`` is what the
  price takes for resident).
- ``strided_percent``, ``gather_percent``: what transposed and gathered reads take beyond a copy's write, against a
  copy's read.
- ``saturating_programs``: the fewest programs that reach nine tenths of the best rate.
- ``fp32_ps_per_gop``, ``special_ps_per_gop``, ``atomic_ps_per_gop``: chains in registers; atomics at a million places.
- ``tensor_ps_per_gop``: the median matrix product; ``attention_percent``, ``convolution_percent``: how much dearer the
  same operations are there.

Whatever was not measured stays as in the device that the fit starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from optfuse.problem.instance import Device

MIB = 1 << 20
GOP = 1 << 30
PS = 1_000_000  # picoseconds in a microsecond

#: Cold copies of at least so many bytes lie on one line.
LINE_FROM = 8 * MIB
#: Warm copies between these sizes run out of L2.
L2_FROM, L2_TO = 1 * MIB, 8 * MIB
#: The number of places whose contention prices atomics.
TYPICAL_PLACES = 1 << 20
#: The part of the best rate at which programs are enough.
ENOUGH = 0.9

Probes = Sequence[Mapping[str, Any]]


def fit(base: Device, measurements: Mapping[str, Any], name: str) -> Device:
    """The device that explains the measurements; ``base`` where there are none."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for probe in measurements["probes"]:
        families.setdefault(probe["family"], []).append(probe)
    device = replace(base, name=name)
    launch = measurements.get("launch") or {}
    if launch:
        device = replace(device, launch_ps=round(launch["graph_us"] * PS))
    floor_us = launch.get("duration_us", 0.0)
    steps: dict[str, Callable[[Device, Probes, float], Device]] = {
        "copy": _copies,
        "turned": lambda d, p, f: replace(d, strided_percent=_percent(d, p, f, d.strided_percent)),
        "gather": lambda d, p, f: replace(d, gather_percent=_percent(d, p, f, d.gather_percent)),
        "programs": _programs,
        "arithmetic": _arithmetic,
        "atomics": _atomics,
        "matmul": _matmuls,
        "attention": _attention,
        "convolution": _convolution,
    }
    for family, step in steps.items():
        if family in families:
            device = step(device, families[family], floor_us)
    return device


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(intercept, slope) of the line whose relative errors at the points (x, y) have the least sum of squares.

    Raises:
        ValueError: Fewer than two different x.
    """
    weights = [1 / (y * y) for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total if total else 0.0
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total if total else 0.0
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    if spread <= 0:
        raise ValueError("a line needs two different sizes")
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    return mean_y - slope * mean_x, slope


def _copies(device: Device, probes: Probes, floor_us: float) -> Device:
    cold = [(p["amount"], p["cold_us"]) for p in probes if p["amount"] >= LINE_FROM and p["cold_us"] > 0]
    if len(cold) > 1:
        start, slope = line(cold)
        ramp = max(0.0, start - floor_us) / 2
        device = replace(device, dram_ps_per_mib=round(slope * MIB * PS), ramp_ps=round(ramp * PS))
    warm = [(p["amount"], p["warm_us"]) for p in probes if L2_FROM <= p["amount"] <= L2_TO and p["warm_us"] > 0]
    if len(warm) > 1:
        rate = round(max(0.0, line(warm)[1]) * MIB * PS)
        device = replace(device, l2_ps_per_mib=rate, l2_write_ps_per_mib=rate)
    resident = [
        p["amount"] // 2
        for p in probes
        if 0 < p["warm_us"] < (p["cold_us"] + _at_l2(device, p["amount"], floor_us)) / 2
    ]
    return replace(device, l2_bytes=8 * max(resident)) if resident else device


def _at_l2(device: Device, amount: int, floor_us: float) -> float:
    return floor_us + amount * device.l2_ps_per_mib / MIB / PS


def _percent(device: Device, probes: Probes, floor_us: float, before: int) -> int:
    """The median price of the reads relative to contiguous ones, when half of the bytes are written contiguously."""
    found: list[float] = []
    for probe in probes:
        half = probe["amount"] / 2 * device.dram_ps_per_mib / MIB / PS
        reading = probe["cold_us"] - floor_us - 2 * device.ramp_ps / PS - half
        if half > 0 and reading > 0:
            found.append(reading / half)
    return max(100, round(100 * median(found))) if found else before


def _programs(device: Device, probes: Probes, floor_us: float) -> Device:
    rates = {p["key"][0]: p["amount"] / (p["cold_us"] - floor_us) for p in probes if p["cold_us"] > floor_us}
    best = max(rates.values(), default=0.0)
    enough = [count for count, rate in rates.items() if rate >= ENOUGH * best]
    return replace(device, saturating_programs=min(enough)) if enough else device


def _arithmetic(device: Device, probes: Probes, floor_us: float) -> Device:
    rates = {p["key"][0]: _ps_per_gop(p, floor_us) for p in probes}
    return replace(
        device,
        fp32_ps_per_gop=rates.get("fma", device.fp32_ps_per_gop),
        special_ps_per_gop=rates.get("exp", device.special_ps_per_gop),
    )


def special_weights(measurements: Mapping[str, Any]) -> dict[str, float]:
    """How many exponentials each special function costs: for ``compiler.analysis.op_work.SPECIAL_WEIGHT``."""
    rates = {p["key"][0]: p["cold_us"] / p["amount"] for p in measurements["probes"] if p["family"] == "arithmetic"}
    one = rates.get("exp")
    return {name: round(rate / one, 2) for name, rate in rates.items() if name != "fma"} if one else {}


def _atomics(device: Device, probes: Probes, floor_us: float) -> Device:
    found = next((p for p in probes if p["key"][0] == TYPICAL_PLACES), None)
    return device if found is None else replace(device, atomic_ps_per_gop=_ps_per_gop(found, floor_us))


def _matmuls(device: Device, probes: Probes, floor_us: float) -> Device:
    return replace(device, tensor_ps_per_gop=round(median(_ps_per_gop(p, floor_us) for p in probes)))


def _attention(device: Device, probes: Probes, floor_us: float) -> Device:
    rates = [_ps_per_gop(p, floor_us) / device.tensor_ps_per_gop for p in probes]
    return replace(device, attention_percent=max(1, round(100 * median(rates))))


def _convolution(device: Device, probes: Probes, floor_us: float) -> Device:
    dense = [p for p in probes if p["key"][-1] == 1]
    rates = [_ps_per_gop(p, floor_us) / device.tensor_ps_per_gop for p in dense]
    return replace(device, convolution_percent=max(1, round(100 * median(rates)))) if rates else device


def _ps_per_gop(probe: Mapping[str, Any], floor_us: float) -> int:
    return round(max(1e-3, probe["cold_us"] - floor_us) * PS * GOP / probe["amount"])
