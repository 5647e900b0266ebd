"""Collectives of torch.distributed in a loop graph: which calls start one or wait for one, and what is in flight.

Between its start and its wait a collective reads its inputs and writes its results by itself. So the inputs are neither
written nor freed before the wait, and the results neither read nor written.
"""

from __future__ import annotations

from collections.abc import Mapping

from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, Op, memory_of, views

#: The operators that start a collective and return before it has ended.
NAMESPACE = "_c10d_functional"
#: Waits for a collective; its result is its argument, whose elements are valid from then on.
WAIT = "_c10d_functional.wait_tensor.default"
#: Namespaces of operators in which every rank of a group must take part, in the same order.
COMMUNICATION = frozenset({NAMESPACE, "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"})


def is_wait(op: Op) -> bool:
    """Whether an op waits for a collective."""
    return isinstance(op, LibraryCall) and op.target == WAIT


def is_start(op: Op) -> bool:
    """Whether an op starts a collective, which some later op waits for."""
    return isinstance(op, LibraryCall) and op.target.partition(".")[0] == NAMESPACE and op.target != WAIT


def communicates(op: Op) -> bool:
    """Whether an op sends or receives: the ranks of a group must agree on the order of such ops."""
    return isinstance(op, LibraryCall) and op.target.partition(".")[0] in COMMUNICATION and op.target != WAIT


def in_use(call: LibraryCall) -> tuple[str, ...]:
    """The buffers that a collective reads or writes while it is in flight."""
    results = (name for name in (*call.outputs, *call.mutates) if name is not None)
    return tuple(dict.fromkeys([*(view.buffer for view in views(call)), *results]))


def started_by(graph_ops: tuple[Op, ...] | list[Op], buffers: Mapping[str, Buffer], name: str) -> LibraryCall | None:
    """The last collective among the ops whose result lies in the memory of ``name``; None if there is none."""
    memory = memory_of(buffers, name)
    for op in reversed(graph_ops):
        if isinstance(op, LibraryCall) and is_start(op):
            results = (result for result in (*op.outputs, *op.mutates) if result is not None)
            if memory in {memory_of(buffers, result) for result in results}:
                return op
    return None


def never_waited_for(graph: LoopGraph) -> frozenset[str]:
    """The memory of collectives that the graph starts and does not wait for: they are in flight when it returns."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    pending: dict[str, set[str]] = {}
    for op in graph.ops:
        if isinstance(op, LibraryCall) and is_start(op):
            memory = {memory_of(buffers, name) for name in in_use(op)}
            for name in (*op.outputs, *op.mutates):
                if name is not None:
                    pending[memory_of(buffers, name)] = memory
        elif isinstance(op, LibraryCall) and is_wait(op):
            for view in views(op):
                pending.pop(memory_of(buffers, view.buffer), None)
    return frozenset().union(*pending.values())


def in_flight_at_a_border(graph: LoopGraph) -> bool:
    """Whether a collective is in flight when the graph begins or returns: it is waited for elsewhere, or started."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    calls = [(k, op) for k, op in enumerate(graph.ops) if isinstance(op, LibraryCall) and is_wait(op)]
    waits = [(k, view.buffer) for k, op in calls for view in views(op)]
    return bool(never_waited_for(graph)) or any(started_by(graph.ops[:k], buffers, name) is None for k, name in waits)
