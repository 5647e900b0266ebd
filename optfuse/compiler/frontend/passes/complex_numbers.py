"""Compute with the real and the imaginary parts of complex numbers, which loops can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import BY_PLACE, VIEWS, copied, fake, insert, swap, with_graph
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY
from optfuse.compiler.frontend.torch_internals.torch_sizes import hint_of, same_numbers

aten = torch.ops.aten

#: The dtype of the parts, by that of the numbers.
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}

#: Operators that move the elements of one tensor and write nothing.
_VIEWS = VIEWS - {aten.as_strided.default, aten.unfold.default, aten.view.dtype}
#: Operators that do the same to the real and to the imaginary parts of all arguments but one, which holds indices or
#: a mask: by operator, the position of that one.
_LINEAR: dict[Any, int | None] = {
    aten.cat.default: None,
    aten.clone.default: None,
    aten.flip.default: None,
    aten.gather.default: 2,
    aten.index.Tensor: 1,
    aten.index_select.default: 2,
    aten.mean.dim: None,
    aten.neg.default: None,
    aten.roll.default: None,
    aten.slice_scatter.default: None,
    aten.stack.default: None,
    aten.sum.default: None,
    aten.sum.dim_IntList: None,
    aten.where.self: 0,
}
#: Conjugates tensors when they are read, and numbers.
_CONJUGATE = aten._conj.default  # noqa: SLF001 - the name of an operator
#: Operators whose last argument is a number that fills the result.
_FILLED = {aten.full.default, aten.scalar_tensor.default, _CONJUGATE}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The real and the imaginary parts of complex numbers, each a node or a number; of real ones, the former alone."""

    real: Any
    imaginary: Any = None


def compute_parts(captured: Captured) -> Captured:
    """The graph with arithmetic of complex numbers done on their parts, by loops.

    Before: ``z = view_as_complex(x); w = mul(z, f); y = view_as_real(w)``. After, with f's parts c and d:
    ``a = select(x, -1, 0); b = select(x, -1, 1); y = stack([a * c - b * d, a * d + b * c], -1)``. Library calls, as
    of Fourier transforms, and the caller get complex numbers: views of such a stack. Nothing changes where elements of
    complex numbers are found by their place in memory.
    """
    values = [fake(node) for node in captured.graph.graph.nodes]
    if not any(value is not None and value.dtype in _REAL for value in values):
        return captured
    if any(_looks_into_complex(node) for node in captured.graph.graph.nodes):
        return captured
    graph = copied(captured.graph)
    work = _Work(graph.graph, {})
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and all(_has_its_bits(each) for each in (node, *node.all_input_nodes)):
            work.visit(node)
    return with_graph(captured, graph)


def _looks_into_complex(node: Node) -> bool:
    """Whether a node finds elements by their place in the memory of complex numbers, whose parts lie there in turn."""
    if node.target not in BY_PLACE:
        return False
    base: Any = node.args[0]
    while isinstance(base, Node) and base.target in VIEWS | {aten.view_as_real.default}:
        base = base.args[0]
        value = fake(base)
        if value is not None and value.dtype in _REAL:
            return True
    return False


def _has_its_bits(node: Node) -> bool:
    """Whether a value's memory holds the numbers themselves, and not ones to conjugate or to negate when read."""
    value = fake(node)
    return value is None or not (value.is_conj() or value.is_neg())


def _is_refused(node: Node) -> bool:
    """Whether a number would be made of parts of two types, which its run refuses, and torch's trace does not."""
    made = node.target in (aten.complex.default, aten.polar.default)
    return made and len({argument.meta["val"].dtype for argument in node.all_input_nodes}) > 1


