"""A captured graph as JSON data without the contents of tensors, and back.

Nodes keep their names. The graph is read back for another device, which replaces every device that it names. Constants
whose elements are all equal become calls of ``full``, other constants inputs.
"""

from __future__ import annotations

import operator
from keyword import iskeyword
from typing import Any

import torch
from torch import fx

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.operators.plan_operators import named_overload
from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload
from optfuse.compiler.ir.devices import HOST, main_device
from optfuse.errors import InductorError, PlanError

FORMAT_VERSION = 1

#: Prefixes of nodes for the copies that lowering adds at the end: into a mutated input, and to an output's layout.
UPDATE = "optfuse_update_"
LAYOUT_COPY = "optfuse_settled_"

_TORCH_VALUES: tuple[tuple[str, type], ...] = (
    ("dtype", torch.dtype),
    ("layout", torch.layout),
    ("memory_format", torch.memory_format),
)


def graph_record(captured: Captured) -> dict[str, Any]:
    """Return the graph as JSON data.

    Raises:
        InductorError: If a node's argument cannot be written as JSON data.
    """
    nodes: list[dict[str, Any]] = []
    values = (node.meta.get("val") for node in captured.graph.graph.nodes)
    main = main_device(value.device.type for value in values if isinstance(value, torch.Tensor))
    for node in captured.graph.graph.nodes:
        match node.op:
            case "placeholder":
                nodes.append({"op": "input", "name": node.name, "value": _tensor_record(node.meta["val"], main)})
            case "get_attr":
                nodes.append({"op": "input", "name": node.name, **_constant_record(captured, node, main)})
            case "call_function":
                target = _target_record(node)
                nodes.append(
                    {
                        "op": "call",
                        "name": node.name,
                        "target": target,
                        "args": _argument(node, list(node.args)),
                        "kwargs": {key: _argument(node, value) for key, value in node.kwargs.items()},
                    }
                )
            case "output":
                nodes.append({"op": "output", "outputs": [_argument(node, value) for value in node.args[0]]})
            case _:
                raise InductorError(f"{captured.name}: node {node.name} is a {node.op}, which Inductor cannot be given")
    return {
        "version": FORMAT_VERSION,
        "name": captured.name,
        "nodes": nodes,
        "mutations": [list(pair) for pair in captured.mutations],
        "strides": {str(position): list(stride) for position, stride in captured.strides.items()},
    }


def _constant_record(captured: Captured, node: fx.Node, main: str) -> dict[str, Any]:
    tensor = captured.constants[str(node.target)]
    record: dict[str, Any] = {"value": _tensor_record(tensor, main)}
    if tensor.numel() and not tensor.dtype.is_complex:
        first = tensor.reshape(-1)[0]
        if bool((tensor == first).all()):
            record["fill"] = first.item()
    return record


def _tensor_record(value: torch.Tensor, main: str) -> dict[str, Any]:
    """``host``: whether it is a scalar in host memory while the graph runs on another device."""
    return {
        "shape": [int(n) for n in value.shape],
        "stride": [int(n) for n in value.stride()],
        "dtype": str(value.dtype),
        "host": value.device.type == HOST != main and value.dim() == 0,
    }


