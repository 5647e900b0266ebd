"""Bytes and arithmetic operations of an op, from its loops or, for a library call, from its arguments' shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from optfuse.compiler.analysis.access import Access
from optfuse.compiler.codegen.product_tiles import dot_tile
from optfuse.compiler.ir.buffer_layout import span
from optfuse.compiler.ir.nodes import Buffer, Call, LibraryCall, LoopNest, View, views
from optfuse.compiler.ir.scalar_functions import FREE, FUNCTIONS
from optfuse.compiler.ir.sizes import hint
from optfuse.compiler.ir.traversal import dot_in, operands, stored, subexpressions
from optfuse.problem.cost import GOP, MIB
from optfuse.problem.instance import Device, Work

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4,
    "float64": 8, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "complex32": 4,
}  # fmt: skip

#: Issue slots of a special function relative to one exp2 on the special-function unit.
SPECIAL_WEIGHT = {"erf": 5, "erfc": 6, "erfinv": 6, "tanh": 3, "lgamma": 12, "pow": 4, "atan2": 5, "sin": 4, "cos": 4}


LibraryKind = Literal["matmul", "attention", "convolution", "depthwise", "other"]

#: Tiles of attention kernels: rows of queries and of keys, and elements of a head.
ATTENTION_ROWS, ATTENTION_WIDTH = 128, 64
#: The fewest rows of a tile of queries that share a head of keys, of attention over a cache.
QUERY_ROWS = 16
#: Convolution kernels process this many input channels at a time.
CHANNELS = 8

#: The position of ``is_causal`` among an attention operator's arguments.
CAUSAL_POSITION = {
    "scaled_dot_product_attention": 5,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
    "attention": 4,
    "attention_dropout": 5,
    "attention_cached": 4,
    "attention_backward": 10,
}


#: Operators that update parts of their first argument in place: they move the bytes that they write, not the whole.
_UPDATES = frozenset(
    "copy_ index_copy_ index_put_ index_add_ index_fill_ scatter_ scatter_add_ scatter_reduce_ masked_scatter_".split()
)

#: Operations in float32 that take as long as folding an element, where that is more than one.
_FOLD_OPERATIONS = {"welford": 3, "argmax": 40, "argmin": 40}
#: Kernels of a library's choice or sort of short rows, in units of one that starts and does no more (copies are less).
_KERNELS = {"topk": 2, "sort": 2, "kthvalue": 1, "median": 1}
#: Operations in float32 that take as long as an element of theirs: one H200 needs 42 ps (128 to 1024 elements a row).
_CHOICE_OPERATIONS = 1500


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of memory that a buffer takes, padding included; 0 when it is empty."""
    return hint(span(buffer)) * ITEM_BYTES.get(buffer.dtype, 8)


def touched_bytes(access: Access, sizes: Sequence[int], buffer: Buffer) -> int:
    """Bytes of the distinct elements that an access touches in a nest of these ``sizes``, at most the whole buffer."""
    item = ITEM_BYTES.get(buffer.dtype, 8)
    if access.coefficients is None or access.indirect:
        elements = hint(prod(sizes))
    else:
        elements = hint(prod(s for s, c in zip(sizes, access.coefficients, strict=True) if c != 0)) * access.terms
    return min(elements * item, buffer_bytes(buffer))


def nest_work(nest: LoopNest, tensor: int = 0) -> Work:
    """The arithmetic of a nest: its distinct scalar functions and reductions, times its points; ``tensor`` is given.

    A scan combines each point about twice: within a thread, and with what threads before it have.
    """
    points = hint(prod((*nest.sizes, *nest.rsizes)))
    fp32 = sum(_FOLD_OPERATIONS.get(r.kind, 1) for r in nest.reductions)
    special = 0
    for times, roots in ((1, operands(nest) + stored(nest)), (2, nest.scan.combine if nest.scan else ())):
        for expr in set(subexpressions(roots)):
            if isinstance(expr, Call) and FUNCTIONS[expr.function].special:
                special += times * SPECIAL_WEIGHT.get(expr.function, 1)
            elif isinstance(expr, Call) and expr.function not in FREE:
                fp32 += times * (16 if FUNCTIONS[expr.function].rule == "random" else 1)
    added = points * sum(store.adds for store in nest.stores)
    return Work(fp32=fp32 * points, special=special * points, tensor=tensor, atomic=added)


@dataclass(frozen=True, slots=True)
class DotTime:
    """Picoseconds of a product of matrices in a nest: its whole tiles on tensor cores, its factors and result in
    memory, and both as a kernel of our own takes them (``total``), without the launch.
    """

    compute: int
    memory: int
    total: int