@dataclass(slots=True)
class _Work:
    """One run over a graph. ``known`` has the parts of complex values."""

    graph: Graph
    known: dict[Node, _Parts]

    def visit(self, node: Node) -> None:
        """Compute a node's parts, or what it makes of the parts of its argument."""
        value, first = fake(node), node.args[0] if node.args else None
        if node.target is aten.view_as_real.default:
            if first in self.known:
                self._take_apart(node, self.known[first])
        elif node.target in _TO_REAL and isinstance(first, Node) and first.meta["val"].dtype in _REAL:
            maker = _Maker(self, node, node.meta["val"].dtype)
            swap(node, _TO_REAL[node.target](maker, maker.operand(first)))
        elif value is not None and value.dtype in _REAL:
            self._compute(node, _Maker(self, node, _REAL[value.dtype]))

    def parts_of(self, number: Any, before: Node) -> _Parts:
        """The parts of an argument: known ones, or those of what a library call or the caller gives."""
        if isinstance(number, complex):
            return _Parts(number.real, number.imag)
        if not isinstance(number, Node) or not number.meta["val"].dtype.is_complex:
            return _Parts(number)
        if number not in self.known:
            pairs = insert(self.graph, before, aten.view_as_real.default, (number,))
            self.known[number] = _halves(self.graph, before, pairs)
        return self.known[number]

    def _compute(self, node: Node, maker: _Maker) -> None:
        """Note a node's parts. A view stays for those who read the numbers; others are joined from their parts."""
        if node.target is aten.view_as_complex.default:
            self.known[node] = _halves(self.graph, node, node.args[0])
        elif node.target in _VIEWS:
            if node.args[0] in self.known:
                self.known[node] = maker.each()
        elif not _is_refused(node):
            parts = maker.parts()
            if parts is not None:
                parts = self._apart(node, parts)
                joined = insert(self.graph, node, aten.view_as_complex.default, (self._stacked(node, parts),))
                self.known[joined] = parts
                swap(node, joined)

    def _apart(self, node: Node, parts: _Parts) -> _Parts:
        """The parts of a new tensor: a copy of one that is an argument's, whose memory the caller may see or write."""
        given = {each for argument in node.all_input_nodes for each in (argument, *_nodes(self.known.get(argument)))}
        halves = (parts.real, parts.imaginary)
        return _Parts(
            *(insert(self.graph, node, aten.clone.default, (each,)) if each in given else each for each in halves)
        )

    def _take_apart(self, node: Node, parts: _Parts) -> None:
        """Let what selects one half of a ``view_as_real`` read that part, and others a stack of both."""
        last = node.meta["val"].ndim - 1
        for user in list(node.users):
            if user.target is aten.select.int and user.args[1] in (last, -1):
                swap(user, parts.imaginary if user.args[2] in (1, -1) else parts.real)
        if node.users:
            swap(node, self._stacked(node, parts))

    def _stacked(self, before: Node, parts: _Parts) -> Node:
        """The parts as pairs along a last axis; the other axes have ``before``'s order in memory, for its views."""
        halves, rank = [parts.real, parts.imaginary], parts.real.meta["val"].ndim
        order = [d for d in _memory_order(before.meta["val"]) if d < rank]
        if order == sorted(order):
            return insert(self.graph, before, aten.stack.default, (halves, -1))
        turned = [insert(self.graph, before, aten.permute.default, (half, order)) for half in halves]
        pairs = insert(self.graph, before, aten.stack.default, (turned, -1))
        return insert(self.graph, before, aten.permute.default, (pairs, [*map(order.index, range(rank)), rank]))


def _memory_order(value: torch.Tensor) -> list[int]:
    """A tensor's dimensions from the one with the largest steps on; those of one element stay where they are."""
    if value.is_contiguous():
        return list(range(value.ndim))
    return sorted(range(value.ndim), key=lambda d: (-hint_of(value.stride(d)), -hint_of(value.shape[d])))


