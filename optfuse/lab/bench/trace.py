"""A profile in Chrome's trace format, as the sequence of what the host launched and how long the device took for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Ranges of this name and a number mark the profiled calls.
RUN = "optfuse.run."

_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel or copy on the device.

    ``us`` is its duration; ``op`` the outermost ATen operator that launched it, by position in the run's ``ops`` (-1:
    none, as for a Triton kernel or a graph's replay). ``start`` orders work on the device, in microseconds.
    """

    name: str
    us: float
    start: float
    op: int
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One profiled call: device work in the order in which the host asked for it, and the ATen operators called."""

    work: tuple[Work, ...]
    ops: tuple[str, ...]

    @property
    def busy_us(self) -> float:
        """Microseconds in which something ran: overlapping work counts once."""
        total, end = 0.0, float("-inf")
        for item in sorted(self.work, key=lambda item: item.start):
            total += max(0.0, item.start + item.us - max(end, item.start))
            end = max(end, item.start + item.us)
        return total

    def us_of(self, chosen: Callable[[str], bool]) -> float:
        """Microseconds of the work whose name is chosen."""
        return sum(item.us for item in self.work if chosen(item.name))


@dataclass(frozen=True, slots=True)
class Trace:
    """All profiled calls."""

    runs: tuple[Run, ...]

    @property
    def typical(self) -> Run:
        """The call with the median busy time."""
        ordered = sorted(self.runs, key=lambda run: run.busy_us)
        return ordered[len(ordered) // 2]

    def by_name(self) -> list[tuple[str, int, float]]:
        """(kernel, launches a call, microseconds a call) of the typical call, the most expensive first."""
        found: dict[str, tuple[int, float]] = {}
        for item in self.typical.work:
            count, us = found.get(item.name, (0, 0.0))
            found[item.name] = (count + 1, us + item.us)
        return sorted(((name, count, us) for name, (count, us) in found.items()), key=lambda row: -row[2])


def read_trace(text: str, runs: int) -> Trace:
    """Read a profile in which each call is marked by a range ``RUN`` and its number."""
    events = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    ranges = {
        int(event["name"].removeprefix(RUN)): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(RUN)
    }
    launched = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    work = [event for event in events if event.get("cat") in _DEVICE_WORK]
    ops = _outermost(event for event in events if event.get("cat") == "cpu_op" and _is_operator(event["name"]))
    return Trace(tuple(_run(*ranges[k], work, launched, ops) for k in range(runs) if k in ranges))


def _is_operator(name: str) -> bool:
    """Operators have a namespace; what autograd and Python wrap around them has none, or autograd's."""
    return "::" in name and not name.startswith("autograd::")


def _run(
    start: float,
    end: float,
    work: Sequence[Mapping[str, Any]],
    launched: Mapping[int, Mapping[str, Any]],
    ops: Sequence[Mapping[str, Any]],
) -> Run:
    inside = [op for op in ops if start <= op["ts"] <= end]
    found: list[tuple[float, float, Work]] = []
    for event in work:
        launch = launched.get(event.get("args", {}).get("correlation"), event)
        if start <= launch["ts"] <= end:
            made = Work(event["name"], event["dur"], event["ts"], _caller(launch, inside), event.get("args", {}))
            found.append((launch["ts"], event["ts"], made))
    found.sort(key=lambda item: item[:2])
    return Run(tuple(item[2] for item in found), tuple(op["name"] for op in inside))


def _caller(launch: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]) -> int:
    """The operator around a launch: the last one on its thread that began before it, if it had not ended."""
    low, high = 0, len(ops)
    while low < high:
        middle = (low + high) // 2
        if ops[middle]["ts"] <= launch["ts"]:
            low = middle + 1
        else:
            high = middle
    for k in range(low - 1, max(-1, low - 9), -1):  # other threads' operators lie in between, if few
        op = ops[k]
        if op.get("tid") == launch.get("tid"):
            return k if launch["ts"] <= op["ts"] + op["dur"] else -1
    return -1


def _outermost(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Operators that no other operator of their thread called, in time order."""
    ends: dict[Any, float] = {}
    kept: list[Mapping[str, Any]] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= ends.get(event.get("tid"), float("-inf")):
            ends[event.get("tid")] = event["ts"] + event["dur"]
            kept.append(event)
    return kept
