"""Verify that a LoopGraph is well formed, at every stage boundary: the interpreter and code generation rely on it.

Checked here: names, order of definition, mutation, outputs, library calls. ``verify_nest`` checks each nest: dtypes,
variables, bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from keyword import iskeyword
from math import prod
from typing import assert_never, get_args

from optfuse.compiler.ir.alternatives import is_second_alternative
from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.nodes import Buffer, BufferKind, LibraryCall, LoopGraph, LoopNest, Op, View, memory_of, views
from optfuse.compiler.ir.traversal import loads, stored_sizes
from optfuse.compiler.ir.verify_nest import verify_nest
from optfuse.errors import InvalidGraphError


def verify(graph: LoopGraph) -> None:
    """Check every rule of the IR.

    Raises:
        InvalidGraphError: The first fault found; the message names the op (or buffer) and the fault.
    """
    state = _State(graph.name, _check_buffers(graph))
    state.defined |= set(graph.inputs) | set(graph.constants)
    # no op stores to an empty tensor
    state.defined |= {buffer.name for buffer in graph.buffers if 0 in buffer.shape}
    names: set[str] = set()
    for op in graph.ops:
        if op.name in names:
            raise InvalidGraphError(f"{graph.name}: two ops are named {op.name}")
        names.add(op.name)
        _check_name(op.name)
        match op:
            case LoopNest():
                _check_nest(op, state)
            case LibraryCall():
                _check_call(op, state)
            case _:
                assert_never(op)
        state.before = op
    for output in graph.outputs:
        if isinstance(output, View):
            _check_view(output, "the graph's outputs", state)


@dataclass
class _State:
    """The state at a point of the program: defined buffers, and by overwritten input the nest that wrote it.

    ``before`` is the op before, whose alternative an op may be (``ir.alternatives``).
    """

    graph: str
    buffers: dict[str, Buffer]
    defined: set[str] = field(default_factory=set)
    overwritten: dict[str, str] = field(default_factory=dict)
    before: Op | None = None


def _check_buffers(graph: LoopGraph) -> dict[str, Buffer]:
    buffers: dict[str, Buffer] = {}
    for buffer in graph.buffers:
        if buffer.name in buffers:
            raise InvalidGraphError(f"{graph.name}: two buffers are named {buffer.name}")
        buffers[buffer.name] = buffer
        _check_name(buffer.name)
        if len(buffer.shape) != len(buffer.stride):
            raise InvalidGraphError(f"buffer {buffer.name}: {len(buffer.shape)} sizes, {len(buffer.stride)} strides")
        if any(n < 0 for n in (*buffer.shape, *buffer.stride)):
            raise InvalidGraphError(f"buffer {buffer.name}: a negative size or stride")
        if buffer.kind not in get_args(BufferKind):
            raise InvalidGraphError(f"buffer {buffer.name}: unknown kind {buffer.kind}")
    for kind, listed in (("input", graph.inputs), ("constant", graph.constants)):
        if len(set(listed)) < len(listed):
            raise InvalidGraphError(f"{graph.name}: a buffer is listed twice among the {kind}s")
        marked = {b.name for b in graph.buffers if b.kind == kind}
        if marked != set(listed):
            odd = sorted(marked ^ set(listed))[0]
            raise InvalidGraphError(f"{graph.name}: buffer {odd} is not both marked and listed as {kind}")
    return buffers


def _check_name(name: str) -> None:
    """Refuse a name that is no ASCII identifier: it becomes a variable of emitted source."""
    if not (name.isascii() and name.isidentifier()) or iskeyword(name):
        raise InvalidGraphError(f"{name!r} is no identifier; buffers, ops and arguments are named by identifiers")


def _check_nest(nest: LoopNest, state: _State) -> None:
    verify_nest(nest, state.buffers)
    for load in loads(nest):
        _check_read(load.buffer, nest.name, state)
    written = [store.buffer for store in nest.stores]
    if len(set(written)) < len(written):
        raise InvalidGraphError(f"{nest.name}: two stores to one buffer")
    for store in nest.stores:
        buffer = state.buffers[store.buffer]
        if store.indirect:
            _check_update(buffer, nest, state)
            continue
        if buffer.kind != "temporary" or state.before is None or not is_second_alternative(nest, state.before):
            _check_definition(buffer, nest.name, state)
        if any(load.buffer == buffer.name and load.index != store.index for load in loads(nest)):
            raise InvalidGraphError(f"{nest.name}: loads of {buffer.name} race with the store to it at another index")
        if buffer.kind == "input":
            state.overwritten[buffer.name] = nest.name
        elif (points := prod(stored_sizes(nest))) != prod(buffer.shape):
            raise InvalidGraphError(
                f"{nest.name}: {points} points are stored to {buffer.name}, which has {prod(buffer.shape)} elements"
            )


def _check_update(buffer: Buffer, nest: LoopNest, state: _State) -> None:
    """An indirect store changes elements of a buffer that exists, which its nest does not read."""
    if buffer.kind == "constant":
        raise InvalidGraphError(f"{nest.name}: stores to the constant {buffer.name}")
    _check_read(buffer.name, nest.name, state)
    memory = memory_of(state.buffers, buffer.name)
    if any(memory_of(state.buffers, load.buffer) == memory for load in loads(nest)):
        raise InvalidGraphError(f"{nest.name}: loads of {buffer.name} race with the indirect store to it")


def _check_call(call: LibraryCall, state: _State) -> None:
    for key, _ in call.kwargs:
        _check_name(key)
    seen = set()
    for view in views(call):
        _check_view(view, call.name, state)
        _check_read(view.buffer, call.name, state)
        seen.add(view.buffer)
    for name in call.holds:
        _check_read(name, call.name, state)
    for name in call.mutates:
        if name not in seen:
            raise InvalidGraphError(f"{call.name}: mutates {name}, which is not among its arguments")
        if state.buffers[name].kind == "constant":
            raise InvalidGraphError(f"{call.name}: mutates the constant {name}")
    for name in call.outputs:
        if name is not None:
            if name not in state.buffers:
                raise InvalidGraphError(f"{call.name}: unknown buffer {name}")
            _check_definition(state.buffers[name], call.name, state)
            if state.buffers[name].kind != "temporary":
                raise InvalidGraphError(f"{call.name}: the output {name} is not a temporary")
            if state.buffers[name].base not in {None, *seen}:
                raise InvalidGraphError(f"{call.name}: {name} shares the memory of no argument")


def _check_definition(buffer: Buffer, op: str, state: _State) -> None:
    """A temporary is defined once, an input is overwritten at most once, a constant never."""
    if buffer.kind == "constant":
        raise InvalidGraphError(f"{op}: stores to the constant {buffer.name}")
    if buffer.kind == "input" and buffer.name in state.overwritten:
        raise InvalidGraphError(f"{op}: {buffer.name} was overwritten already, by {state.overwritten[buffer.name]}")
    if buffer.kind == "temporary" and buffer.name in state.defined and 0 not in buffer.shape:
        raise InvalidGraphError(f"{op}: buffer {buffer.name} is defined twice")
    state.defined.add(buffer.name)


def _check_defined(name: str, op: str, state: _State) -> None:
    if name not in state.buffers:
        raise InvalidGraphError(f"{op}: unknown buffer {name}")
    if name not in state.defined:
        raise InvalidGraphError(f"{op}: buffer {name} is used before it is defined")


def _check_read(name: str, op: str, state: _State) -> None:
    _check_defined(name, op, state)
    if name in state.overwritten:
        raise InvalidGraphError(f"{op}: reads {name} after {state.overwritten[name]} has overwritten it")


def _check_view(view: View, op: str, state: _State) -> None:
    _check_defined(view.buffer, op, state)
    if len(view.shape) != len(view.stride):
        raise InvalidGraphError(
            f"{op}: a view of {view.buffer} has {len(view.shape)} sizes, {len(view.stride)} strides"
        )
    last = extent(view.shape, view.stride)
    total = extent(state.buffers[view.buffer].shape, state.buffers[view.buffer].stride)
    if last and (view.offset < 0 or view.offset + last > total):
        raise InvalidGraphError(
            f"{op}: a view of {view.buffer} ends at {view.offset + last}, past its {total} elements"
        )