def _halves(graph: Graph, before: Node, pairs: Node) -> _Parts:
    """The parts of numbers that lie as pairs along the last axis."""
    last = pairs.meta["val"].ndim - 1
    return _Parts(*(insert(graph, before, aten.select.int, (pairs, last, half)) for half in (0, 1)))


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the parts of one node, of the dtype ``real``, just before it."""

    work: _Work
    node: Node
    real: torch.dtype

    def parts(self) -> _Parts | None:
        """The parts; None where the operator takes complex numbers as they are."""
        target, kwargs = self.node.target, self.node.kwargs
        args: tuple[Any, ...] = self.node.args
        if target in _LINEAR:
            return self.each() if self._is_linear() else None
        if target is TO_COPY:
            return self._copied() if self.node.meta["val"].device == args[0].meta["val"].device else None
        if target in _FILLED and not isinstance(args[-1], Node):
            return self._filled(complex(args[-1]) if target is not _CONJUGATE else args[-1].conjugate())
        if target not in _RULES or kwargs:
            return None
        return _RULES[target](self, *(self.operand(argument) for argument in args))

    def each(self) -> _Parts:
        """The node's operator on the real parts of its arguments, and on the imaginary parts."""
        halves = []
        for half in ("real", "imaginary"):

            def part(argument: Node, half: str = half) -> Any:
                is_complex = argument.meta["val"].dtype.is_complex
                return getattr(self.operand(argument), half) if is_complex else argument

            args = map_arg(self.node.args, part)
            if self.node.target is aten.view.default and not args[0].meta["val"].is_contiguous():
                args = (self(aten.clone.default, args[0], memory_format=torch.contiguous_format), *args[1:])
            halves.append(insert(self.work.graph, self.node, self.node.target, args, self.node.kwargs))
        return _Parts(*halves)

    def _is_linear(self) -> bool:
        """Whether all of a linear operator's arguments that hold numbers are complex."""
        other = _LINEAR[self.node.target]
        numbers = [node for k, each in enumerate(self.node.args) if k != other for node in _nodes(each)]
        values = [value for node in numbers if (value := fake(node)) is not None]  # others are sizes
        return self.node.kwargs.get("dtype") is None and all(value.dtype.is_complex for value in values)

    def _copied(self) -> _Parts:
        """A copy: parts in the result's dtype; real numbers get imaginary parts of zero."""
        parts = self.operand(self.node.args[0])
        if parts.imaginary is None:
            return _Parts(parts.real, self(aten.zeros_like.default, parts.real))
        return parts

    def _filled(self, number: complex) -> _Parts:
        value, sizes = self.node.meta["val"], self.node.args[0] if self.node.target is aten.full.default else []
        options = {"dtype": self.real, "device": value.device}
        halves = (number.real, number.imag)
        return _Parts(*(insert(self.work.graph, self.node, aten.full.default, (sizes, x), options) for x in halves))

    def operand(self, number: Any) -> _Parts:
        """The parts of an argument in the dtype of the result's."""
        parts = self.work.parts_of(number, self.node)
        return _Parts(self._converted(parts.real), self._converted(parts.imaginary))

    def __call__(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """A new node."""
        return insert(self.work.graph, self.node, target, args, kwargs)

    def _converted(self, x: Any) -> Any:
        if not isinstance(x, Node) or x.meta["val"].dtype == self.real:
            return x
        return insert(self.work.graph, self.node, TO_COPY, (x,), {"dtype": self.real})


def _nodes(argument: Any) -> list[Node]:
    found: list[Node] = []
    parts = (argument.real, argument.imaginary) if isinstance(argument, _Parts) else argument
    map_arg(parts, found.append)
    return found


def _added(make: _Maker, a: _Parts, b: _Parts) -> _Parts:
    if a.imaginary is None or not isinstance(a.real, Node):
        a, b = b, a
    real = make(aten.add.Tensor, a.real, b.real)
    if b.imaginary is not None and a.imaginary is not None:
        return _Parts(real, make(aten.add.Tensor, a.imaginary, b.imaginary))
    imaginary = a.imaginary if b.imaginary is None else b.imaginary
    if isinstance(imaginary, Node) and same_numbers(imaginary.meta["val"].shape, real.meta["val"].shape):
        return _Parts(real, imaginary)
    return _Parts(real, make(aten.add.Tensor, make(aten.zeros_like.default, real), imaginary))


def _subtracted(make: _Maker, a: _Parts, b: _Parts) -> _Parts:
    def negated(x: Any) -> Any:
        return make(aten.neg.default, x) if isinstance(x, Node) else -x

    return _added(make, a, _Parts(negated(b.real), None if b.imaginary is None else negated(b.imaginary)))


def _product(make: _Maker, a: _Parts, b: _Parts) -> _Parts:
    if a.imaginary is None or not isinstance(a.real, Node):
        a, b = b, a
    if a.imaginary is None:  # a real tensor and a complex number
        return _Parts(make(aten.mul.Tensor, a.real, b.real), make(aten.mul.Tensor, a.real, b.imaginary))
    if b.imaginary is None:
        return _Parts(make(aten.mul.Tensor, a.real, b.real), make(aten.mul.Tensor, a.imaginary, b.real))
    terms = [make(aten.mul.Tensor, x, y) for x in (a.real, a.imaginary) for y in (b.real, b.imaginary)]
    return _Parts(make(aten.sub.Tensor, terms[0], terms[3]), make(aten.add.Tensor, terms[1], terms[2]))


def _quotient(make: _Maker, a: _Parts, b: _Parts) -> _Parts | None:
    """Only by real numbers: for others torch scales, so that no square overflows."""
    if b.imaginary is not None or a.imaginary is None:
        return None
    return _Parts(make(aten.div.Tensor, a.real, b.real), make(aten.div.Tensor, a.imaginary, b.real))


def _conjugated(make: _Maker, a: _Parts) -> _Parts:
    return _Parts(a.real, make(aten.neg.default, a.imaginary))


def _exponential(make: _Maker, a: _Parts) -> _Parts:
    """The imaginary part of a real number's is zero, also where the number is infinite."""
    size, angle = make(aten.exp.default, a.real), a.imaginary
    sine = make(aten.mul.Tensor, size, make(aten.sin.default, angle))
    sine = make(aten.where.self, make(aten.eq.Scalar, angle, 0), angle, sine)
    return _Parts(make(aten.mul.Tensor, size, make(aten.cos.default, angle)), sine)


def _of_parts(_: _Maker, real: _Parts, imaginary: _Parts) -> _Parts | None:
    same = same_numbers(real.real.meta["val"].shape, imaginary.real.meta["val"].shape)
    return _Parts(real.real, imaginary.real) if same else None


def _of_angle(make: _Maker, size: _Parts, angle: _Parts) -> _Parts:
    cosine, sine = make(aten.cos.default, angle.real), make(aten.sin.default, angle.real)
    return _Parts(make(aten.mul.Tensor, size.real, cosine), make(aten.mul.Tensor, size.real, sine))


#: The parts of an operator's result, by those of its arguments; None: it takes complex numbers as they are.
_RULES: dict[Any, Callable[..., _Parts | None]] = {
    aten.add.Tensor: _added,
    aten.sub.Tensor: _subtracted,
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _product,
    aten.div.Tensor: _quotient,
    aten.div.Scalar: _quotient,
    aten._conj_physical.default: _conjugated,  # noqa: SLF001 - the name of an operator
    aten.conj_physical.default: _conjugated,
    aten.exp.default: _exponential,
    aten.complex.default: _of_parts,
    aten.polar.default: _of_angle,
}

#: Real numbers that are made of complex ones.
_TO_REAL: dict[Any, Callable[[_Maker, _Parts], Node]] = {
    aten.abs.default: lambda make, a: make(aten.hypot.default, a.real, a.imaginary),
    aten.angle.default: lambda make, a: make(aten.atan2.default, a.imaginary, a.real),
}
