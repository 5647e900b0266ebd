"""Bytes and arithmetic of an op, counted from the loop IR (or, for a library call, from its arguments' shapes)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from optfuse.extract.access import Access, roots
from optfuse.ir.functions import FUNCTIONS
from optfuse.ir.nodes import Arg, Buffer, Call, Expr, LibraryCall, Load, LoopNest, View
from optfuse.problem.instance import Device, Work

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4,
    "float64": 8, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "complex32": 4,
}  # fmt: skip

#: Issue slots of a special function relative to one exp2 on the special-function unit.
SPECIAL_WEIGHT = {"erf": 5, "erfc": 6, "erfinv": 6, "tanh": 3, "lgamma": 12, "pow": 4, "atan2": 5, "sin": 4, "cos": 4}


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes that the buffer's strided window spans (at least the elements it holds, 0 when empty)."""
    shape = [int(s) for s in buffer.shape]
    if any(s == 0 for s in shape):
        return 0
    span = 1 + sum((s - 1) * int(t) for s, t in zip(shape, buffer.stride, strict=True))
    return span * ITEM_BYTES.get(buffer.dtype, 8)


def touched_bytes(access: Access, sizes: Sequence[int], buffer: Buffer) -> int:
    """Bytes of distinct elements that an access touches over the nest's dimensions, at most the whole buffer."""
    item = ITEM_BYTES.get(buffer.dtype, 8)
    if access.coefficients is None or access.indirect:
        elements = prod(sizes)
    else:
        elements = prod(s for s, c in zip(sizes, access.coefficients, strict=True) if c != 0)
    return min(elements * item, buffer_bytes(buffer))


def nest_work(nest: LoopNest) -> Work:
    """Scalar functions of a nest times its points, and one operation a point for every reduction."""
    points = prod(int(s) for s in (*nest.sizes, *nest.rsizes))
    fp32 = sum(3 if r.kind == "welford" else 1 for r in nest.reductions)
    special = 0
    seen: set[Expr] = set()
    for root in roots(nest):
        stack: list[Expr] = [root]
        while stack:
            expr = stack.pop()
            if expr in seen:
                continue
            seen.add(expr)
            if isinstance(expr, Call):
                stack.extend(expr.args)
                if FUNCTIONS[expr.function].special:
                    special += SPECIAL_WEIGHT.get(expr.function, 1)
                elif expr.function != "cast":
                    fp32 += 16 if FUNCTIONS[expr.function].rule == "random" else 1
            elif isinstance(expr, Load):
                stack.extend(expr.indirect)
    return Work(fp32=fp32 * points, special=special * points)


def views(call: LibraryCall) -> tuple[View, ...]:
    """All tensors among a call's arguments, in order."""
    return tuple(_views((*call.args, *(value for _, value in call.kwargs))))


def _views(args: Iterable[Arg]) -> Iterable[View]:
    for arg in args:
        if isinstance(arg, View):
            yield arg
        elif isinstance(arg, tuple):
            yield from _views(arg)


def library_work(call: LibraryCall, buffers: Mapping[str, Buffer], device: Device | None = None) -> Work:
    """Multiply-adds of matmuls, convolutions and attention, as two operations each; 0 for other calls.

    With a device, operations are counted in those of its matmuls: it says how much dearer the others are.
    """
    work = _library_work(call, buffers)
    percent = 100
    if device is not None and "convolution" in call.target:
        percent = device.convolution_percent
    elif device is not None and ("scaled_dot_product" in call.target or call.target.startswith("optfuse.attention")):
        percent = device.attention_percent
    return replace(work, tensor=work.tensor * percent // 100)


def _library_work(call: LibraryCall, buffers: Mapping[str, Buffer]) -> Work:
    shapes = [tuple(int(s) for s in view.shape) for view in views(call)]
    name = call.target.split(".")[1] if "." in call.target else call.target
    if name in {"mm", "bmm"}:
        return Work(tensor=2 * prod(shapes[0]) * shapes[1][-1])
    if name in {"addmm", "baddbmm"}:
        return Work(tensor=2 * prod(shapes[1]) * shapes[2][-1])
    if name == "convolution":
        out = _output_elements(call, buffers, 0)
        return Work(tensor=2 * out * prod(shapes[1][1:]))
    if name == "convolution_backward":
        wanted = sum(output is not None for output in call.outputs[:2])
        return Work(tensor=2 * wanted * prod(shapes[0]) * prod(shapes[2][1:]))
    if "scaled_dot_product" in name or call.target.startswith("optfuse.attention"):
        backward = "backward" in name
        query, key, value = shapes[1:4] if backward else shapes[:3]
        # scores and output; backward the scores again, and gradients of query, key, weights and value
        width = 3 * key[-1] + 2 * value[-1] if backward else key[-1] + value[-1]
        return Work(tensor=2 * prod(query[:-1]) * key[-2] * width)
    return Work()


def _output_elements(call: LibraryCall, buffers: Mapping[str, Buffer], k: int) -> int:
    name = call.outputs[k]
    return prod(int(s) for s in buffers[name].shape) if name is not None else 0
