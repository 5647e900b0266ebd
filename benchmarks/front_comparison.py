"""How our points of time and memory stand beside each of Inductor's: lines of Markdown for ``benchmarks/fronts.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


def comparison(measured: Sequence[Row]) -> list[str]:
    """Lines on how our points stand beside each of Inductor's, by model and in geometric mean."""
    ours = [row for row in measured if row["system"].startswith("optfuse")]
    held: dict[str, float] = {}  # a process's later points have libraries' workspaces before the step: the least counts
    for row in measured:
        held[row["model"]] = min(row.get("held_mib", 0.0), held.get(row["model"], math.inf))
    beside = [versus(row, ours, held[row["model"]]) for row in measured if row["system"].startswith("inductor")]
    beside = sorted((one for one in beside if one is not None), key=lambda one: (one.model, one.name))
    if not beside:
        return []
    lines = [
        "\n| model | peer | our memory beyond what is held, at no more time | our time at no more memory |",
        "|---|---|---|---|",
    ]
    for one in beside:
        lines.append(f"| {one.model} | {one.name} | {ratio(one.memory)} | {ratio(one.time)} |")
    for name in [*sorted({one.name for one in beside}), "all"]:
        chosen = [one for one in beside if name in (one.name, "all")]
        means = (mean([one.memory for one in chosen]), mean([one.time for one in chosen]))
        lines.append(f"| geometric mean | {name} | {' | '.join(means)} |")
    lines += [f"\nNot dominated by ours: {one.model}, {one.name}" for one in beside if not one.dominated]
    lines += [
        f"\nDominated by {one.model}, {one.name}: ours of {row['ms']:,.2f} ms and {row['peak_mib']:,.0f} MiB"
        for one in beside
        for row in one.beaten
    ]
    off = [(abs(row["predicted_mib"] / row["peak_mib"] - 1), row) for row in ours if row["peak_mib"]]
    if off:
        most, row = max(off, key=lambda one: one[0])
        lines.append(f"\nLargest error of a predicted peak: {most:.1%}, {row['model']} at {row['peak_mib']:,.0f} MiB")
    return lines


@dataclass(frozen=True)
class Versus:
    """Our points of a model beside one of Inductor's.

    ``memory``: our least memory beyond what is held before the step, at no more time, as a share of the peer's;
    ``time``: our least time at no more memory, as a share. None where no point of ours is so good. ``dominated``: one
    of ours is at least as good in both. ``beaten``: those of ours that the peer is better than in both.
    """

    model: str
    name: str
    memory: float | None
    time: float | None
    dominated: bool
    beaten: tuple[Row, ...]


def versus(peer: Row, ours: Sequence[Row], held: float) -> Versus | None:
    """Compare our points with a peer's; None if there are none of its model, or memory was not measured.

    ``held``: the MiB in memory before a step.
    """
    ours = [row for row in ours if row["model"] == peer["model"] and row["size"] == peer["size"]]
    above = peer["peak_mib"] - held
    if not ours or above <= 0:
        return None
    in_time = [row["peak_mib"] - held for row in ours if row["ms"] <= peer["ms"]]
    in_memory = [row["ms"] for row in ours if row["peak_mib"] <= peer["peak_mib"]]
    return Versus(
        peer["model"],
        peer["system"] + ("" if peer["setting"] is None else f" {peer['setting']:g}"),
        min(in_time) / above if in_time else None,
        min(in_memory) / peer["ms"] if in_memory else None,
        any(row["ms"] <= peer["ms"] and row["peak_mib"] <= peer["peak_mib"] for row in ours),
        tuple(row for row in ours if peer["ms"] < row["ms"] and peer["peak_mib"] < row["peak_mib"]),
    )


def ratio(of: float | None) -> str:
    """A ratio as a cell."""
    return "none" if of is None else f"{of:.2f}"


def mean(ratios: Sequence[float | None]) -> str:
    """The geometric mean of those that are there, and of how many that is."""
    there = [one for one in ratios if one is not None]
    if not there:
        return "none"
    return f"{math.exp(sum(map(math.log, there)) / len(there)):.2f} ({len(there)} of {len(ratios)})"
