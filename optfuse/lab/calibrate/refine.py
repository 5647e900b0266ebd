"""Figures of a device that explain the kernels of real models best: the second step of a calibration.

Probes run one thing at a time; kernels of models find part of their inputs in L2, and the code generator's tiles differ
from a probe's. So the figures that price kernels are moved, from where the probes put them, to where the predictions of
measured kernels have the least sum of absolute relative errors (on a logarithmic scale, large errors counted as one
octave and a half at most, so that an outlier does not bend the rest).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, nan, sqrt

from optfuse.lab.bench.statistics import median_or_none, relative_errors, spearman
from optfuse.lab.calibrate.samples import Sample
from optfuse.problem.cost import GOP, MIB, access_percent
from optfuse.problem.instance import Device

#: Picoseconds in a microsecond.
PS = 1_000_000
#: What is moved, in this order: first the figures that most kernels depend on.
FIELDS = (
    "launch_ps", "dram_ps_per_mib", "ramp_ps", "l2_ps_per_mib", "l2_write_ps_per_mib", "l2_bytes", "column_percent",
    "strided_percent", "gather_percent", "fp32_ps_per_gop", "special_ps_per_gop", "tensor_ps_per_gop",
    "library_start_ps", "library_overlap_percent", "attention_percent", "convolution_percent", "depthwise_percent",
)  # fmt: skip
#: The least that a figure may be; 1 where nothing is said.
LEAST = {"strided_percent": 100, "gather_percent": 100, "column_percent": 100, "library_overlap_percent": 0}
#: The most that a figure may be.
MOST = {"library_overlap_percent": 100}
#: Steps begin with this factor, on a logarithmic scale, and shrink by this one where neither direction helps.
FIRST_STEP, SHRINK = 0.3, 0.6
ROUNDS = 30
#: No kernel counts as more wrong than this.
FURTHEST = 1.0


def refine(device: Device, samples: Sequence[Sample]) -> Device:
    """Move one figure at a time, up or down, as long as the sum of errors falls."""
    best, least = device, error(device, samples)
    steps = dict.fromkeys(FIELDS, FIRST_STEP)
    for _ in range(ROUNDS):
        for name in FIELDS:
            for direction in (1, -1):
                moved = _moved(best, name, direction * steps[name])
                found = error(moved, samples)
                if found < least:
                    best, least = moved, found
                    break
            else:
                steps[name] *= SHRINK
    return best


def error(device: Device, samples: Sequence[Sample]) -> float:
    """The sum of distances between prediction and measurement, on a logarithmic scale."""
    total = 0.0
    for sample in samples:
        distance = abs(log(max(1.0, predicted_ps(sample, device)) / (sample.measured_us * PS)))
        total += min(distance, FURTHEST) * sqrt(sample.count)
    return total


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a device's prices tell the times of ``kernels`` measured ones."""

    kernels: int
    spearman: float
    median_relative_error: float


def quality(device: Device, samples: Sequence[Sample]) -> Quality:
    """Spearman's correlation and the median relative error, each kernel as often as it ran; nan without kernels."""
    predicted = [predicted_ps(sample, device) / PS for sample in samples for _ in range(sample.count)]
    measured = [sample.measured_us for sample in samples for _ in range(sample.count)]
    correlation = spearman(predicted, measured)
    middle = median_or_none(relative_errors(predicted, measured))
    return Quality(len(measured), nan if correlation is None else correlation, nan if middle is None else middle)


def predicted_ps(sample: Sample, device: Device) -> float:
    """What ``problem.cost`` and ``compiler.analysis.op_work`` make of the sample on a device, but for rounding."""
    memory = sum(_traffic_ps(sample, k, device) for k in range(len(sample.traffic)))
    if sample.programs:
        memory *= max(device.saturating_programs, sample.programs) / sample.programs
    work = sample.work
    compute = (
        work.fp32 * device.fp32_ps_per_gop
        + work.special * device.special_ps_per_gop
        + work.tensor * device.tensor_ps_per_gop
        + work.atomic * device.atomic_ps_per_gop
    ) / GOP
    if sample.library is not None:
        compute = max(compute, _library_ps(sample, device))
    return device.launch_ps + max(memory, compute)


def _traffic_ps(sample: Sample, k: int, device: Device) -> float:
    one = sample.traffic[k]
    amount = one.bytes * access_percent(one.access, device) / 100
    resident = 0 < one.temporary * 8 <= device.l2_bytes
    rate = device.dram_ps_per_mib
    if resident:
        rate = device.l2_ps_per_mib if one.way == "read" else device.l2_write_ps_per_mib or rate
    first = amount * rate / MIB
    return first + min(first, device.ramp_ps) + one.again * amount * device.l2_ps_per_mib / MIB


def _library_ps(sample: Sample, device: Device) -> float:
    percents = {
        "attention": device.attention_percent,
        "convolution": device.convolution_percent,
        "depthwise": device.depthwise_percent,
    }
    percent = percents.get(sample.library or "other", 100)
    compute = sample.operations * percent / 100 * device.tensor_ps_per_gop / GOP
    memory = sum(one.bytes for one in sample.traffic) * device.dram_ps_per_mib / MIB
    exposed = min(compute, memory) * (100 - device.library_overlap_percent) / 100
    return device.library_start_ps + max(compute, memory) + exposed


def _moved(device: Device, name: str, step: float) -> Device:
    before = getattr(device, name)
    after = round(before * exp(step))
    if after == before:
        after += 1 if step > 0 else -1
    return replace(device, **{name: min(max(after, LEAST.get(name, 1)), MOST.get(name, after + 1))})
