"""The reference interpreter: run a LoopGraph with torch on the CPU, one op after the other, nothing fused.

Every expression is computed over the whole iteration space at once, in exactly the dtype that it declares. Loads and
stores address elements by their offset from the buffer's first one, and each is bounds-checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import sympy
import torch

import optfuse.compiler.ops.registered  # noqa: F401 - registers our operators
from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.index_expressions import evaluate
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Const,
    Dot,
    Expr,
    Guard,
    Iota,
    LibraryCall,
    Load,
    LoopGraph,
    LoopNest,
    Result,
    Scan,
    Store,
    View,
    ivar,
    rvar,
    tvar,
)
from optfuse.compiler.ir.torch_semantics import call_function, call_operator, reduce_operand, torch_dtype
from optfuse.errors import InvalidGraphError

Value = torch.Tensor | bool | int | float | None


def interpret(
    graph: LoopGraph,
    inputs: Sequence[torch.Tensor],
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    double: bool = False,
) -> list[Value]:
    """Run ``graph`` and return its outputs, one for each entry of ``graph.outputs``.

    Args:
        graph: A graph that verifies.
        inputs: CPU tensors for ``graph.inputs``, in order. A nest that stores into an input mutates the tensor, and an
            output that is a view of an input shares its storage, as in eager execution.
        constants: The contents of ``graph.constants`` by name.
        double: Compute and store every floating-point value in float64, whatever the graph says: the fp64 oracle.
            Inputs may then be float64 already; those that are not are converted, and mutations of them are not seen
            outside.

    Raises:
        InvalidGraphError: Inputs that do not match their buffers, an access out of bounds, or a computed dtype other
            than the declared.
    """
    machine = _Machine({buffer.name: buffer for buffer in graph.buffers}, double)
    if len(inputs) != len(graph.inputs):
        raise InvalidGraphError(f"{graph.name}: {len(graph.inputs)} inputs are needed, {len(inputs)} were given")
    for name, tensor in zip(graph.inputs, inputs, strict=True):
        machine.bind(name, tensor)
    for name in graph.constants:
        if constants is None or name not in constants:
            raise InvalidGraphError(f"{graph.name}: constant {name} has no value; pass it in constants")
        machine.bind(name, constants[name])
    for op in graph.ops:
        match op:
            case LoopNest():
                _Run(machine, op).execute()
            case LibraryCall():
                _call_library(machine, op)
            case _:
                assert_never(op)
    return [machine.window(out) if isinstance(out, View) else out for out in graph.outputs]


@dataclass
class _Machine:
    """The memory: one flat tensor a buffer, whose element 0 is the buffer's first element."""

    buffers: Mapping[str, Buffer]
    double: bool
    flat: dict[str, torch.Tensor] = field(default_factory=dict)

    def dtype(self, text: str) -> torch.dtype:
        dtype = torch_dtype(text)
        return torch.float64 if self.double and dtype.is_floating_point else dtype

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        """Make a caller's tensor the memory of a buffer."""
        buffer = self.buffers[name]
        shape, stride = tuple(buffer.shape), tuple(buffer.stride)
        relevant = [k for k, size in enumerate(shape) if size > 1] if 0 not in shape else []
        if tuple(tensor.shape) != shape or any(tensor.stride(k) != stride[k] for k in relevant):
            raise InvalidGraphError(
                f"{name}: the graph wants shape {shape} and strides {stride}, "
                f"the tensor has {tuple(tensor.shape)} and {tensor.stride()}"
            )
        wanted = self.dtype(buffer.dtype)
        if tensor.dtype not in (torch_dtype(buffer.dtype), wanted):
            raise InvalidGraphError(f"{name}: the graph wants {buffer.dtype}, the tensor is {tensor.dtype}")
        flat = tensor.detach().as_strided((extent(shape, stride),), (1,), tensor.storage_offset())
        self.flat[name] = flat.to(wanted)

    def memory(self, name: str, op: str) -> torch.Tensor:
        if name not in self.flat and 0 not in self.buffers[name].shape:
            raise InvalidGraphError(f"{op}: buffer {name} is read before it is defined")
        return self.allocate(name)

    def allocate(self, name: str) -> torch.Tensor:
        """Memory to write to. New memory holds nan (floats) or ones (all bits set), to make unwritten elements show."""
        if name not in self.flat:
            buffer = self.buffers[name]
            flat = torch.empty(extent(buffer.shape, buffer.stride), dtype=self.dtype(buffer.dtype))
            number = flat.is_floating_point() or flat.is_complex()
            (flat if number else _signed(flat)).fill_(torch.nan if number else -1)
            self.flat[name] = flat
        return self.flat[name]

    def window(self, view: View, op: str = "output") -> torch.Tensor:
        flat = self.memory(view.buffer, op)
        empty = 0 in view.shape
        if not empty and not 0 <= view.offset <= flat.numel() - extent(view.shape, view.stride):
            raise InvalidGraphError(f"{op}: view {view} is out of the bounds of its buffer ({flat.numel()} elements)")
        return flat.as_strided(view.shape, view.stride, flat.storage_offset() + (0 if empty else view.offset))


