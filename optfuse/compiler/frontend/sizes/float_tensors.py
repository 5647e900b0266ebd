"""Floats that change from call to call become tensors of one number: a learning rate is no reason to compile again.

Dynamo hands over a float that has changed as a float64 tensor of the host's whose item is taken. Each value of it would
be another graph. Here the item stays a tensor: arithmetic on it is in float64 as Python's, and what takes it beside
tensors takes it in the precision in which that computes with a Python number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.torch_internals.torch_bridge import compile_lock, tree_leaves
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic
from optfuse.compiler.ops.host_numbers import numbers_on

#: Arithmetic on Python floats, and what it is on tensors.
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    operator.neg: torch.neg,
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.truediv: torch.div,
    operator.pow: torch.pow,
    math.sqrt: torch.sqrt,
    torch.sym_sqrt: torch.sqrt,
}


def _scaled(number: Any, x: Any) -> Any:
    return x if number is None else x * number


#: The functions of torch that take numbers beside tensors, by name: results for operands that may be numbers.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, alpha=None: x + _scaled(alpha, y),
    "sub": lambda x, y, alpha=None: x - _scaled(alpha, y),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "true_divide": lambda x, y: x / y,
    "pow": torch.pow,
    "addcmul": lambda x, a, b, value=None: x + _scaled(value, a) * b,
    "addcdiv": lambda x, a, b, value=None: x + _scaled(value, a) / b,
    "lerp": lambda x, y, weight: torch.lerp(x, y, weight),
    "truediv": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
}


@dataclass(slots=True)
class AtFirstCall:
    """A function that is compiled at its first call; floats among its arguments are moved to the tensors' device.

    ``floats`` are their positions, ``device`` is where they go (None: they stay in the host's memory). While a backend
    is called, AOTAutograd would tell Dynamo that the floats of the graph as traced are constants.
    """

    compile: Callable[[Sequence[Any]], Callable[..., Any]]
    floats: Sequence[int]
    device: torch.device | None
    function: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run; threads compile one after another."""
        given = list(arguments)
        if self.device is not None:
            numbers = numbers_on(self.device, [given[k] for k in self.floats])
            for k, number in zip(self.floats, numbers, strict=True):
                given[k] = number
        if self.function is None:
            with compile_lock:
                self.function = self.function or self.compile(given)
        return self.function(*given)


@dataclass(frozen=True, slots=True)
class _Floats:
    """The tensors that floats have become, by node, and where the tensors are that they are used with."""

    tensors: dict[Node, Node]
    devices: set[torch.device]


def floats_as_tensors(graph: GraphModule) -> tuple[GraphModule, torch.device | None] | None:
    """The graph with tensors for the floats that it takes from its arguments, and the device to which these may go.

    None if it has other uses for one. No device if tensors with dimensions are on the host, or on several devices.

    Before: ``item = rate.item(); neg = -item; p.add_(grad, alpha=neg)``.
    After: ``neg = torch.neg(rate); p.copy_(p + grad * neg.to(float32))``.
    """
    found = copied(graph)
    floats = _Floats({}, set())
    numbers = floats.tensors
    for node in list(found.graph.nodes):
        if _is_item(node):
            numbers[node] = node.args[0]
            continue
        if isinstance(node.meta.get("example_value"), torch.SymInt):  # an integer's item may be a size
            return None
        taken = [
            value for value in tree_leaves((node.args, node.kwargs)) if isinstance(value, Node) and value in numbers
        ]
        if not taken:
            continue
        with found.graph.inserting_before(node):
            if is_symbolic(node.meta.get("example_value")):
                made = _arithmetic(node, numbers)
                if made is None:
                    return None
                numbers[node] = made
            elif not _computed(node, floats):
                return None
    for node in reversed(list(found.graph.nodes)):
        if node in numbers and not node.users:
            found.graph.erase_node(node)
    found.recompile()
    device = next(iter(floats.devices)) if len(floats.devices) == 1 else None
    return found, None if device is None or device.type == "cpu" else device


def _is_item(node: Node) -> bool:
    """Whether a node is the item of an argument: a float that may be another one in the next call."""
    value, source = node.meta.get("example_value"), node.args[0] if node.args else None
    taken = node.op == "call_method" and node.target == "item" and isinstance(source, Node)
    return taken and source.op == "placeholder" and isinstance(value, torch.SymFloat)


def _arithmetic(node: Node, numbers: dict[Node, Node]) -> Node | None:
    """The tensor of one number that arithmetic on floats makes."""
    function = _ARITHMETIC.get(node.target)
    if function is None or node.kwargs:
        return None
    operands: list[Node] = []
    for value in node.args:
        if isinstance(value, Node) and value in numbers:
            operands.append(numbers[value])
        elif isinstance(value, (int, float)):
            operands.append(node.graph.call_function(torch.full, ((), float(value)), {"dtype": torch.float64}))
        else:
            return None
    return node.graph.call_function(function, tuple(operands))


def _name(target: Any) -> str:
    """The name of a method, or of a function of torch's or Python's own; "" for any other."""
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload):
        return target.overloadpacket.__name__ if target.namespace in ("aten", "prims") else ""
    return target.__name__ if isinstance(target, BuiltinFunctionType) else ""


