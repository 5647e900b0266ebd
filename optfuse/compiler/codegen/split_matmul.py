"""Matmuls with a contiguous extent that is no multiple of 8, split in two: a multiple of 8, and the rest.

For bfloat16 and float16 cuBLAS has fast kernels only where every contiguous extent is a whole number of 16-byte
vectors. A vocabulary of 50257 is not: on an H200 its matmul takes 6.7 ms whole, and 0.9 ms as 50256 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from optfuse.compiler.ir.nodes import Buffer, LibraryCall, View
from optfuse.compiler.ir.sizes import hint

#: Elements of a half type in 16 bytes.
VECTOR = 8
#: The least multiply-adds for which two calls are faster than one.
LEAST_WORK = 1 << 28

_OPERANDS = {"aten.mm.default": 0, "aten.addmm.default": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """One of the two calls: an ``out=`` overload, its operands, and the window of the result that it writes."""

    overload: str
    operands: tuple[View, ...]
    out: View


def matmul_parts(call: LibraryCall, buffers: Mapping[str, Buffer]) -> tuple[Part, ...]:
    """The two calls that compute a matmul, in order; empty where one call is as good."""
    first = _OPERANDS.get(call.target)
    if first is None or call.kwargs or call.outputs[0] is None or len(call.args) != first + 2:
        return ()
    *added, a, b = call.args
    if not (isinstance(a, View) and isinstance(b, View)):
        return ()
    bias = next((view for view in added if isinstance(view, View)), None)
    buffer = buffers[call.outputs[0]]
    out = View(buffer.name, buffer.shape, buffer.stride)
    extents = (*a.shape, b.shape[1])
    small = hint(prod(extents)) < LEAST_WORK
    if buffer.dtype not in ("bfloat16", "float16") or small or not all(map(_aligned, (a, b, out))):
        return ()
    if bias is not None and len(bias.shape) != 1:
        return ()
    ragged = [axis for axis in "mkn" if _along_memory(axis, a, b, out) and extents["mkn".index(axis)] % VECTOR]
    return _cut(ragged[0], bias, a, b, out) if len(ragged) == 1 else ()


def _along_memory(axis: str, a: View, b: View, out: View) -> bool:
    """Whether some operand is contiguous along an axis of (m, k) @ (k, n)."""
    match axis:
        case "m":
            return a.stride[0] == 1 or out.stride[0] == 1
        case "k":
            return a.stride[1] == 1 or b.stride[0] == 1
        case _:
            return b.stride[1] == 1 or out.stride[1] == 1


def _aligned(view: View) -> bool:
    """Whether rows (or columns) are contiguous and start at whole vectors."""
    inner, outer = sorted(view.stride)
    return inner == 1 and outer % VECTOR == 0 and view.offset % VECTOR == 0


def _cut(axis: str, bias: View | None, a: View, b: View, out: View) -> tuple[Part, ...]:
    match axis:
        case "m":
            return tuple(
                _matmul(bias, rows, b, piece) for rows, piece in zip(_split(a, 0), _split(out, 0), strict=True)
            )
        case "n":
            biases = (None, None) if bias is None else _split(bias, 0)
            triples = zip(biases, _split(b, 1), _split(out, 1), strict=True)
            return tuple(_matmul(added, a, columns, piece) for added, columns, piece in triples)
        case _:
            # the few terms first: their rounding is small beside what the others add
            (head_a, tail_a), (head_b, tail_b) = _split(a, 1), _split(b, 0)
            return _matmul(bias, tail_a, tail_b, out), _matmul(out, head_a, head_b, out)


def _matmul(added: View | None, a: View, b: View, out: View) -> Part:
    if added is None:
        return Part("aten.mm.out", (a, b), out)
    return Part("aten.addmm.out", (added, a, b), out)


def _split(view: View, axis: int) -> tuple[View, View]:
    """A window split along an axis at the last multiple of a vector."""
    size = view.shape[axis]
    cut = size - size % VECTOR
    head, tail = (tuple(n if k == axis else s for k, s in enumerate(view.shape)) for n in (cut, size - cut))
    return replace(view, shape=head), replace(view, shape=tail, offset=view.offset + cut * view.stride[axis])