class _Run:
    """One execution of one nest. Dimensions of every value: the parallel ones, then the reduced ones."""

    def __init__(self, machine: _Machine, nest: LoopNest) -> None:
        self.machine = machine
        self.nest = nest
        sizes = [*nest.sizes, *nest.rsizes]
        symbols = [ivar(k) for k in range(len(nest.sizes))] + [rvar(k) for k in range(len(nest.rsizes))]
        self.shape = torch.Size(sizes)
        self.values = {
            symbol: torch.arange(size).reshape([size if d == k else 1 for d in range(len(sizes))])
            for k, (symbol, size) in enumerate(zip(symbols, sizes, strict=True))
        }
        self.results: list[torch.Tensor] = []
        # keyed by identity: hashing an expression that shares subtrees would take exponential time
        self.memo: dict[int, torch.Tensor] = {}

    def execute(self) -> None:
        reduced = len(self.nest.rsizes)
        for reduction in self.nest.reductions:
            operand = self.value(reduction.operand).expand(self.shape)
            rows = operand.flatten(len(self.nest.sizes)) if reduced else operand[..., None]
            folded = reduce_operand(reduction.kind, rows)
            self.results += [result.reshape(result.shape + (1,) * reduced) for result in folded]
        if self.nest.scan is not None:
            self.results = self.scanned(self.nest.scan)
        # every value before any store: a nest reads the memory as it was
        values = [(self.value(store.value), self.known(store)) for store in self.nest.stores]
        for store, (value, known) in zip(self.nest.stores, values, strict=True):
            self.store(store, value, known)

    def scanned(self, scan: Scan) -> list[torch.Tensor]:
        """The partial results of a scan, one element after the other."""
        rows = [self.value(operand).expand(self.shape).unbind(-1) for operand in scan.operands]
        steps = [tuple(row[0] for row in rows)]
        for elements in zip(*(row[1:] for row in rows), strict=True):
            known = (*steps[-1], *elements)
            steps.append(tuple(self.combined(expr, known) for expr in scan.combine))
        return [torch.stack(column, -1) for column in zip(*steps, strict=True)]

    def combined(self, expr: Expr, known: Sequence[torch.Tensor]) -> torch.Tensor:
        """An expression of a scan's ``combine``; ``known`` are the values of its Results."""
        match expr:
            case Const():
                return torch.tensor(expr.value, dtype=self.machine.dtype(expr.dtype))
            case Result():
                return known[expr.k]
            case Call():
                args = [self.combined(arg, known) for arg in expr.args]
                return call_function(expr.function, args, self.machine.dtype(expr.dtype))
            case Load() | Iota() | Dot():
                raise InvalidGraphError(f"{self.nest.name}: a scan combines results alone, not {expr}")

    def value(self, expr: Expr) -> torch.Tensor:
        if id(expr) not in self.memo:
            value = self._compute(expr)
            if value.dtype != self.machine.dtype(expr.dtype):
                raise InvalidGraphError(f"{self.nest.name}: {expr} is declared {expr.dtype} but computes {value.dtype}")
            self.memo[id(expr)] = value
        return self.memo[id(expr)]

    def _compute(self, expr: Expr) -> torch.Tensor:
        match expr:
            case Const():
                return torch.tensor(expr.value, dtype=self.machine.dtype(expr.dtype))
            case Iota():
                return torch.as_tensor(evaluate(expr.index, self.values)).to(self.machine.dtype(expr.dtype))
            case Load():
                return self.load(expr)
            case Call():
                args = [self.value(arg) for arg in expr.args]
                return call_function(expr.function, args, self.machine.dtype(expr.dtype))
            case Result():
                if expr.k >= len(self.results):
                    raise InvalidGraphError(f"{self.nest.name}: result {expr.k} of {len(self.results)}")
                return self.results[expr.k]
            case Dot():
                return self.product(expr)
            case _:
                assert_never(expr)

    def product(self, dot: Dot) -> torch.Tensor:
        """A product of matrices, added up in float32 or, for the oracle, in float64."""
        dtype = self.machine.dtype(dot.dtype)
        term = torch.arange(dot.terms)
        sides = []
        for load, terms in ((dot.left, term), (dot.right, term[:, None])):
            flat = self.machine.memory(load.buffer, self.nest.name)
            index = torch.as_tensor(evaluate(load.index, {**self.values, rvar(0): terms}))
            sides.append(flat[self.check(index, flat, load.buffer)].to(dtype))
        return torch.matmul(*sides)

    def load(self, load: Load) -> torch.Tensor:
        flat = self.machine.memory(load.buffer, self.nest.name)
        values = self.known(load)
        index = torch.as_tensor(evaluate(load.index, values))
        if not load.guards:
            return flat[self.check(index, flat, load.buffer)]
        if load.other is None:
            raise InvalidGraphError(f"{self.nest.name}: a guarded load of {load.buffer} says no other value")
        holds = torch.tensor(True)
        for guard in load.guards:
            holds = holds & _holds(guard, values)
        holds, index = torch.broadcast_tensors(holds, index)
        loaded = self.value(load.other).to(flat.dtype).repeat(holds.shape)
        _signed(loaded)[holds] = _signed(flat[self.check(index[holds], flat, load.buffer)])
        return loaded

    def known(self, access: Load | Store) -> dict[sympy.Symbol, torch.Tensor]:
        """The values of the variables in an access's index, indirect ones included."""
        return {**self.values, **{tvar(k): self.value(e).to(torch.int64) for k, e in enumerate(access.indirect)}}

    def store(self, store: Store, value: torch.Tensor, known: Mapping[sympy.Symbol, torch.Tensor]) -> None:
        if store.indirect:
            flat = self.machine.memory(store.buffer, self.nest.name)
        else:
            flat = self.machine.allocate(store.buffer)
        index = torch.as_tensor(evaluate(store.index, known)).expand(self.points())
        values = value.expand(self.points()).to(flat.dtype)
        places = self.check(index, flat, store.buffer)
        if store.adds:
            flat.index_put_((places,), values, accumulate=True)
        else:
            _signed(flat)[places] = _signed(values)

    def points(self) -> torch.Size:
        """The points that are stored: every reduced dimension is 1, a scanned one is not."""
        if self.nest.scan is not None:
            return self.shape
        return self.shape[: len(self.nest.sizes)] + (1,) * len(self.nest.rsizes)

    def check(self, index: torch.Tensor, flat: torch.Tensor, buffer: str) -> torch.Tensor:
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= flat.numel()):
            raise InvalidGraphError(
                f"{self.nest.name}: index {int(index.min())}..{int(index.max())} is out of the bounds of {buffer}, "
                f"which has {flat.numel()} elements"
            )
        return index


