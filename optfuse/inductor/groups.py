"""The kernels and library calls that Inductor runs for a graph, with the graph nodes that each computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

LaunchKind = Literal["loops", "mix_order", "foreach", "template", "library"]


@dataclass(frozen=True, slots=True)
class Part:
    """One of Inductor's buffers, with the nodes of our graph that are computed for it, by name.

    Attributes:
        whole: Nodes whose value is computed here.
        partly: Nodes of which only some steps are computed here.
        makes: Nodes whose value the buffer holds.
        calls: The library function, "" for generated code.
        reduces: Whether this is a reduction, or a stage of one.
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

    "mix_order": a row reduction and a column reduction of the same values in one kernel, the latter in two stages.
    "foreach": several kernels in one launch.
    """

    name: str
    kind: LaunchKind
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """Inductor's schedule of a graph.

    Attributes:
        launches: Kernels and library calls, in the order that they run.
        kept: Our nodes that were still in Inductor's graph when it was lowered.
        torch, device: The version of torch, and the GPU that it compiled for.
        imposed: The counts of ``impose.Imposed`` where a partition was imposed; None where Inductor chose its own.
    """

    launches: tuple[Launch, ...]
    kept: frozenset[str]
    torch: str
    device: str
    imposed: Mapping[str, int] | None = None


def groups_from_json(data: Mapping[str, Any]) -> Groups:
    """Parse the answer that the worker wrote."""
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
