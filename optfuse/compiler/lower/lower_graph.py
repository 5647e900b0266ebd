"""Lower an ATen FX graph to a loop graph: one op for each ATen op, views folded into indices."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from optfuse.compiler.ir.collectives import COMMUNICATION
from optfuse.compiler.ir.devices import main_device
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, LoopNest, Op, Output, View, views
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.traversal import loads
from optfuse.compiler.lower.associative_scans import lower_associative_scan
from optfuse.compiler.lower.builder import Builder, size_in, spec_of
from optfuse.compiler.lower.expressions import DTYPES
from optfuse.compiler.lower.library import lower_library, plain
from optfuse.compiler.lower.loop_operands import loops_cover
from optfuse.compiler.lower.outputs import write_outputs
from optfuse.compiler.lower.overloads import (
    FakeTensor,
    HigherOrderOperator,
    draws_random,
    is_mutable,
    is_overload,
    outside_of_modes,
    positional,
    returns_nothing,
    written_nodes,
)
from optfuse.compiler.lower.registry import Declined, Rule, Uniform, Value, find_rule
from optfuse.compiler.lower.views import is_view, lower_view
from optfuse.compiler.ops.opaque_operators import SCAN
from optfuse.errors import CaptureError

#: Checks that tracing has made already, since shapes are static.
_DECIDED = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)


def lower(
    graph_module: fx.GraphModule,
    *,
    name: str,
    mutations: tuple[tuple[int, int], ...] = (),
    constants: Mapping[str, torch.Tensor],
    strides: Mapping[int, tuple[int, ...]] | None = None,
    decisions: Decisions | None = None,
) -> LoopGraph:
    """Lower a functional ATen graph whose nodes carry fake tensors in ``meta["val"]``.

    Args:
        mutations: (output position, input position): that output is the new value of that input. It becomes a copy into
            the input's buffer, after all other ops, and is dropped from the outputs.
        constants: The tensors that the graph's get_attr nodes name.
        strides: By output position: the strides that it must have; by default those of its node's fake tensor.
        decisions: Of a graph whose fake tensors have symbolic sizes: these become formulas.

    Raises:
        CaptureError: If the graph has data-dependent sizes, subgraphs or complex scalars, which no loop graph can hold.
    """
    with outside_of_modes():
        return _lower(graph_module, name, mutations, constants, strides or {}, decisions)


def _lower(
    graph_module: fx.GraphModule,
    name: str,
    mutations: tuple[tuple[int, int], ...],
    constants: Mapping[str, torch.Tensor],
    strides: Mapping[int, tuple[int, ...]],
    decisions: Decisions | None,
) -> LoopGraph:
    nodes = _live(graph_module.graph)
    builder = Builder(_main_device(nodes, constants), decisions)
    builder.written = _written_roots(nodes)
    values: dict[fx.Node, Value] = {}
    inputs: list[Value] = []
    outputs: tuple[Output, ...] = ()
    # constants first: their buffers keep the names of the constants, and others are renamed
    for node in sorted(nodes, key=lambda n: n.op != "get_attr"):
        builder.enter(node)
        _require_strided(node)
        match node.op:
            case "placeholder":
                values[node] = _lower_input(builder, node)
                inputs.append(values[node])
            case "get_attr":
                values[node] = _lower_constant(builder, node, constants, inline=node not in builder.written)
            case "call_function":
                values[node] = _lower_call(builder, node, values)
            case "output":
                outputs = write_outputs(builder, node, values, inputs, mutations, strides)
            case _:
                raise CaptureError(
                    f"{name}: node {node.name} is a {node.op}; lower takes graphs of ATen functions only"
                )
    buffers = tuple(builder.buffers.values())
    constant_names = tuple(b.name for b in buffers if b.kind == "constant")
    input_names = tuple(v.buffer for v in inputs if isinstance(v, View))
    symbols = () if decisions is None else tuple(sorted(decisions.hints.items()))
    return without_unread(LoopGraph(name, buffers, input_names, constant_names, tuple(builder.ops), outputs, symbols))


def without_unread(graph: LoopGraph) -> LoopGraph:
    """The graph without nests whose results are not read: a result without elements needs none of its operands.

    Nor has it calls that write into buffers without elements, which nothing makes.
    """
    empty = {buffer.name for buffer in graph.buffers if 0 in buffer.shape}
    needed = {output.buffer for output in graph.outputs if isinstance(output, View)} | set(graph.inputs)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if isinstance(op, LibraryCall):
            if op.mutates and empty.issuperset(op.mutates) and not any(op.outputs) and not op.group:
                continue
            needed |= {view.buffer for view in views(op)}
        elif needed.isdisjoint(store.buffer for store in op.stores):
            continue
        else:
            needed |= {load.buffer for load in loads(op)}
            needed |= {store.buffer for store in op.stores if store.indirect}
        kept.append(op)
    if len(kept) == len(graph.ops):
        return graph
    made = {name for op in kept if isinstance(op, LibraryCall) for name in op.outputs}
    made |= {store.buffer for op in kept if isinstance(op, LoopNest) for store in op.stores}
    alive = tuple(b for b in graph.buffers if b.kind != "temporary" or b.name in made | needed)
    return replace(graph, ops=tuple(reversed(kept)), buffers=alive)


def _main_device(nodes: Sequence[fx.Node], constants: Mapping[str, torch.Tensor]) -> str:
    values = [node.meta.get("val") for node in nodes]
    tensors = [v for v in pytree.tree_leaves((list(constants.values()), values)) if isinstance(v, torch.Tensor)]
    return main_device(str(tensor.device) for tensor in tensors)


def _lower_input(builder: Builder, node: fx.Node) -> Value:
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return plain(node, fake)
    offset = size_in(fake.storage_offset(), builder.decisions)
    return builder.allocate(builder.spec_of(fake), kind="input", storage_offset=offset)


def _lower_constant(builder: Builder, node: fx.Node, constants: Mapping[str, torch.Tensor], *, inline: bool) -> Value:
    """A window of the constant's buffer; a uniform constant is inlined unless it is written."""
    key = str(node.target)
    carrier = next((user for user in node.users if isinstance(user.target, HigherOrderOperator)), None)
    if carrier is not None:
        raise _subgraph(carrier)
    if key not in constants:
        raise CaptureError(f"{node.name}: the graph refers to {key}, which is not among its constants")
    tensor = constants[key]
    if key in builder.buffers:
        view = builder.whole(key)
    else:
        view = builder.allocate(spec_of(tensor), name=key, kind="constant", storage_offset=int(tensor.storage_offset()))
    value = _uniform_value(tensor) if inline else None
    if value is None:
        return view
    spec = spec_of(tensor)
    return Uniform(value, spec.dtype, spec.shape, builder.origin, spec.device, view)


