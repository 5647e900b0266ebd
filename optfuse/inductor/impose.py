"""Our partition in the place of Inductor's: within ``imposed``, its scheduler builds the kernels of a schedule of ours.

Inductor decides what shares a kernel in two places, and both are told what we want:

1. While lowering, a pointwise op becomes part of each of its users, or a buffer. Whatever one of our kernels leaves in
   memory is made a buffer (``_realized``); the rest is Inductor's choice, since inside of a kernel it does not matter.
2. Its scheduler then fuses buffers. Each gets the number of our kernel that computes its value (``_labels``), by the
   graph nodes that both come from. Its own fusion loop may fuse only what has the same number (``_only_within``), with
   its own idea of what is legal and without its idea of what pays; then whatever is left of a kernel is fused as
   far as its backend allows (``_join``), pointwise ops walked as sums over columns are where that helps (``walks.py``).

Nothing illegal is forced: a kernel that Inductor's backend cannot build comes out in several, and is counted.
Inductor's caches must be off: they do not know of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

from torch import fx

from optfuse.inductor.partition import Wanted
from optfuse.inductor.reading import is_last, names_of, read_parts
from optfuse.inductor.walks import walk_alike


@dataclass(frozen=True, slots=True)
class Imposed:
    """What became of our kernels of several ops: in Inductor, each is...

    Attributes
    ----------
    whole
        One kernel.
    part
        Several kernels, of which one at least holds several of Inductor's buffers.
    apart
        Several kernels of one buffer each.
    absent
        None: it has no buffer whose value is an op's of this kernel (removed, folded, or a library's).
    buffers, free
        Inductor's buffers with loops, and those of them that stand for no op of ours: it chooses their kernels.
    """

    whole: int
    part: int
    apart: int
    absent: int
    buffers: int
    free: int

    def as_json(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


@contextlib.contextmanager
def imposed(wanted: Wanted) -> Generator[list[Imposed]]:
    """Within, Inductor compiles one graph with the kernels that are wanted; what became of them is appended."""
    import torch._inductor.config as config
    from torch._inductor.virtualized import V

    found: list[Imposed] = []
    labels: dict[str, int] = {}

    def before(nodes: list[Any]) -> list[Any]:
        labels.update(_labels(nodes, wanted))
        return nodes

    def after(nodes: list[Any]) -> list[Any]:
        joined = _join(nodes, labels)
        found.append(_outcome(joined, labels, wanted))
        return joined

    passes = config.patch(_pre_fusion_custom_pass=before, _post_fusion_custom_pass=after, force_disable_caches=True)
    with passes, V.set_choices_handler(_only_within(labels)), _realized(wanted.written):
        yield found


def _only_within(labels: Mapping[str, int]) -> Any:
    """Inductor's choices, but for what to fuse: whatever has one label and shares data, and nothing of two labels.

    A shared value counts where both walk it alike (Inductor's score). Fused otherwise, they would take turns in one
    launch, in a tile that suits one of them. What has no label is fused as Inductor sees fit.
    """
    from torch._inductor.choices import InductorChoices

    def asking(theirs: Any) -> Any:
        def answer(scheduler: Any, one: Any, other: Any, score: int) -> bool:
            label, again = _label_of(one, labels), _label_of(other, labels)
            if label is None or again is None:
                return theirs(scheduler, one, other, score)
            return label == again and score > 0

        return staticmethod(answer)

    class Within(InductorChoices):
        can_fuse = asking(InductorChoices.can_fuse)
        can_fuse_vertical = asking(InductorChoices.can_fuse_vertical)
        can_fuse_horizontal = asking(InductorChoices.can_fuse_horizontal)

    return Within()


def _label_of(node: Any, labels: Mapping[str, int]) -> int | None:
    """The one label among a node's buffers; None where none has any."""
    return next((labels[leaf.get_name()] for leaf in node.get_nodes() if leaf.get_name() in labels), None)


@contextlib.contextmanager
def _realized(written: frozenset[str]) -> Generator[None]:
    """Within, lowering puts the values of these nodes of ours in memory, whoever uses them."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import TensorBox

    run_node = GraphLowering.run_node

    def running(self: Any, node: fx.Node) -> object:
        result = run_node(self, node)
        leaves = node.op == "call_function" and is_last(node) and not written.isdisjoint(names_of(node))
        if leaves and isinstance(result, TensorBox):
            result.realize()
        return result

    with mock.patch.object(GraphLowering, "run_node", running):
        yield


def _labels(nodes: Sequence[Any], wanted: Wanted) -> dict[str, int]:
    """The kernel of ours that each of Inductor's buffers belongs to, by the name of the node that computes it.

    Of a reduction in stages, those that read only the one before belong to the last stage of ours. A buffer whose value
    is no op's of ours goes with its users where these are all in one kernel, else with the last op
    that is computed on the way to it.
    """
    parts = read_parts(nodes)
    leaves = {leaf.get_name(): leaf for node in nodes for leaf in node.get_nodes()}
    makers: dict[str, list[str]] = {}
    for name in parts:
        for node in parts[name]["makes"]:
            makers.setdefault(node, []).append(name)
    labels: dict[str, int] = {}
    for node, names in makers.items():
        homes = wanted.homes.get(node, ())
        stages = {buffer for name in names for buffer in leaves[name].get_buffer_names()}
        for name in names if homes else ():
            later = {dep.name for dep in leaves[name].read_writes.reads} <= stages
            labels[name] = homes[-1 if later else 0]
    for name in reversed(list(parts)):
        if name in labels:
            continue
        users = {labels.get(user.get_name()) for out in leaves[name].get_outputs() for user in out.users}
        behind = [
            home for node in (*parts[name]["whole"], *parts[name]["partly"]) for home in wanted.homes.get(node, ())
        ]
        label = users.pop() if len(users) == 1 else None
        if label is None and behind:
            label = max(behind)
        if label is not None:
            labels[name] = label
    return labels


def _join(nodes: list[Any], labels: Mapping[str, int]) -> list[Any]:
    """Fuse what has one label as far as Inductor allows, pair by pair."""
    scheduler = nodes[0].scheduler
    fused = dict.fromkeys(nodes)
    by_label: dict[int, list[Any]] = {}
    for node in nodes:
        label = _label_of(node, labels)
        if label is not None:
            by_label.setdefault(label, []).append(node)
    held = _Nodes(fused)
    for members in by_label.values():
        while pair := _fusable(scheduler, members):
            one, other = pair
            made = scheduler.fuse_two_nodes(one, other, held)
            members[:] = sorted((*(m for m in members if m not in pair), made), key=lambda node: node.min_order)
    if len(fused) == len(nodes):
        return nodes
    return scheduler.topological_sort_schedule(sorted(fused, key=lambda node: node.min_order))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The scheduler's set of nodes, in order."""

    kept: dict[Any, None]

    def add(self, node: Any) -> None:
        """Put one in."""
        self.kept[node] = None

    def remove(self, node: Any) -> None:
        """Take one out."""
        del self.kept[node]


def _fusable(scheduler: Any, members: Sequence[Any]) -> tuple[Any, Any] | None:
    """The first two that may be fused, if any; where need be, one walks as the other does then."""
    pairs = [(one, other) for place, one in enumerate(members) for other in members[place + 1 :]]
    for one, other in pairs:
        found = _legal(scheduler, one, other)
        if found is not None:
            return found
    for one, other in pairs:
        take_back = walk_alike(one, other)
        if take_back is None:
            continue
        found = _legal(scheduler, one, other)
        if found is not None:
            return found
        take_back()
    return None


def _legal(scheduler: Any, one: Any, other: Any) -> tuple[Any, Any] | None:
    """Two nodes in the order in which they may be fused, if they may."""
    for pair in ((one, other), (other, one)):
        if scheduler.can_fuse(*pair, True) and not scheduler.will_fusion_create_cycle(*pair):
            return pair
    return None


def _outcome(nodes: Sequence[Any], labels: Mapping[str, int], wanted: Wanted) -> Imposed:
    from torch._inductor.scheduler import SchedulerNode

    pieces: dict[int, list[int]] = {}
    loops = free = 0
    for node in nodes:
        leaves = [leaf.get_name() for leaf in node.get_nodes() if isinstance(leaf, SchedulerNode)]
        ours = [name for name in leaves if name in labels]
        if ours:
            pieces.setdefault(labels[ours[0]], []).append(len(ours))
        loops, free = loops + len(leaves), free + len(leaves) - len(ours)
    several = [number for number, size in enumerate(wanted.sizes) if size > 1]
    shapes = [pieces.get(number, []) for number in several]
    return Imposed(
        whole=sum(len(shape) == 1 for shape in shapes),
        part=sum(len(shape) > 1 and max(shape) > 1 for shape in shapes),
        apart=sum(len(shape) > 1 and max(shape) == 1 for shape in shapes),
        absent=sum(not shape for shape in shapes),
        buffers=loops,
        free=free,
    )
