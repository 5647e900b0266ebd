"""The loop graph under construction, into which lowering rules emit ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch import fx

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.nodes import (
    Arg,
    Buffer,
    BufferKind,
    Const,
    Expr,
    Guard,
    LibraryCall,
    Load,
    LoopNest,
    Op,
    Origin,
    Reduction,
    Result,
    Store,
    TorchValue,
    View,
)
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.size_float import SizeFloat
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.ir.verify_nest import result_dtypes
from optfuse.compiler.lower.collapse import collapse
from optfuse.compiler.lower.expressions import DTYPES, call, const, scalar, within
from optfuse.compiler.lower.origin import origin_of
from optfuse.compiler.lower.overloads import concrete
from optfuse.compiler.lower.registry import Declined, Uniform
from optfuse.compiler.lower.strided_layout import Index, loop_variables, memory_order, overlaps, strided_index
from optfuse.compiler.symbols.traced_sizes import size_of
from optfuse.errors import CaptureError


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's shape, strides (in elements), dtype ("float32") and device ("cuda:0"), as eager gives them."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def spec_of(tensor: torch.Tensor, decisions: Decisions | None = None) -> Spec:
    """The Spec of a (fake) tensor. Symbolic sizes are formulas of ``decisions``; without, they take their values.

    Raises:
        CaptureError: If a size is known only when the model runs.
    """
    shape = tuple(size_in(s, decisions) for s in tensor.shape)
    stride = tuple(size_in(s, decisions) for s in tensor.stride())
    return Spec(shape, stride, dtype_name(tensor.dtype), str(tensor.device))


def size_in(size: int | torch.SymInt, decisions: Decisions | None) -> int:
    """A size of a traced tensor. Raises CaptureError if it is known only when the model runs."""
    if decisions is not None and isinstance(size, torch.SymInt):
        return size_of(size, decisions)
    known = size if isinstance(size, int) else concrete(size)
    if not isinstance(known, int):
        raise CaptureError(
            f"a tensor has a size ({size}) known only when the model runs; keep its op out of the optimized model"
        )
    return known


def dtype_name(dtype: torch.dtype) -> str:
    """The loop IR's name of a dtype: "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


