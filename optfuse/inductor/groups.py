"""Inductor's answer as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

LaunchKind = Literal["loops", "mix_order", "foreach", "template", "library"]


@dataclass(frozen=True, slots=True)
class Part:
    """One of Inductor's buffers and what is computed for it, as names of our graph's nodes.

    ``whole``: nodes whose value is computed here; ``partly``: nodes of which only a step is. ``makes``: those whose
    value the buffer holds. ``calls``: the library's function. ``reduces``: it is a reduction, or a stage of one.
    """

    name: str
    whole: frozenset[str]
    partly: frozenset[str]
    makes: frozenset[str]
    calls: str
    reduces: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """A generated kernel or a library call.

    "mix_order": a reduction over rows and one over columns of the same values, the latter in two stages. "foreach":
    several kernels' worth in one launch.
    """

    name: str
    kind: LaunchKind
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """What Inductor runs, in its order. ``kept``: our nodes that were still in its graph when it lowered it.

    ``torch`` and ``device``: the version whose decisions these are, and the GPU that it was compiling for. ``imposed``:
    what became of a partition that it was told to take, as ``impose.Imposed`` counts; None where it chose its own.
    """

    launches: tuple[Launch, ...]
    kept: frozenset[str]
    torch: str
    device: str
    imposed: Mapping[str, int] | None = None


def groups_from_json(data: Mapping[str, Any]) -> Groups:
    """The answer that the worker wrote."""
    return Groups(
        tuple(
            Launch(launch["name"], launch["kind"], tuple(_part(part) for part in launch["parts"]))
            for launch in data["kernels"]
        ),
        frozenset(data["kept"]),
        data["torch"],
        data["device"],
        data.get("imposed"),
    )


def _part(data: Mapping[str, Any]) -> Part:
    whole, partly, makes = (frozenset(data[key]) for key in ("whole", "partly", "makes"))
    return Part(data["name"], whole, partly, makes, data["calls"], data["reduces"])