def _uniform_value(tensor: torch.Tensor) -> bool | int | float | None:
    fake = isinstance(tensor, FakeTensor) or tensor.is_meta
    if fake or tensor.numel() == 0 or str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        return None
    first = tensor[(0,) * tensor.ndim]
    return first.item() if bool((tensor == first).all()) else None


def _lower_call(builder: Builder, node: fx.Node, values: Mapping[fx.Node, Value]) -> Value:
    def value(argument: Any) -> Any:
        found = fx.node.map_arg(argument, lambda n: values[n])
        if builder.decisions is None:
            return found
        return fx.node.map_aggregate(
            found, lambda n: size_in(n, builder.decisions) if isinstance(n, torch.SymInt) else n
        )

    if node.target is operator.getitem:
        source, position = value(node.args)
        return source[position]
    if isinstance(node.target, HigherOrderOperator):
        raise _subgraph(node)
    if node.meta.get("unbacked_bindings"):
        raise CaptureError(
            f"{node.name} ({node.target}): a size or value of its result is known only when the model runs, whatever "
            "torch._check says of it; take it out of the optimized model"
        )
    if not is_overload(node.target) or not (_returns_tensors(node) or _has_effect(node)):
        return _scalars(builder, node)
    args, kwargs = positional(node.target, value(tuple(node.args)), value(dict(node.kwargs)))
    rule = _scan_rule(node) if SCAN in node.meta else find_rule(str(node.target))
    try:
        if rule is not None and loops_cover(builder, node, args, kwargs):
            return rule(builder, *args, **kwargs)
        if rule is None and is_view(node.target):
            return lower_view(builder, node, *args, **kwargs)
    except Declined:
        pass  # the op becomes a library call, which the result names
    return lower_library(builder, node, args, kwargs)


def _scan_rule(node: fx.Node) -> Rule:
    """The rule of a call of an opaque operator that is known to scan its arguments."""
    return lambda builder, *tensors: lower_associative_scan(
        builder, node.meta[SCAN], lambda graph: _lower(graph, "combine", (), {}, {}, builder.decisions), tensors
    )


def _subgraph(node: fx.Node) -> CaptureError:
    return CaptureError(
        f"{node.name}: {node.target} carries a subgraph or a call of its own, which cannot be planned; rewrite it "
        "without (torch.where for torch.cond, results in place of written arguments for custom operators)"
    )


def _returns_tensors(node: fx.Node) -> bool:
    return any(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(node.meta.get("val")))


def _scalars(builder: Builder, node: fx.Node) -> Value:
    """The value of scalar arithmetic (on sizes), which tracing has computed."""
    result = node.meta.get("val")
    if isinstance(result, tuple | list):
        return tuple(plain(node, item, builder.decisions) for item in result)
    return plain(node, result, builder.decisions)


def _require_strided(node: fx.Node) -> None:
    """Refuse sparse tensors: every element of a buffer has a fixed address."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            made = f"{node.name} ({node.target})" if node.op == "call_function" else f"input {node.name}"
            raise CaptureError(
                f"{made} is a tensor of layout {value.layout}, which cannot be planned; make it dense, or keep it out "
                "of the optimized model"
            )


def _live(graph: fx.Graph) -> list[fx.Node]:
    """The nodes on which an output or a side effect depends, and every input, in order."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or _has_effect(node) or any(user in live for user in node.users):
            live.add(node)
    return [node for node in graph.nodes if node in live]


def _has_effect(node: fx.Node) -> bool:
    target = node.target
    if node.op in ("call_module", "call_method") or isinstance(target, HigherOrderOperator):
        return True
    if not is_overload(target) or str(target) in _DECIDED:
        return False
    effect = is_mutable(target) or returns_nothing(target) or draws_random(target)
    return effect or target.namespace in COMMUNICATION


def _written_roots(nodes: Iterable[fx.Node]) -> frozenset[fx.Node]:
    """The nodes whose tensors some op writes in place, also through views."""
    roots: set[fx.Node] = set()
    for node in nodes:
        for written in written_nodes(node):
            root: Any = written
            while isinstance(root, fx.Node):
                roots.add(root)
                root = root.args[0] if is_view(root.target) or root.target is operator.getitem else None
    return frozenset(roots)
