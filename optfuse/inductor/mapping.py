"""Inductor's kernels as sets of our ops, by the graph nodes that both come from, and what does not fit.

- An op that Inductor computes in several kernels (it inlines pointwise ops into each user) is in each of these sets.
- So is a reduction that Inductor does in two stages and we in one op. Since here it is one op, both kernels become one
  when they are priced (``sets_to_price``). Where both have two stages, each is where its counterpart is.
- A library call of ours is a kernel of its own whatever Inductor makes of it, as is an op that Inductor has a library
  do; both are counted.
- An op that no kernel of Inductor's computes is *unmapped*, with a reason. It is priced in its users' kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest, Op
from optfuse.inductor.groups import Groups, Launch
from optfuse.inductor.wire import SETTLED, UPDATE
from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import bits, legal_index, mask_of

#: Inductor's graph passes removed its node; or no buffer of Inductor's computes it (folded into a constant or a view).
Reason = Literal["removed", "vanished"]


@dataclass(frozen=True, slots=True)
class Mapped:
    """Inductor's kernels in terms of our ops.

    Attributes
    ----------
    kernels
        For each launch of Inductor's, in its order, the loop ops that it computes; empty for library calls.
    unmapped
        Ops that no launch computes, with the reason.
    loops_there
        Library calls of ours for which Inductor generates loops.
    library_there
        Loop ops of ours that Inductor has a library do.
    two_stages
        Reductions of ours in one op that Inductor splits in two kernels.
    strangers
        Generated kernels of Inductor's that compute no op of ours (copies for libraries, seeds).
    """

    kernels: tuple[frozenset[int], ...]
    unmapped: tuple[tuple[int, Reason], ...]
    loops_there: tuple[int, ...]
    library_there: tuple[int, ...]
    two_stages: tuple[int, ...]
    strangers: int

    @property
    def placed(self) -> frozenset[int]:
        """The loop ops that some generated kernel of Inductor's computes."""
        return frozenset[int]().union(*self.kernels)

    @property
    def repeated(self) -> frozenset[int]:
        """The pointwise ops that Inductor computes in several kernels."""
        seen: set[int] = set()
        again: set[int] = set()
        for kernel in self.kernels:
            again |= seen & kernel
            seen |= kernel
        return frozenset(again.difference(self.two_stages))


def map_groups(graph: LoopGraph, groups: Groups) -> Mapped:
    """Put our ops where Inductor computes their nodes."""
    by_node: dict[str, list[int]] = {}
    for number, op in enumerate(graph.ops):
        by_node.setdefault(node_of(op), []).append(number)
    loops, library = _places(groups)
    kernels: list[set[int]] = [set() for _ in groups.launches]
    unmapped: list[tuple[int, Reason]] = []
    loops_there: list[int] = []
    library_there: list[int] = []
    two_stages: list[int] = []
    for node, ops in by_node.items():
        for rank, number in enumerate(ops):
            op = graph.ops[number]
            places = loops.get(node, ())
            if isinstance(op, LoopNest) and op.reductions:
                places = tuple(place for place in places if _makes(groups.launches[place], node)) or places
            if not places and node not in library:
                unmapped.append((number, "vanished" if _bare(node) in groups.kept else "removed"))
            elif isinstance(op, LibraryCall):
                loops_there += [] if node in library else [number]
            elif not places:
                library_there.append(number)
            elif len(ops) > 1:
                kernels[places[-1] if rank == len(ops) - 1 else places[0]].add(number)
            else:
                two_stages += [number] if op.reductions and len(places) > 1 else []
                for place in places:
                    kernels[place].add(number)
    strangers = sum(
        launch.kind != "library" and not kernel for launch, kernel in zip(groups.launches, kernels, strict=True)
    )
    return Mapped(
        tuple(map(frozenset, kernels)),
        tuple(sorted(unmapped)),
        tuple(sorted(loops_there)),
        tuple(sorted(library_there)),
        tuple(sorted(two_stages)),
        strangers,
    )


def sets_to_price(instance: Instance, mapped: Mapped) -> tuple[frozenset[int], ...]:
    """The kernels as they are to be priced; places are those of ``mapped.kernels``.

    Kernels that hold stages of one reduction are one, where the first of them is, and the others are empty. Unmapped
    ops are put where Inductor found a way to do without them, see ``_put_back``.
    """
    kernels = [set(kernel) for kernel in mapped.kernels]
    for op in mapped.two_stages:
        first, *rest = (place for place, kernel in enumerate(kernels) if op in kernel)
        for place in rest:
            kernels[first] |= kernels[place]
            kernels[place] = set()
    for op, _ in reversed(mapped.unmapped):
        if instance.ops[op].kind == "loop":
            _put_back(instance, kernels, op)
    return tuple(map(frozenset, kernels))


def _put_back(instance: Instance, kernels: Sequence[set[int]], op: int) -> None:
    """Put an unmapped op with its users if one kernel holds them all, else with those whose kernel makes what it takes.

    What then lies between the kernel's ops and it is in the kernel too (an online softmax has the exponentials of its
    sum, and what they are of).
    """
    index, reach = topology(instance), legal_index(instance).reach()
    users = {user for user, _ in index.users[op]}
    sources = {source for source, _ in index.sources[op]}
    homes = [kernel for kernel in kernels if users & kernel]
    if len(homes) != 1 or not users <= homes[0]:
        homes = [kernel for kernel in homes if sources & kernel] if instance.ops[op].recompute else []
    for home in homes:
        between = reach.ancestors[op] & mask_of(x for member in home for x in bits(reach.descendants[member]))
        home.update(x for x in bits(between) if instance.ops[x].recompute)
        home.add(op)


def _places(groups: Groups) -> tuple[Mapping[str, tuple[int, ...]], frozenset[str]]:
    """The generated kernels that compute each node, in order, and the nodes that libraries have a part in.

    Where no kernel computes all of a node (a rewrite took its last step away), those count that compute a part.
    """
    loops: dict[str, list[int]] = {}
    steps: dict[str, list[int]] = {}
    library: set[str] = set()
    for place, launch in enumerate(groups.launches):
        for part in launch.parts:
            if launch.kind == "library":
                library |= part.whole | part.partly
                continue
            for node in part.whole:
                loops.setdefault(node, []).append(place)
            for node in part.partly:
                steps.setdefault(node, []).append(place)
    found = {**steps, **loops}
    return {node: tuple(sorted(set(places))) for node, places in found.items()}, frozenset(library)


def _makes(launch: Launch, node: str) -> bool:
    """Whether a launch leaves a node's value in a buffer, as Inductor does with all reductions but very short ones."""
    return any(node in part.makes for part in launch.parts)


def node_of(op: Op) -> str:
    """The graph node that an op stands for, as the worker calls it; lowering adds copies at the graph's end."""
    node = op.origin.node
    if op.name.endswith("_update") and op.origin.target == "aten.copy_.default":
        return UPDATE + op.name.removesuffix("_update")
    return SETTLED + node if op.name == f"{node}_copy" else node


def _bare(node: str) -> str:
    return node.removeprefix(UPDATE).removeprefix(SETTLED)