def _target_record(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    if isinstance(node.target, OpOverload):
        return str(node.target)
    raise InductorError(f"node {node.name} calls {node.target}, which is no operator of torch's")


def _argument(node: fx.Node, value: Any) -> Any:
    """An argument as JSON data: objects stand for what JSON lacks."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    for kind, cls in _TORCH_VALUES:
        if isinstance(value, cls):
            return {kind: str(value)}
    match value:
        case torch.device():
            return {"device": str(value)}
        case bool() | int() | str() | None:
            return value
        case float():
            return {"float": repr(value)}
        case complex():
            return {"complex": [repr(value.real), repr(value.imag)]}
        case slice():
            return {"slice": [_argument(node, part) for part in (value.start, value.stop, value.step)]}
        case list() | tuple():
            return [_argument(node, part) for part in value]
        case _:
            raise InductorError(f"node {node.name} has an argument of class {type(value).__name__}")


def read_graph(record: dict[str, Any], device: torch.device) -> tuple[fx.GraphModule, list[dict[str, Any]]]:
    """Return the graph on ``device``, and the record of each placeholder (see ``_tensor_record``), in order.

    The record may come from an untrusted folder, and torch generates Python from the graph: names must therefore be
    identifiers, and targets must be operators that a file may name.

    Raises:
        InductorError: If a name is no identifier, or an operator is none that a file may call.
    """
    _require_identifiers(record["nodes"])
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}
    inputs: list[dict[str, Any]] = []
    outputs: list[Any] = []
    for node in record["nodes"]:
        if node["op"] == "input" and "fill" not in node:
            made[node["name"]] = _named(graph.create_node("placeholder", node["name"], name=node["name"]), "")
            inputs.append(node["value"])
    for node in record["nodes"]:
        match node["op"]:
            case "input" if "fill" in node:
                value = node["value"]
                options = {"dtype": torch_value(value["dtype"]), "device": device}
                full = graph.call_function(torch.ops.aten.full.default, (value["shape"], node["fill"]), options)
                made[node["name"]] = _named(full, "")
            case "call":
                args = tuple(_value(part, made, device) for part in node["args"])
                kwargs = {key: _value(part, made, device) for key, part in node["kwargs"].items()}
                call = graph.create_node("call_function", _target(node["target"]), args, kwargs, name=node["name"])
                made[node["name"]] = _named(call, node["name"])
            case "output":
                outputs = [_value(part, made, device) for part in node["outputs"]]
            case _:
                pass
    _copy_into_mutated_inputs(graph, record, outputs)
    graph.output(tuple(outputs))
    return fx.GraphModule(torch.nn.Module(), graph), inputs


def _require_identifiers(nodes: list[dict[str, Any]]) -> None:
    for node in nodes:
        for name in (*([node["name"]] if "name" in node else ()), *node.get("kwargs", ())):
            if not (isinstance(name, str) and name.isascii() and name.isidentifier()) or iskeyword(name):
                raise InductorError(f"{name!r:.80} is no identifier, as names of nodes and arguments are")


def _copy_into_mutated_inputs(graph: fx.Graph, record: dict[str, Any], outputs: list[Any]) -> None:
    """Copy new values into mutated inputs at the end, as AOTAutograd does; these values are then no outputs."""
    placeholders = graph.find_nodes(op="placeholder")
    for position, target in record["mutations"]:
        source, target_node = outputs[position], placeholders[target]
        if isinstance(source, fx.Node) and source is not target_node:
            copy = graph.call_function(torch.ops.aten.copy_.default, (target_node, source))
            _named(copy, UPDATE + target_node.name)
    written = {position for position, _ in record["mutations"]}
    outputs[:] = [None if position in written else output for position, output in enumerate(outputs)]


def _named(node: fx.Node, origin: str) -> fx.Node:
    """Note in a node the name of our node that it comes from; tracers and rewrites keep this note."""
    node.meta["custom"] = {"optfuse": origin}
    return node


def origin_of(node: fx.Node) -> str:
    """The name of our node that a node comes from; "" for none."""
    return (node.meta.get("custom") or {}).get("optfuse", "")


def copy_origin(node: fx.Node, successor: fx.Node) -> None:
    """Copy a node's origin to the node that replaces it, if that one has none."""
    if origin_of(node) and successor.op == "call_function" and "custom" not in successor.meta:
        successor.meta["custom"] = node.meta["custom"]


def _target(text: str) -> Any:
    if text == "getitem":
        return operator.getitem
    try:
        return named_overload(text)
    except PlanError as error:
        raise InductorError(f"Inductor cannot be given the graph: {error}") from error


def _value(data: Any, made: dict[str, fx.Node], device: torch.device) -> Any:
    match data:
        case {"node": name}:
            return made[name]
        case {"device": _}:
            return device
        case {"float": text}:
            return float(text)
        case {"complex": [real, imaginary]}:
            return complex(float(real), float(imaginary))
        case {"slice": parts}:
            return slice(*(_value(part, made, device) for part in parts))
        case dict():
            ((_, text),) = data.items()
            return torch_value(text)
        case list():
            return [_value(part, made, device) for part in data]
        case _:
            return data


def torch_value(text: str) -> Any:
    """The dtype, layout or memory format that torch prints as ``text``."""
    found = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(found, tuple(kind for _, kind in _TORCH_VALUES)):
        raise InductorError(f"{text!r:.80} is no dtype, layout or memory format of torch's")
    return found
