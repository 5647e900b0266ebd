"""Decisions made before the solver, with their counts: a certificate holds for the graph after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest
from optfuse.compiler.ir.sizes import hint
from optfuse.compiler.ir.traversal import dot_in

Kind = Literal["normal form", "dominance", "decision"]

#: The largest number of a decision's parts that are named.
NAMED_PARTS = 6


@dataclass(frozen=True, slots=True)
class Decision:
    """The decisions of one pass; ``str`` gives text such as "12 values inlined".

    ``name`` is the pass and ``kind`` its kind; ``what`` names in the plural what ``count`` counts, ``parts`` splits the
    count by name.
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


#: Stands in for the counts in plans that were saved before counts were recorded.
UNRECORDED = Decision("unrecorded", "decision", 0, "rewrites recorded when this plan was saved")


def of_graph(graph: LoopGraph) -> tuple[Decision, ...]:
    """The frontend's decisions as the graph shows them: values in padded rows, and calls that have no alternative."""
    padded = sum(buffer.kind == "temporary" and _has_gaps(buffer.shape, buffer.stride) for buffer in graph.buffers)
    products = {store.buffer for op in graph.ops if isinstance(op, LoopNest) and dot_in(op) for store in op.stores}
    given = [op for op in graph.ops if isinstance(op, LibraryCall) and not products.intersection(op.outputs)]
    calls = Counter(".".join(op.target.split(".")[:2]) for op in given)
    parts = tuple(sorted(calls.items(), key=lambda item: (-item[1], item[0])))
    found = (
        Decision("choose_layouts", "decision", padded, "values in padded rows"),
        Decision("library_calls", "decision", calls.total(), "operators given to libraries", parts),
    )
    return tuple(decision for decision in found if decision.count)


def uncertified(decided: Iterable[Decision], *, capped: bool) -> tuple[Decision, ...]:
    """The decisions that a certificate does not cover: under a memory cap (``capped``), those of dominance as well."""
    return tuple(decision for decision in decided if capped or decision.kind == "decision")


def decisions_to_json(decided: Sequence[Decision]) -> list[Any]:
    """The decisions as JSON data."""
    return [[d.name, d.kind, d.count, d.what, [list(part) for part in d.parts]] for d in decided]


def decisions_from_json(data: Any) -> tuple[Decision, ...]:
    """The decisions that ``decisions_to_json`` wrote. Raises TypeError or ValueError if the data is malformed."""
    return tuple(
        Decision(str(name), _kind(kind), int(count), str(what), tuple((str(part), int(n)) for part, n in parts))
        for name, kind, count, what, parts in data
    )


def _kind(text: Any) -> Kind:
    if text not in get_args(Kind):
        raise ValueError(f"no kind of decision is called {text!r}")
    return text


def _has_gaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a layout has gaps between elements, expanded dimensions aside."""
    dense = 1
    for size, step in sorted(zip(map(hint, shape), map(hint, stride), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if step > dense:
                return True
            dense *= size
    return False
