"""Makes Inductor's scheduler build the kernels of a schedule of ours, within the context ``imposed``.

Inductor decides in two places what shares a kernel, and both are overridden:

1. Lowering inlines a pointwise op into each consumer, or makes it a buffer. A value that one of our kernels stores is
   made a buffer (``_realized``); for other values the choice is Inductor's, as it does not change our kernels.
2. The scheduler fuses buffers. Each buffer is labelled with our kernel that computes its value (``_labels``), by the
   graph nodes that both come from. Inductor's fusion loop may fuse only buffers with equal labels (``_only_within``),
   under its own legality but without its profitability. What is left of a kernel is then fused as far as its backend
   allows (``_join``); where it helps, pointwise loops are reordered to match column sums (``loop_orders.py``).

Nothing illegal is forced: a kernel that Inductor's backend cannot build becomes several, and is counted. Inductor's
caches must be off, because their keys do not include the partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

from torch import fx

from optfuse.inductor.loop_orders import match_loop_order
from optfuse.inductor.partition import Wanted
from optfuse.inductor.schedule_record import is_last, names_of, read_parts


@dataclass(frozen=True, slots=True)
class Imposed:
    """Counts of our kernels of several ops by what Inductor builds for each.

    Attributes:
        whole: One kernel.
        part: Several kernels, of which one at least holds several of Inductor's buffers.
        apart: Several kernels of one buffer each.
        absent: No kernel: no buffer holds the value of one of its ops (removed, folded, or computed by a library).
        buffers, free: Inductor's buffers with loops, and those of them that match no op of ours: Inductor chooses their
            kernels.
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
    """Context in which Inductor compiles one graph with the kernels of ``wanted``; it yields a list of the outcome."""
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
    """Inductor's choices, except that labelled nodes fuse if and only if labels are equal and both share data.

    A shared value counts if both access it in the same loop order (Inductor's score). Otherwise the fused kernel would
    run both one after the other, in a tile that suits only one. Nodes without a label fuse as Inductor decides.
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
    """The label of a node's buffers; None if none has one."""
    return next((labels[leaf.get_name()] for leaf in node.get_nodes() if leaf.get_name() in labels), None)


@contextlib.contextmanager
def _realized(written: frozenset[str]) -> Generator[None]:
    """Context in which lowering makes the value of each node of ``written`` a buffer."""
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
    """Return the kernel of ours for each of Inductor's buffers, by the name of the scheduler node that computes it.

    Stages of a reduction that read only earlier stages belong to the last stage of ours. A buffer that matches no op of
    ours takes the kernel of its consumers if they agree, else that of the last op computed for it.
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
    """Fuse nodes with equal labels pair by pair, as far as Inductor allows."""
    from torch.utils._ordered_set import OrderedSet

    scheduler = nodes[0].scheduler
    fused = OrderedSet(nodes)
    by_label: dict[int, list[Any]] = {}
    for node in nodes:
        label = _label_of(node, labels)
        if label is not None:
            by_label.setdefault(label, []).append(node)
    for members in by_label.values():
        while pair := _fusable(scheduler, members):
            one, other = pair
            made = scheduler.fuse_two_nodes(one, other, fused)
            members[:] = sorted((*(m for m in members if m not in pair), made), key=lambda node: node.min_order)
    if len(fused) == len(nodes):
        return nodes
    return scheduler.topological_sort_schedule(sorted(fused, key=lambda node: node.min_order))


def _fusable(scheduler: Any, members: Sequence[Any]) -> tuple[Any, Any] | None:
    """The first pair that may be fused, after reordering the loops of one if needed; None if there is none."""
    pairs = [(one, other) for place, one in enumerate(members) for other in members[place + 1 :]]
    for one, other in pairs:
        found = _legal(scheduler, one, other)
        if found is not None:
            return found
    for one, other in pairs:
        restore = match_loop_order(one, other)
        if restore is None:
            continue
        found = _legal(scheduler, one, other)
        if found is not None:
            return found
        restore()
    return None


def _legal(scheduler: Any, one: Any, other: Any) -> tuple[Any, Any] | None:
    """Two nodes in the order in which Inductor may fuse them; None if it may not."""
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
