"""Extract the fusion problem of a loop graph: its ops, schemes, buffers and edges, and the map back to the loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from optfuse.compiler.analysis.access import NestAccesses, accesses
from optfuse.compiler.analysis.dependence import Dependence, dependences, footprint
from optfuse.compiler.analysis.edge_legality import shared_walks
from optfuse.compiler.analysis.link_time import transfer_ps
from optfuse.compiler.analysis.memory_traffic import Footprints, offer, scheme_of
from optfuse.compiler.analysis.op_work import ITEM_BYTES, buffer_bytes, dot_time, library_work, nest_work, updated_bytes
from optfuse.compiler.analysis.placement import Placements, place
from optfuse.compiler.extract.approximation import may_approximate
from optfuse.compiler.extract.forms import op_forms
from optfuse.compiler.extract.offered_schemes import offered_walks
from optfuse.compiler.ir.alternatives import first_alternatives, variants_of
from optfuse.compiler.ir.collectives import is_start, is_wait, never_waited_for
from optfuse.compiler.ir.devices import main_device
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, LoopNest, View, memory_of, views
from optfuse.compiler.ir.sizes import hint
from optfuse.compiler.ir.traversal import dot_in
from optfuse.compiler.simplify.decisions import Decision
from optfuse.problem import instance as problem
from optfuse.problem.cost import GOP
from optfuse.problem.instance import ALONE, Device, Instance, Offer, Read, Scheme, Write

#: Weight of an op of which a kernel holds one at most: a product of matrices, whose sums fill the registers.
ONE_A_KERNEL = problem.Limits().max_weight // 2 + 1


@dataclass(frozen=True, slots=True)
class Extraction:
    """An Instance and its loop graph: op k is ``graph.ops[k]``, scheme s+1 is ``placements.walks[s]``.

    ``touched`` (the ops' accesses) and ``dependences`` serve explanations. ``approximate``: see ``may_approximate``.
    ``decided``: the decisions made before the solver, with their counts.
    """

    graph: LoopGraph
    instance: Instance
    placements: Placements
    touched: tuple[NestAccesses | None, ...]
    dependences: tuple[Dependence, ...]
    approximate: frozenset[int]
    decided: tuple[Decision, ...] = ()


def extract(
    graph: LoopGraph,
    device: Device,
    *,
    donated: frozenset[str] = frozenset(),
    shared: Mapping[str, tuple[str, int]] | None = None,
    allocates: Callable[[LibraryCall], bool] = lambda _: True,
) -> Extraction:
    """State the fusion problem of a verified loop graph, with its alternatives (``ir.alternatives``) as variants.

    Args:
        donated: Inputs whose memory may be reused after their last read (saved activations in a backward graph).
        shared: Inputs to the first input that lies in the same memory, and all bytes of that memory.
        allocates: Whether a library call allocates its own results (no ``out=``): those stay outside the arena.
    """
    if graph.symbols:
        device = replace(device, shared_ps=0)  # its programs are counted before the call, and it takes no sizes
    nests = tuple(op if isinstance(op, LoopNest) else None for op in graph.ops)
    touched = tuple(None if nest is None else accesses(nest) for nest in nests)
    rivals = {a: b for k, first in first_alternatives(graph).items() for a, b in ((k, first), (first, k))}
    ordered = dependences(graph, touched, rivals)
    placements = place(nests, touched, ordered)
    walks = {d: shared_walks(d, placements, touched) for d in ordered}
    offered = offered_walks(graph, touched, placements, walks)

    ids = {buffer.name: k for k, buffer in enumerate(graph.buffers)}
    by_name = {buffer.name: buffer for buffer in graph.buffers}
    footprints = Footprints()
    channels: dict[str, int] = {}
    ops = []
    for position, (op, form) in enumerate(zip(graph.ops, op_forms(graph), strict=True)):
        if isinstance(op, LibraryCall):
            channel = channels.setdefault(op.group, len(channels) + 1) if op.group else 0
            ops.append(_library_op(op, by_name, ids, device, channel))
            continue
        found = touched[position]
        assert found is not None, "a nest has accesses"
        offers = tuple(
            offer(op, found, placements.places[position][w], w + 1, w, placements, by_name, ids, footprints)
            for w in offered[position]
        )
        product = 0 if dot_in(op) is None else dot_time(op, by_name, device).total
        tensor = product * GOP // max(1, device.tensor_ps_per_gop)
        ops.append(replace(_loop_op(op, found, offers, tensor), form=form))
    written = {name for op, found in zip(graph.ops, touched, strict=True) for name in footprint(op, found)[1]}
    instance = Instance(
        name=graph.name,
        devices=(device,),
        schemes=(Scheme("alone", 1), *(scheme_of(walk) for walk in placements.walks)),
        buffers=_buffers(graph, written, donated, shared or {}, allocates),
        ops=tuple(ops),
        edges=_one_edge_each(_edges(walks, ops, ids)),
        variants=tuple(problem.Variant(graph.ops[first[-1]].name, (first, then)) for first, then in variants_of(graph)),
    )
    return Extraction(graph, instance, placements, touched, ordered, may_approximate(graph))


def _loop_op(nest: LoopNest, found: NestAccesses, offers: tuple[Offer, ...], tensor: int = 0) -> problem.Op:
    """``tensor``: the operations of its product of matrices, if it has one."""
    return problem.Op(
        nest.name,
        "loop",
        offers,
        nest_work(nest, tensor),
        weight=max(1, len(found.loads) + len(found.stores)) + (ONE_A_KERNEL if tensor else 0),
        recompute=nest.pointwise and not tensor and not any(store.indirect for store in nest.stores),
        node=_node(nest),
        module=nest.origin.module,
        source=nest.origin.source,
    )


def _edges(
    walks: Mapping[Dependence, Sequence[int]], ops: Sequence[problem.Op], ids: Mapping[str, int]
) -> tuple[problem.Edge, ...]:
    """Dependences as edges, in the schemes that both ends offer, if a kernel may hold both."""
    offered = [{o.scheme for o in op.offers} for op in ops]
    most = problem.Limits().max_weight
    return tuple(
        problem.Edge(
            d.src,
            d.dst,
            ids[d.buffer] if d.value and d.buffer is not None else None,
            tuple(
                w + 1
                for w in (shared if ops[d.src].weight + ops[d.dst].weight <= most else ())
                if w + 1 in offered[d.src] and w + 1 in offered[d.dst]
            ),
        )
        for d, shared in walks.items()
    )


def _one_edge_each(edges: tuple[problem.Edge, ...]) -> tuple[problem.Edge, ...]:
    """Edges of the same ends and buffer joined into one, with the schemes that all of them have."""
    joined: dict[tuple[int, int, int | None], tuple[int, ...]] = {}
    for edge in edges:
        key = (edge.src, edge.dst, edge.buffer)
        before = joined.get(key)
        joined[key] = edge.schemes if before is None else tuple(s for s in before if s in edge.schemes)
    return tuple(problem.Edge(*key, schemes) for key, schemes in joined.items())


def _library_op(
    call: LibraryCall, buffers: Mapping[str, Buffer], ids: Mapping[str, int], device: Device, channel: int = 0
) -> problem.Op:
    updated = updated_bytes(call, buffers)
    reads: dict[tuple[str, int], Read] = {}
    made = [name for name in call.outputs if name is not None]
    moves = not made or any(buffers[name].base is None for name in made)  # a view moves no bytes
    for view in views(call):
        size = _view_bytes(view, buffers) if moves and view.buffer not in updated else 0
        reads[view.buffer, view.offset] = Read(ids[view.buffer], size, "contiguous", 0)
    for name in call.holds:
        reads.setdefault((name, 0), Read(ids[name], 0, "contiguous", 0))
    largest: dict[int, Read] = {}
    for read in reads.values():
        if read.buffer not in largest or largest[read.buffer].bytes < read.bytes:
            largest[read.buffer] = read
    written = dict.fromkeys([*made, *call.mutates])
    sizes = {name: updated.get(name, buffer_bytes(buffers[name])) if moves else 0 for name in written}
    writes = tuple(Write(ids[name], size) for name, size in sizes.items())
    moved = sum(read.bytes for read in largest.values()) + sum(write.bytes for write in writes)
    return problem.Op(
        call.name,
        _kind(call, buffers),
        (Offer(ALONE, tuple(largest.values()), writes),),
        library_work(call, buffers, device, moved),
        node=_node(call),
        module=call.origin.module,
        source=call.origin.source,
        channel=channel,
        transfer_ps=transfer_ps(call, buffers, device) if is_start(call) else 0,
    )


def _kind(call: LibraryCall, buffers: Mapping[str, Buffer]) -> problem.OpKind:
    """The kind of a call, for reasons and reports; legality and price are those of any library call."""
    if is_wait(call) or is_start(call):
        return "wait" if is_wait(call) else "collective"
    operator = call.target.partition(".")[2]
    devices = {buffers[name].device for name in (*(view.buffer for view in views(call)), *call.outputs) if name}
    return "copy" if len(devices) > 1 and operator.startswith(("_to_copy", "copy")) else "library"


def _node(op: LoopNest | LibraryCall) -> str:
    """The name of the FX node if it differs from the op's."""
    return "" if op.origin.node == op.name else op.origin.node


def _view_bytes(view: View, buffers: Mapping[str, Buffer]) -> int:
    elements = hint(prod(n for n, step in zip(view.shape, view.stride, strict=True) if step != 0 or n == 0))
    buffer = buffers[view.buffer]
    return min(elements * ITEM_BYTES.get(buffer.dtype, 8), buffer_bytes(buffer))


def _buffers(
    graph: LoopGraph,
    written: set[str],
    donated: frozenset[str],
    shared: Mapping[str, tuple[str, int]],
    allocates: Callable[[LibraryCall], bool],
) -> tuple[problem.Buffer, ...]:
    # what is still in flight at the end is in use afterwards, as what is returned is
    returned = {output.buffer for output in graph.outputs if isinstance(output, View)} | never_waited_for(graph)
    fixed = {
        name
        for op in graph.ops
        if isinstance(op, LibraryCall) and allocates(op)
        for name in op.outputs
        if name is not None
    }
    main = main_device(buffer.device for buffer in graph.buffers)  # buffers elsewhere are in no arena
    by_name = {buffer.name: buffer for buffer in graph.buffers}
    owners = {name: memory_of(by_name, name) for name, buffer in by_name.items() if buffer.base is not None}
    # aliased memory lives as long as one of its views is read: it is no part of the arena
    fixed |= {owner for owner in owners.values() if by_name[owner].kind == "temporary"}
    ids = {buffer.name: k for k, buffer in enumerate(graph.buffers)}
    first = {name: owner for name, (owner, _) in shared.items() if owner != name}
    aliases = {name: ids[first.get(o, o)] for name, o in owners.items() if by_name[o].kind != "temporary"}
    aliases |= {name: ids[owner] for name, owner in first.items()}
    whole = {owner: size for owner, size in shared.values()}
    # tensors without elements are not computed: they have no order and no price
    given = {buffer.name for buffer in graph.buffers if 0 in buffer.shape} - written
    return tuple(
        problem.Buffer(
            buffer.name,
            whole.get(buffer.name, buffer_bytes(buffer)),
            "constant" if buffer.name in given and buffer.kind == "temporary" else buffer.kind,
            output=buffer.name in returned,
            donated=buffer.name in donated and buffer.kind == "input",
            alias=aliases.get(buffer.name),
            fixed=buffer.name in fixed or (buffer.kind == "temporary" and buffer.device != main),
        )
        for buffer in graph.buffers
    )