def _computed(node: Node, numbers: _Floats) -> bool:
    """Compute a node with tensors in place of floats, and erase it; False if that is not known how."""
    name = _name(node.target)
    in_place, lists = name.endswith("_"), name.startswith("_foreach_")
    function = _FUNCTIONS.get(name.removeprefix("_foreach_").rstrip("_"))
    if function is None or not node.kwargs.keys() <= {"alpha", "value", "weight"}:
        return False
    if not lists:
        made = _one(function, numbers, node.args, node.kwargs, in_place=in_place)
        if made is None:
            return False
        made.meta["example_value"] = node.meta.get("example_value")
        node.replace_all_uses_with(made)
        node.graph.erase_node(node)
        return True
    count = next((len(value) for value in node.args if isinstance(value, Sequence)), 0)
    if any(user.target is not operator.getitem for user in node.users):
        return False
    traced = {user.args[1]: user.meta.get("example_value") for user in node.users}
    results: list[Node] = []
    for k in range(count):
        args = tuple(_at(k, value) for value in node.args)
        kwargs = {key: _at(k, value) for key, value in node.kwargs.items()}
        made = _one(function, numbers, args, kwargs, in_place=in_place)
        if made is None:
            return False
        made.meta["example_value"] = traced.get(k)
        results.append(made)
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        node.graph.erase_node(user)
    node.graph.erase_node(node)
    return True


def _at(k: int, value: Any) -> Any:
    return value[k] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _one(
    function: Callable[..., Any],
    numbers: _Floats,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    in_place: bool,
) -> Node | None:
    """The result of ``function`` for one tensor of each list, in the precision in which torch computes it."""
    operands = [
        value for value in (*args, *kwargs.values()) if isinstance(value, Node) and value not in numbers.tensors
    ]
    tensors = [operand.meta.get("example_value") for operand in operands]
    if not tensors or not all(isinstance(x, Tensor) and x.dtype.is_floating_point for x in tensors):
        return None
    if len({x.dtype for x in tensors}) > 1:
        return None
    numbers.devices.update(x.device for x in tensors if x.dim())
    dtype = tensors[0].dtype
    wide = torch.float32 if dtype.itemsize < 4 else dtype

    tracer = GraphAppendingTracer(operands[0].graph)

    def operand(value: Any) -> Any:
        if not isinstance(value, Node):
            return value
        proxy = Proxy(numbers.tensors.get(value, value), tracer)
        return proxy.to(wide) if value in numbers.tensors or wide is not dtype else proxy

    result = function(*map(operand, args), **{key: operand(value) for key, value in kwargs.items()})
    result = result if wide is dtype else result.to(dtype)
    if in_place:
        result = Proxy(args[0], tracer).copy_(result)
    return result.node
