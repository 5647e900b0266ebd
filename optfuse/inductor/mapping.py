"""Maps Inductor's kernels to sets of our ops, by the graph nodes that both come from.

- An op that Inductor recomputes in several kernels (it inlines pointwise ops into each consumer) is in each set.
- So is a reduction that Inductor splits in two stages and we do in one op. As it is one op here, both kernels are
  priced as one (``sets_to_price``). Where both split it, each stage is mapped to its counterpart.
- A library call of ours stays a kernel of its own, as does an op for which Inductor calls a library; both are counted.
- Of ops that are alternatives one is mapped, but for a product that Inductor computes by a template of its own
  (max-autotune): its kernel has our dot for it, if there is one.
- An op that no kernel of Inductor's computes is *unmapped*, with a reason. It is priced in its consumers' kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest, Op
from optfuse.inductor.graph_record import LAYOUT_COPY, UPDATE
from optfuse.inductor.groups import Groups, Launch
from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import bits, mask_of

#: removed: Inductor's graph passes removed its node. vanished: no buffer computes it (folded into a constant or view).
Reason = Literal["removed", "vanished"]


@dataclass(frozen=True, slots=True)
class Mapped:
    """Inductor's kernels in terms of our ops.

    Attributes:
        kernels: For each launch of Inductor's, in its order, the loop ops that it computes; empty for library calls.
        unmapped: Ops that no launch computes, with the reason.
        loops_there: Library calls of ours for which Inductor generates loops.
        library_there: Loop ops of ours for which Inductor calls a library.
        two_stages: Reductions that are one op here and that Inductor splits in two kernels.
        strangers: Generated kernels of Inductor's that compute no op of ours (copies for libraries, seeds).
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


def map_groups(graph: LoopGraph, groups: Groups, without: Collection[int] = ()) -> Mapped:
    """Return for each of Inductor's launches the ops of ours that it computes.

    ``without``: ops of alternatives that do not run. A dot among them runs where Inductor has a template.
    """
    by_node: dict[str, list[int]] = {}
    for number, op in enumerate(graph.ops):
        if number not in without:
            by_node.setdefault(node_of(op), []).append(number)
    loops, library = _kernels_by_node(groups)
    dots = _dots_of_templates(graph, groups, without, loops)
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
                places = tuple(place for place in places if _stores(groups.launches[place], node)) or places
            if not places and node not in library:
                unmapped.append((number, "vanished" if _graph_node(node) in groups.kept else "removed"))
            elif isinstance(op, LibraryCall):
                loops_there += [] if node in library or node in dots else [number]
            elif not places:
                library_there.append(number)
            elif len(ops) > 1:
                kernels[places[-1] if rank == len(ops) - 1 else places[0]].add(number)
            else:
                two_stages += [number] if op.reductions and len(places) > 1 else []
                for place in places:
                    kernels[place].add(number)
    for number, place in dots.values():
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


def _dots_of_templates(
    graph: LoopGraph, groups: Groups, without: Collection[int], loops: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, int]]:
    """By node that Inductor computes by a template: our dot for it, and the template's launch."""
    called = {node_of(op) for op in graph.ops if isinstance(op, LibraryCall)}
    found: dict[str, tuple[int, int]] = {}
    for number in sorted(without):
        node = node_of(graph.ops[number])
        for place in loops.get(node, ()) if node in called else ():
            if groups.launches[place].kind == "template":
                found.setdefault(node, (number, place))
    return found


def sets_to_price(instance: Instance, mapped: Mapped) -> tuple[frozenset[int], ...]:
    """Return the sets of ops to price as kernels, in the order of ``mapped.kernels``.

    Kernels with stages of one reduction are merged into the first of them, and the others left empty. Unmapped ops are
    added to kernels of their consumers, see ``_attach_unmapped``.
    """
    kernels = [set(kernel) for kernel in mapped.kernels]
    for op in mapped.two_stages:
        first, *rest = (place for place, kernel in enumerate(kernels) if op in kernel)
        for place in rest:
            kernels[first] |= kernels[place]
            kernels[place] = set()
    for op, _ in reversed(mapped.unmapped):
        if instance.ops[op].kind == "loop":
            _attach_unmapped(instance, kernels, op)
    return tuple(map(frozenset, kernels))


def _attach_unmapped(instance: Instance, kernels: Sequence[set[int]], op: int) -> None:
    """Add an unmapped op to the kernel of all its consumers, else to each that has both a consumer and a producer.

    Ops between the kernel and the unmapped op are added too: for an online softmax, the exponentials of its sum and
    their arguments.
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


def _kernels_by_node(groups: Groups) -> tuple[Mapping[str, tuple[int, ...]], frozenset[str]]:
    """Return the generated kernels that compute each node, by index, and the nodes that library calls compute.

    If no kernel computes all of a node (a rewrite removed its last step), those that compute a part of it count.
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


def _stores(launch: Launch, node: str) -> bool:
    """Whether a launch stores a node's value, as Inductor does for all but very short reductions."""
    return any(node in part.makes for part in launch.parts)


def node_of(op: Op) -> str:
    """The name that the worker gives to an op's graph node. Copies that lowering adds have names of their own."""
    node = op.origin.node
    if op.name.endswith("_update") and op.origin.target == "aten.copy_.default":
        return UPDATE + op.name.removesuffix("_update")
    return LAYOUT_COPY + node if op.name == f"{node}_copy" else node


def _graph_node(node: str) -> str:
    return node.removeprefix(UPDATE).removeprefix(LAYOUT_COPY)
