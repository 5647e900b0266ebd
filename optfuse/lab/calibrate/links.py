"""The link figures of a device file, from collectives timed by size and kernels timed beside them.

``link_start_ps``, ``link_hop_ps`` and ``link_ps_per_mib`` are those of the least sum of absolute *relative* errors:
each size counts alike, and an outlier counts no more than any other point. Start and hop are separated by the number
of ranks; measurements of one number leave the hop as the base has it. ``link_slowdown_percent`` is the geometric mean
of what kernels take beside a transfer, relative to alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from optfuse.compiler.analysis.link_time import collective_ps
from optfuse.errors import InvalidOptionError
from optfuse.problem.cost import MIB
from optfuse.problem.instance import Device

#: Picoseconds in a microsecond.
PS = 1_000_000
#: The collectives whose time the model tells; others in a file (in symmetric memory, for example) are left out.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
#: Transfers of so many bytes count: shorter ones are all start, longer ones are rare.
LEAST_BYTES, MOST_BYTES = 64 << 10, 512 << 20
#: Iterations of reweighted least squares, and the relative error below which a point gains no more weight.
ITERATIONS, NEAREST = 200, 1e-4


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of ``whole`` bytes (gathered, or to be scattered) among ``ranks``, and the time it took."""

    collective: str
    ranks: int
    whole: int
    us: float

    def __str__(self) -> str:
        """Name, size and ranks."""
        return f"{self.collective} of {self.whole / MIB:.4g} MiB among {self.ranks}"


@dataclass(frozen=True, slots=True)
class Links:
    """What was measured: transfers, and how many times longer each kernel takes beside one."""

    transfers: tuple[Transfer, ...]
    slowdowns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """Relative errors of predicted transfers, and the one that is told worst."""

    median_error: float
    worst_error: float
    worst: Transfer


def read_links(paths: Sequence[Path]) -> Links:
    """The measurements in files of JSON lines, as ``benchmarks/several_gpus.py --links`` writes them.

    Raises:
        InvalidOptionError: When a file cannot be read, or a line is of another form.
    """
    transfers: list[Transfer] = []
    slowdowns: list[float] = []
    for path in paths:
        for number, row in enumerate(_rows(path), 1):
            try:
                if "beside" in row:
                    slowdowns.append(float(row["with_link_us"]) / float(row["alone_us"]))
                elif row["link"] in COLLECTIVES:
                    one = Transfer(row["link"], int(row["ranks"]), int(row["bytes"]), float(row["us"]))
                    if one.ranks > 1 and one.us > 0 and LEAST_BYTES <= one.whole <= MOST_BYTES:
                        transfers.append(one)
            except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
                raise InvalidOptionError(f"{path}: line {number} is no measurement of links ({error!r})") from error
    return Links(tuple(transfers), tuple(slowdowns))


def fit_links(base: Device, links: Links, name: str) -> Device:
    """The base with the link figures that explain the measurements.

    Raises:
        InvalidOptionError: When the transfers are of fewer than two sizes.
    """
    if len({one.whole for one in links.transfers}) < 2:
        raise InvalidOptionError(
            f"transfers of two different sizes from {LEAST_BYTES >> 10} KiB to {MOST_BYTES >> 20} MiB are needed for "
            f"a fit; {', '.join(COLLECTIVES)} count"
        )
    fitted = replace(base, name=name, **_rates(base, links.transfers))
    if links.slowdowns:
        percent = max(0, round(100 * (geometric_mean(links.slowdowns) - 1)))
        fitted = replace(fitted, link_slowdown_percent=percent)
    return fitted


def link_quality(device: Device, transfers: Sequence[Transfer]) -> LinkQuality:
    """How well a device's figures tell the times of transfers, of which there is at least one."""
    errors = [abs(predicted_us(device, one) - one.us) / one.us for one in transfers]
    worst = max(range(len(errors)), key=errors.__getitem__)
    return LinkQuality(median(errors), errors[worst], transfers[worst])


def predicted_us(device: Device, one: Transfer) -> float:
    """What the model says of a transfer."""
    return collective_ps(one.collective, one.ranks, one.whole, replace(device, host_ranks=0)) / PS


def _rates(base: Device, transfers: Sequence[Transfer]) -> dict[str, int]:
    """The three figures of transfers by name; the hop only where the numbers of ranks differ."""
    steps = np.array([(2 if "all_reduce" in one.collective else 1) * (one.ranks - 1) for one in transfers], dtype=float)
    sent = np.array([one.whole / one.ranks / MIB for one in transfers]) * steps
    measured = np.array([one.us * PS for one in transfers])
    target = measured
    columns = {"link_start_ps": np.ones(len(transfers)), "link_hop_ps": steps, "link_ps_per_mib": sent}
    if len({one.ranks for one in transfers}) == 1:
        target = measured - base.link_hop_ps * columns.pop("link_hop_ps")
    found = dict.fromkeys(columns, 0)
    while columns:
        rates = _least_absolute(np.stack(list(columns.values()), axis=1), target, measured)
        negative = [name for name, rate in zip(columns, rates, strict=True) if rate < 0]
        if not negative:
            return {**found, **{name: round(rate) for name, rate in zip(columns, rates, strict=True)}}
        for name in negative:  # it stays 0
            del columns[name]
    return found


def _least_absolute(columns: Any, target: Any, scale: Any) -> list[float]:
    """The factors of columns for which the sum of |columns @ factors - target| / scale is least."""
    weights = np.ones(len(target))
    factors = np.zeros(columns.shape[1])
    for _ in range(ITERATIONS):
        weighted = weights / scale
        factors, *_ = np.linalg.lstsq(columns * weighted[:, None], target * weighted, rcond=None)
        errors = np.abs(columns @ factors - target) / scale
        weights = 1 / np.sqrt(np.maximum(errors, NEAREST))
    return [float(factor) for factor in factors]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{path}: cannot be read as JSON lines ({error})") from error
    if not all(isinstance(row, dict) for row in rows):
        raise InvalidOptionError(f"{path}: not measurements of links; give what several_gpus.py --links wrote")
    return rows
