"""What was decided before the solver, in numbers: a certificate speaks of the graph in which it is decided already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, Size

Kind = Literal["normal form", "dominance", "decision"]

#: Of a decision's parts so many are named.
NAMED_PARTS = 6


@dataclass(frozen=True, slots=True)
class Decision:
    """One kind of thing that was decided: ``str`` of it is such as "12 values inlined".

    ``name`` is the pass that did it, of ``kind``; ``what`` says in the plural what ``count`` counts, ``parts`` how the
    count falls into named ones.
    """

    name: str
    kind: Kind
    count: int
    what: str
    parts: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """Count, what, and the largest parts."""
        text = f"{self.count:,} {self.what if self.count != 1 else self.what.replace('s ', ' ', 1)}"
        named = [f"{name} {count:,}" for name, count in self.parts[:NAMED_PARTS]]
        rest = sum(count for _, count in self.parts[NAMED_PARTS:])
        return f"{text} ({', '.join([*named, f'others {rest:,}'] if rest else named)})" if named else text


#: In the place of the passes' counts where a plan was saved before there were any.
UNRECORDED = Decision("unrecorded", "decision", 0, "rewrites recorded when this plan was saved")


def of_graph(graph: LoopGraph) -> tuple[Decision, ...]:
    """What the graph that is scheduled shows by itself: rows that the frontend has padded, and library calls."""
    padded = sum(buffer.kind == "temporary" and _has_gaps(buffer.shape, buffer.stride) for buffer in graph.buffers)
    calls = Counter(".".join(op.target.split(".")[:2]) for op in graph.ops if isinstance(op, LibraryCall))
    parts = tuple(sorted(calls.items(), key=lambda item: (-item[1], item[0])))
    found = (
        Decision("choose_layouts", "decision", padded, "values in padded rows"),
        Decision("library_calls", "decision", calls.total(), "operators given to libraries", parts),
    )
    return tuple(decision for decision in found if decision.count)


def standing(decided: Iterable[Decision], *, capped: bool) -> tuple[Decision, ...]:
    """Those that a certificate does not cover. ``capped``: memory has a cap, for which no dominance is proven."""
    return tuple(decision for decision in decided if capped or decision.kind == "decision")


def decisions_to_json(decided: Sequence[Decision]) -> list[Any]:
    """Plain data."""
    return [[d.name, d.kind, d.count, d.what, [list(part) for part in d.parts]] for d in decided]


def decisions_from_json(data: Any) -> tuple[Decision, ...]:
    """Read what ``decisions_to_json`` gives. Raises TypeError or ValueError if it is malformed."""
    return tuple(
        Decision(str(name), _kind(kind), int(count), str(what), tuple((str(part), int(n)) for part, n in parts))
        for name, kind, count, what, parts in data
    )


def _kind(text: Any) -> Kind:
    kinds: tuple[Kind, ...] = ("normal form", "dominance", "decision")
    for kind in kinds:
        if text == kind:
            return kind
    raise ValueError(f"no kind of decision is called {text!r}")


def _has_gaps(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether elements of a buffer lie apart although no dimension is expanded."""
    dense = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda pair: int(pair[1])):
        if int(size) > 1:
            if int(step) > dense:
                return True
            dense *= int(size)
    return False