def dot_time(nest: LoopNest, buffers: Mapping[str, Buffer], device: Device) -> DotTime:
    """The time of the product in a nest.

    Kernels of our own hide less of the shorter of compute and memory behind the longer, and reach less of the cores'
    rate, than the library's (``Device.dot_percent``). What consumers read is not all hidden either: where the cores
    decide, one more tensor of the result's size is charged.
    """
    dot = dot_in(nest)
    assert dot is not None, "the nest computes a product"
    rows, columns = map(hint, nest.sizes)
    tile = dot_tile(rows, columns, dot.terms)
    operations = 2 * _up(rows, tile.rows) * _up(columns, tile.columns) * _up(dot.terms, tile.terms)
    programs = -(-rows // tile.rows) * -(-columns // tile.columns)
    operations = operations * max(device.saturating_programs, programs) // programs
    compute = operations * device.tensor_ps_per_gop // GOP * device.dot_percent // 100
    item = ITEM_BYTES[dot.left.dtype]
    elements = rows * columns + (rows + columns) * dot.terms
    memory, more = (n * item * device.dram_ps_per_mib // MIB for n in (elements, elements + rows * columns))
    exposed = min(compute, more) * (100 - device.dot_overlap_percent) // 100
    return DotTime(compute, memory, device.dot_start_ps + max(compute, memory) + exposed)


def updated_bytes(call: LibraryCall, buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """For a partial update of its first argument in place: that buffer and the bytes written. Otherwise empty."""
    given = views(call)
    if not call.mutates or not given or given[0].buffer not in call.mutates or _base_name(call) not in _UPDATES:
        return {}
    base, *rest = given
    elements = max((hint(prod(view.shape)) for view in rest), default=0)
    return {base.buffer: min(elements, hint(prod(base.shape))) * ITEM_BYTES.get(buffers[base.buffer].dtype, 8)}


def library_work(
    call: LibraryCall, buffers: Mapping[str, Buffer], device: Device | None = None, moved: int = 0
) -> Work:
    """The tensor-core operations (two for a multiply-add) and atomic additions of a call; others count nothing.

    With a device, a call that moves ``moved`` bytes is stated as the operations that take as long as it does: whole
    tiles, the device's percentage for its kind, the time to start, and memory time that arithmetic does not hide.
    """
    kind, operations = library_operations(call, buffers)
    kernels, chosen = choice(call)
    atomic = hint(prod(views(call)[0].shape)) if _base_name(call) == "sum_rows" else 0
    if device is None:
        return Work(tensor=operations, atomic=atomic, fp32=chosen)
    percents: dict[LibraryKind, int] = {
        "attention": device.attention_percent,
        "convolution": device.convolution_percent,
        "depthwise": device.depthwise_percent,
    }
    scaled = done_operations(call, kind, operations, buffers, device) * percents.get(kind, 100) // 100
    if not device.library_start_ps and device.library_overlap_percent == 100:
        return Work(tensor=scaled, atomic=atomic, fp32=chosen)
    compute = scaled * device.tensor_ps_per_gop + atomic * device.atomic_ps_per_gop + chosen * device.fp32_ps_per_gop
    compute //= GOP
    memory = moved * device.dram_ps_per_mib // MIB
    exposed = min(compute, memory) * (100 - device.library_overlap_percent) // 100
    more = (kernels - 1) * (device.launch_ps + device.library_start_ps)
    takes = device.library_start_ps + more + max(compute, memory) + exposed
    return Work(tensor=takes * GOP // max(1, device.tensor_ps_per_gop))


def done_operations(
    call: LibraryCall, kind: LibraryKind, needed: int, buffers: Mapping[str, Buffer], device: Device
) -> int:
    """The operations of a half type that take as long as a call: in whole tiles, and those of float32 as so many more.

    ``kind`` and ``needed`` are those of ``library_operations``.
    """
    done = needed * tile_percent(call, kind) // 100
    if needed and kind != "depthwise" and buffers[_operands(call)[0].buffer].dtype == "float32":
        return done * device.float32_percent // 100
    return done


def choice(call: LibraryCall) -> tuple[int, int]:
    """The kernels of a call, and float32 operations; of a choice from rows or their sort, so many as take as long."""
    name = _base_name(call)
    if name == "exact_bmm":
        left, right = _operand_shapes(call)
        return 1, 2 * prod(left) * right[-1]
    if name not in _KERNELS:
        return 1, 0
    one = name == "topk" and len(call.args) > 1 and call.args[1] == 1
    return 1 if one else _KERNELS[name], _CHOICE_OPERATIONS * hint(prod(views(call)[0].shape))


def library_operations(call: LibraryCall, buffers: Mapping[str, Buffer]) -> tuple[LibraryKind, int]:
    """The kind of a call, and the operations that its result needs."""
    shapes = _operand_shapes(call)
    name = _base_name(call)
    windows: Any
    groups: Any
    if name in {"mm", "bmm"}:
        return "matmul", 2 * prod(shapes[0]) * shapes[1][-1]
    if name in {"_grouped_mm", "grouped_products"}:
        # rows of A in groups, each by a matrix of its own, or columns in groups
        return "matmul", 2 * prod(shapes[0]) * shapes[1][-1]
    if name == "joint_products":
        return "matmul", sum(2 * prod(shapes[0]) * shape[0] for shape in shapes[1:] if len(shape) == 2)
    if name in {"addmm", "baddbmm", "addmm_activation"}:
        return "matmul", 2 * prod(shapes[1]) * shapes[2][-1]
    if name in {"convolution", "convolution_relu"}:
        out = _output_elements(call, buffers, 0)
        return _convolution_kind(shapes[1]), 2 * out * prod(shapes[1][1:])
    if name in {"depthwise", "depthwise_images", "depthwise_weights"}:
        windows = call.args[3 if name == "depthwise_images" else 2]
        result = _output_elements(call, buffers, 0) if name == "depthwise" else prod(shapes[0])
        return "depthwise", 2 * result * prod(windows)
    if name == "convolution_weights":
        windows, groups = call.args[2], call.args[6]
        return "convolution", 2 * prod(shapes[0]) * prod(windows) * shapes[1][1] // groups
    if name == "convolution_backward":
        wanted = sum(output is not None for output in call.outputs[:2])
        return _convolution_kind(shapes[2]), 2 * wanted * prod(shapes[0]) * prod(shapes[2][1:])
    if _is_attention(call):
        backward = "backward" in name
        query, key, value = shapes[1:4] if backward else shapes[:3]
        # scores and output; backward the scores again, and gradients of query, key, weights and value
        width = 3 * key[-1] + 2 * value[-1] if backward else key[-1] + value[-1]
        products = 2 * prod(query[:-1]) * key[-2] * width
        return "attention", products // 2 if _is_causal(call) else products
    return "other", 0


def tile_percent(call: LibraryCall, kind: LibraryKind) -> int:
    """The operations of a call's kernel in percent of those that its result needs: tiles are not always full."""
    shapes = _operand_shapes(call)
    if kind == "attention" and _base_name(call) == "attention_cached":
        query, key = shapes[:2]
        rows = query[1] // key[1] * query[2]
        return 100 * _up(rows, QUERY_ROWS) // max(1, rows)
    if kind == "attention":
        backward = "backward" in _base_name(call)
        query, key = shapes[1:3] if backward else shapes[:2]
        full = _up(query[-2], ATTENTION_ROWS) * _up(key[-2], ATTENTION_ROWS) * _up(key[-1], ATTENTION_WIDTH)
        return 100 * full // max(1, query[-2] * key[-2] * key[-1])
    if kind == "convolution":
        weight = shapes[2] if _base_name(call) == "convolution_backward" else shapes[1]
        return 100 * _up(weight[1], CHANNELS) // max(1, weight[1])
    return 100


def _operand_shapes(call: LibraryCall) -> list[tuple[int, ...]]:
    """The shapes of a call's operands."""
    return [tuple(map(hint, view.shape)) for view in _operands(call)]


def _operands(call: LibraryCall) -> list[View]:
    """A call's tensors, without the state of a random generator that a wrapper takes before them."""
    given = views(call)
    return list(given[1:] if "run_with_rng_state" in call.target else given)


def _up(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def _base_name(call: LibraryCall) -> str:
    return call.target.split(".")[1] if "." in call.target else call.target


def _is_attention(call: LibraryCall) -> bool:
    return "scaled_dot_product" in call.target or call.target.startswith("optfuse.attention")


def _is_causal(call: LibraryCall) -> bool:
    """Whether an attention call masks later keys, by its argument ``is_causal``."""
    named = dict(call.kwargs).get("is_causal")
    if named is not None:
        return named is True
    position = CAUSAL_POSITION.get(_base_name(call))
    return position is not None and len(call.args) > position and call.args[position] is True


def _convolution_kind(weight: tuple[int, ...]) -> LibraryKind:
    """Depthwise convolutions, one channel a group, run on other units than dense ones."""
    return "depthwise" if weight[1] == 1 and weight[0] > 1 else "convolution"


def _output_elements(call: LibraryCall, buffers: Mapping[str, Buffer], k: int) -> int:
    name = call.outputs[k]
    return hint(prod(buffers[name].shape)) if name is not None else 0