class Builder:
    """The buffers and ops so far, and the FX node that is being lowered. Rules use its methods."""

    def __init__(self, main: str = "cpu", decisions: Decisions | None = None) -> None:
        #: of a graph for a range of sizes
        self.decisions = decisions
        #: the device of the loops; tensors elsewhere are computed by library calls
        self.main = main
        self.buffers: dict[str, Buffer] = {}
        self.ops: list[Op] = []
        self._fills: dict[str, View] = {}
        self._offsets: dict[str, int] = {}
        self._op_names: set[str] = set()
        self._node: fx.Node | None = None
        #: nodes whose tensors are written in place later: these must be in memory
        self.written: frozenset[fx.Node] = frozenset()

    # --- the current node

    def enter(self, node: fx.Node) -> None:
        """Make ``node`` the current node: the origin of the ops emitted from here on."""
        self._node = node

    @property
    def node(self) -> fx.Node:
        """The FX node that is being lowered."""
        assert self._node is not None, "no node is being lowered"
        return self._node

    @property
    def origin(self) -> Origin:
        """The origin of the current node."""
        return origin_of(self.node)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The Spec of each tensor that the node returns."""
        value = self.node.meta["val"]
        tensors = value if isinstance(value, tuple | list) else (value,)
        return tuple(self.spec_of(t) for t in tensors if isinstance(t, torch.Tensor))

    @property
    def spec(self) -> Spec:
        """The Spec of the one tensor that the node returns."""
        (spec,) = self.specs
        return spec

    def spec_of(self, tensor: torch.Tensor) -> Spec:
        """The Spec of a (fake) tensor of the graph."""
        return spec_of(tensor, self.decisions)

    # --- values

    def dtype(self, value: View | Uniform) -> str:
        """The dtype of a tensor value."""
        return value.dtype if isinstance(value, Uniform) else self.buffers[value.buffer].dtype

    def device(self, value: View | Uniform) -> str:
        """The device that a tensor value lives on."""
        return value.device if isinstance(value, Uniform) else self.buffers[value.buffer].device

    def in_memory(self, value: View | Uniform) -> View:
        """The value as a window of a buffer. A uniform tensor gets a buffer here, and an op that fills it."""
        if isinstance(value, View):
            return value
        if value.constant is not None:
            return value.constant
        node = value.origin.node
        if node not in self._fills:
            spec = Spec(value.shape, row_major(value.shape), value.dtype, value.device)
            fill = scalar(value.value, value.dtype)
            out = self._fills[node] = self.allocate(spec, name=node)
            if value.device == self.main:
                self.store_into(out, lambda index: fill, name=out.buffer, origin=value.origin)
            else:
                kwargs = (("dtype", TorchValue("dtype", value.dtype)), ("device", TorchValue("device", value.device)))
                self.call("aten.full.default", (value.shape, value.value), out, value.origin, kwargs)
        return self._fills[node]

    def load(
        self,
        value: View | Uniform,
        index: Sequence[sympy.Expr],
        *,
        guards: tuple[Guard, ...] = (),
        other: Const | None = None,
        indirect: tuple[Expr, ...] = (),
        checked: bool = True,
    ) -> Expr:
        """One element of ``value``, in its own dtype (half types stay half: see ``computable``).

        ``index`` is aligned with the value's dimensions from the right, and broadcast where a size is 1. Guards need
        ``other``, in the value's dtype. A t variable alone is an index into its dimension; not ``checked``: it is known
        to be inside of it.
        """
        if isinstance(value, Uniform) and not guards:
            sized = isinstance(value.value, Size | SizeFloat)
            return scalar(value.value, value.dtype) if sized else Const(value.value, value.dtype)
        view = self.in_memory(value)
        where = strided_index(view.shape, view.stride, view.offset, tuple(index))
        indirect = within(view.shape, index, indirect) if checked else indirect
        return Load(view.buffer, where, self.dtype(view), guards, other, indirect)

    # --- buffers and ops

    def fresh_name(self, wanted: str) -> str:
        """``wanted``, with a number appended if a buffer has that name already."""
        name, k = wanted, 1
        while name in self.buffers:
            name, k = f"{wanted}_{k}", k + 1
        return name

    def allocate(
        self,
        spec: Spec,
        *,
        name: str | None = None,
        kind: BufferKind = "temporary",
        storage_offset: int = 0,
        base: str | None = None,
    ) -> View:
        """A new buffer in the layout of ``spec`` (row-major if that layout overlaps itself), as a View.

        ``storage_offset``: of an input's or constant's first element in its torch storage. ``base``: the buffer that
        the new one aliases.
        """
        stride = spec.stride
        if kind == "temporary" and base is None and overlaps(spec.shape, stride):
            stride = row_major(spec.shape)
        name = self.fresh_name(self.node.name if name is None else name)
        self.buffers[name] = Buffer(name, spec.dtype, spec.shape, stride, kind, spec.device, base)
        self._offsets[name] = storage_offset
        return View(name, spec.shape, stride)

    def whole(self, name: str) -> View:
        """A buffer as a View of all of it."""
        buffer = self.buffers[name]
        return View(name, buffer.shape, buffer.stride)

    def storage_offset(self, name: str) -> int:
        """The offset of a buffer's first element in its torch storage: 0 but for inputs and constants."""
        return self._offsets[name]

    def emit(self, op: Op) -> None:
        """Append an op; a number is appended to its name if that is taken."""
        name, k = op.name, 1
        while name in self._op_names:
            name, k = f"{op.name}_{k}", k + 1
        self._op_names.add(name)
        self.ops.append(op if name == op.name else replace(op, name=name))

    def require_loops(self, device: str) -> None:
        """Raise ``Declined`` if ``device`` is not the device of the loops."""
        if device != self.main:
            raise Declined(f"it is on {device}, and loops run on {self.main}")

    def call(
        self, target: str, args: tuple[Arg, ...], out: View, origin: Origin, kwargs: tuple[tuple[str, Arg], ...] = ()
    ) -> None:
        """Emit a call of an overload whose result is the whole new buffer ``out``."""
        self.emit(LibraryCall(out.buffer, target, args, kwargs, (out.buffer,), replace(origin, target=target)))

    def allocate_outputs(self, specs: Sequence[Spec], name: str | None = None) -> tuple[View, ...]:
        """A new buffer for each spec, named ``name`` (default: the node's), with its position if there are several."""
        name = name or self.node.name
        if len(specs) == 1:
            return (self.allocate(specs[0], name=name),)
        return tuple(self.allocate(spec, name=f"{name}_{k}") for k, spec in enumerate(specs))

    def pointwise(self, body: Callable[[Index], Expr], spec: Spec | None = None, *, name: str | None = None) -> View:
        """Emit a nest that stores ``body(index)`` at every logical index of a new tensor, and return that tensor.

        ``spec`` (default: the node's) gives its layout; the loops follow its order in memory. ``body`` returns a value
        of the tensor's dtype, or float32 for a half type.
        """
        spec = self.spec if spec is None else spec
        self.require_loops(spec.device)
        out = self.allocate(spec, name=name)
        self.store_into(out, body, name=out.buffer)
        return out

    def store_into(
        self, out: View, body: Callable[[Index], Expr], *, name: str | None = None, origin: Origin | None = None
    ) -> None:
        """Emit a nest that stores ``body(index)`` at every logical index of ``out``, a window of an existing buffer.

        ``name`` and ``origin`` (default: the node's) are for nests that do more than the node does.
        """
        if 0 in out.shape:
            return
        index, sizes, _ = loop_variables(out.shape, memory_order(range(len(out.shape)), out.stride))
        where = strided_index(out.shape, out.stride, out.offset, index)
        store = Store(out.buffer, where, body(index))
        self.emit(collapse(LoopNest(name or self.node.name, sizes, (), (), (store,), origin or self.origin)))

    def store_at(
        self,
        out: View,
        window: View,
        places: Callable[[Index], Index],
        body: Callable[[Index], Expr],
        indirect: Callable[[Index], tuple[Expr, ...]],
        *,
        adds: bool = False,
    ) -> None:
        """Emit a nest that stores (or adds) ``body(index)`` at ``places(index)`` of ``out``, for indices of ``window``.

        ``places`` has t variables for the values of ``indirect(index)``; all other elements keep their values. The
        loops follow the strides of ``window``, which has the shape of what is stored.
        """
        if 0 in window.shape:
            return
        index, sizes, _ = loop_variables(window.shape, memory_order(range(len(window.shape)), window.stride))
        where = strided_index(out.shape, out.stride, out.offset, places(index))
        store = Store(out.buffer, where, body(index), within(out.shape, places(index), indirect(index)), adds)
        self.emit(collapse(LoopNest(self.node.name, sizes, (), (), (store,), self.origin)))

    def copy(self, source: View | Uniform, spec: Spec | None = None, *, name: str | None = None) -> View:
        """Emit a nest that copies ``source`` (broadcast as needed) to a new tensor of the same dtype.

        What loops do not reach, another device's memory or complex numbers, is copied by a library call.
        """
        spec = self.spec if spec is None else spec
        foreign = spec.device == self.device(source) != self.main or spec.dtype not in DTYPES
        if foreign and spec.shape == source.shape:
            out = self.allocate(spec, name=name)
            self.call("aten.clone.default", (self.in_memory(source),), out, self.origin)
            return out
        return self.pointwise(lambda index: self.load(source, index), spec, name=name)

    def reduction(
        self,
        shape: Sequence[int],
        stride: Sequence[int],
        dims: Sequence[int],
        fold: Callable[[Index], tuple[Reduction, ...]],
        finish: Callable[[tuple[Expr, ...], Index], tuple[Expr, ...]],
        *,
        ordered: bool = False,
        specs: Sequence[Spec] | None = None,
        name: str | None = None,
    ) -> tuple[View, ...]:
        """Emit a nest that reduces a tensor of ``shape`` over ``dims`` into the node's outputs, and return those.

        ``specs`` and ``name`` are for a nest with results of its own.

        ``fold(index)`` gives the reductions at a logical index of the full domain; ``finish(results, index)`` gives an
        expression for each output, of its dtype or float32 for a half type (``index`` is 0 at reduced dimensions). The
        outputs' shapes tell whether they keep the reduced dimensions. ``stride`` is the main input's: reduced
        dimensions are traversed in its memory order, or in logical order when ``ordered`` (argmax). Over an empty
        domain the results are the reductions' identities.
        """
        shape = tuple(shape)
        dims = tuple(sorted(d % len(shape) for d in dims)) if shape else ()
        specs = self.specs if specs is None else specs
        self.require_loops(specs[0].device)
        outs = self.allocate_outputs(specs, name)
        if 0 in outs[0].shape:
            return outs
        kept = [d for d in range(len(shape)) if d not in dims]
        kept_of_output = kept if len(outs[0].shape) < len(shape) else list(range(len(shape)))
        rank = {d: outs[0].stride[kept_of_output.index(d)] for d in kept}
        parallel = sorted(kept, key=lambda d: -rank[d])
        index, sizes, rsizes = loop_variables(shape, parallel, dims if ordered else memory_order(dims, stride))
        outer = tuple(sympy.S.Zero if d in dims else i for d, i in enumerate(index))

        reductions = fold(index)
        results: tuple[Expr, ...] = _results(reductions)
        if 0 in rsizes or not rsizes:
            degenerate = _of_nothing if rsizes else _of_one
            results = tuple(e for r in reductions for e in degenerate(r))
            reductions, rsizes = (), ()
        stores = tuple(
            Store(out.buffer, strided_index(out.shape, out.stride, 0, tuple(outer[d] for d in kept_of_output)), value)
            for out, value in zip(outs, finish(results, outer), strict=True)
        )
        self.emit(collapse(LoopNest(name or self.node.name, sizes, rsizes, reductions, stores, self.origin)))
        return outs


def _results(reductions: tuple[Reduction, ...]) -> tuple[Result, ...]:
    return tuple(Result(k, dtype) for k, dtype in enumerate(result_dtypes(reductions)))


def _of_nothing(reduction: Reduction) -> tuple[Expr, ...]:
    """The results of a reduction over no elements. (ATen refuses max, min, argmax and argmin of those.)"""
    dtype = reduction.operand.dtype
    match reduction.kind:
        case "all":
            return (Const(True, "bool"),)
        case "prod":
            return (const(1, dtype),)
        case "welford":
            return (const(math.nan, dtype), const(0, dtype), const(0, dtype))
        case _:
            return (const(0, dtype),)


def _of_one(reduction: Reduction) -> tuple[Expr, ...]:
    """The results of a reduction over one element."""
    operand = reduction.operand
    match reduction.kind:
        case "argmax" | "argmin":
            return (Const(0, "int64"),)
        case "welford":
            deviation = call("sub", operand, operand)  # 0, but nan of nan and inf
            return (operand, deviation, const(1, operand.dtype))
        case _:
            return (operand,)