def _signed(x: torch.Tensor) -> torch.Tensor:
    """The same memory with the signed dtype of an unsigned one's width, which torch has more operators for."""
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(x.dtype)
    return x if signed is None else x.view(signed)


def _holds(guard: Guard, values: Mapping) -> torch.Tensor:
    expr = torch.as_tensor(evaluate(guard.expr, values))
    return (expr >= guard.lower) & (expr < guard.upper)


def _call_library(machine: _Machine, call: LibraryCall) -> None:
    """Call the overload on views of memory, and copy what it returns into the output buffers."""
    results = call_operator(
        call, lambda view: machine.window(view, call.name), machine.dtype, lambda _: torch.device("cpu")
    )
    if len(results) < len(call.outputs):
        raise InvalidGraphError(f"{call.name}: {call.target} returned {len(results)} values, not {len(call.outputs)}")
    for name, result in zip(call.outputs, results, strict=False):
        if name is None:
            continue
        buffer = machine.buffers[name]
        if tuple(result.shape) != tuple(buffer.shape) or result.dtype != machine.dtype(buffer.dtype):
            raise InvalidGraphError(
                f"{call.name}: {call.target} returned {result.dtype}{list(result.shape)}, "
                f"not the {buffer.dtype}{list(buffer.shape)} of {name}"
            )
        machine.allocate(name)
        machine.window(View(name, buffer.shape, buffer.stride), call.name).copy_(result)
