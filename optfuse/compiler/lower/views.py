"""Views are no ops: a view of a strided window is another strided window.

ATen itself computes every view: the op runs on a tensor of torch's meta device with the window's shape, strides and
offset, and its result is the new window. So no view needs a rule, and none can differ from eager. Reshapes of sizes
that change have one, since torch takes minutes for those of long formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from optfuse.compiler.ir.buffer_layout import extent, row_major
from optfuse.compiler.ir.nodes import View
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.lower.builder import Builder, Spec, size_in
from optfuse.compiler.lower.overloads import FakeTensorMode, is_overload, shares_storage
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.reshaped_windows import reshaped_strides
from optfuse.compiler.symbols.traced_sizes import traced_size
from optfuse.errors import CaptureError

aten = torch.ops.aten

#: Ops that may return new tensors by their schema, but are views for all who only read the result.
_AS_VIEW = {"aten._unsafe_view.default": aten.view.default, "aten.reshape.default": aten.view.default}


#: How torch says that strides do not allow a view.
_NO_VIEW = ("view size is not compatible", "Cannot view a tensor")


def is_view(target: object) -> bool:
    """Whether an FX node's target is an overload that returns a strided window of its first argument."""
    return is_overload(target) and (target.is_view or str(target) in _AS_VIEW)


def lower_view(builder: Builder, node: fx.Node, source: Value, *args: Any, **kwargs: Any) -> Value:
    """The value of a view of ``source``; a copy where no window can express it (a reshape across strides).

    Raises:
        Declined: If the view reinterprets the dtype, takes further tensors, or leaves the buffer.
    """
    specs = builder.specs
    if not isinstance(source, View | Uniform) or any(isinstance(a, View | Uniform) for a in (*args, *kwargs.values())):
        raise Declined("not a view of one tensor")
    if any(spec.dtype != builder.dtype(source) for spec in specs):
        raise Declined("the view reinterprets the elements")
    several = not isinstance(node.meta["val"], torch.Tensor)
    if isinstance(source, Uniform):
        if node.target is aten.as_strided.default:
            _require_computed(builder, node, *args, **kwargs)
        views: list[Value] = [replace(source, shape=s.shape, origin=builder.origin, constant=None) for s in specs]
        return tuple(views) if several else views[0]

    target = _AS_VIEW.get(str(node.target), node.target)
    if target is aten.view.default and _has_formulas(source, builder.spec):
        return _reshaped(builder, source, builder.spec)
    window = _meta_window(builder, source)
    args, kwargs = fx.node.map_aggregate((args, kwargs), traced_size)
    assert is_overload(target), f"{node.name} is no ATen overload"
    if target is aten.as_strided.default:
        args, kwargs = _relative_offset(builder, node, source, args, kwargs)
        _require_inside(builder, source, *args, **kwargs)
    try:
        result = target(window, *args, **kwargs)
    except (RuntimeError, ValueError) as error:
        if not any(text in str(error) for text in _NO_VIEW):
            raise
        return reshape_copy(builder, source, builder.spec)
    results = result if several else [result]
    if any(not shares_storage(r, window) for r in results):
        spec = builder.spec
        return builder.copy(source, spec) if spec.shape == source.shape else reshape_copy(builder, source, spec)

    def sizes(found: Sequence[Any]) -> tuple[int, ...]:
        return tuple(size_in(n, builder.decisions) for n in found)

    windows = tuple(
        View(source.buffer, sizes(r.shape), sizes(r.stride()), *sizes([r.storage_offset()])) for r in results
    )
    for view, spec in zip(windows, specs, strict=True):
        assert view.shape == spec.shape, f"{node.name}: a window of {view.shape} where eager has {spec.shape}"
    return windows if several else windows[0]


def _has_formulas(source: View, spec: Spec) -> bool:
    return any(isinstance(n, Size) for n in (*source.shape, *source.stride, *spec.shape))


def _reshaped(builder: Builder, source: View, spec: Spec) -> View:
    """``source`` in another shape; a copy where no strides have its elements in their order."""
    if 0 in spec.shape:
        return View(source.buffer, spec.shape, row_major(spec.shape), source.offset)
    strides = reshaped_strides(source.shape, source.stride, spec.shape)
    if strides is None:
        return reshape_copy(builder, source, spec)
    return View(source.buffer, spec.shape, strides, source.offset)


def reshape_copy(builder: Builder, source: View, spec: Spec) -> View:
    """Emit a nest that copies ``source`` in its logical order into a new contiguous tensor of another shape."""
    out = builder.allocate(replace(spec, stride=row_major(spec.shape)))
    if spec.device != builder.main:
        builder.call("aten.reshape.default", (source, spec.shape), out, builder.origin)
        return out
    builder.store_into(View(out.buffer, source.shape, row_major(source.shape)), lambda i: builder.load(source, i))
    return out


@lowers("aten.as_strided_scatter.default")
def refuse_scatter(builder: Builder, *_: Any, **__: Any) -> Value:
    """None: what decompositions leave of these scatters depends on the order of writes, and on places of memory.

    Raises:
        CaptureError: Always.
    """
    raise CaptureError(
        f"{builder.node.name}: several elements are written to one place of a window that overlaps itself, which "
        "is not planned; give the model a copy of the tensor, or write to it through windows that do not overlap"
    )


def _require_inside(
    builder: Builder, source: View, shape: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> None:
    """as_strided may reach beyond the tensor that it is given, to the rest of an input's storage.

    What a plan computes has no such rest.
    """
    buffer = builder.buffers[source.buffer]
    shape, stride = ([size_in(n, builder.decisions) for n in numbers] for numbers in (shape, stride))
    first = source.offset if storage_offset is None else size_in(storage_offset, builder.decisions)
    if 0 in shape:
        return
    if buffer.kind == "temporary":
        _require_elements(builder.node.name, (shape, stride, first), (buffer.shape, buffer.stride))
    elif first < 0 or first + extent(shape, stride) > extent(buffer.shape, buffer.stride):
        raise Declined("the window leaves the buffer")


def _require_computed(
    builder: Builder, node: fx.Node, shape: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> None:
    """A window of a uniform tensor is uniform if it has none but elements that were computed.

    What is copied into a window of an input lies in memory beside the rest of that input.
    """
    source = base = node.args[0]
    while is_view(base.target):
        base = base.args[0]
    value = base.meta["val"]
    if not isinstance(value, torch.Tensor):
        return
    first = source.meta["val"].storage_offset() if storage_offset is None else storage_offset
    numbers = (shape, stride, value.shape, value.stride(), (first, value.storage_offset()))
    shape, stride, sizes, steps, places = (tuple(size_in(n, builder.decisions) for n in each) for each in numbers)
    if 0 not in shape:
        _require_elements(node.name, (shape, stride, places[0] - places[1]), (sizes, steps))


def _require_elements(
    name: str, window: tuple[Sequence[int], Sequence[int], int], buffer: tuple[Sequence[int], Sequence[int]]
) -> None:
    """Raise a CaptureError if a window (shape, strides, first place) has places that are no element of a tensor."""
    shape, stride, first = window
    length = extent(*buffer)
    inside = first >= 0 and first + extent(shape, stride) <= length
    if inside and (length <= math.prod(buffer[0]) or _has_elements_alone(window, buffer)):
        return
    raise CaptureError(
        f"{name}: as_strided reaches beyond the tensor that it is given, which has no memory but for its elements in a "
        "plan; take the window of the tensor that owns the memory"
    )


def _has_elements_alone(
    window: tuple[Sequence[int], Sequence[int], int], buffer: tuple[Sequence[int], Sequence[int]]
) -> bool:
    """Whether a window of a tensor with gaps goes along its dimensions only, and stays inside of each."""
    shape, stride, place = window
    moves = [(step, n - 1) for n, step in zip(shape, stride, strict=True) if n > 1 and step]
    sizes = {step: n for n, step in zip(*buffer, strict=True) if n > 1 and step}
    for step in sorted(sizes, reverse=True):
        index, place = divmod(place, step)
        if index + sum(n for other, n in moves if other == step) >= sizes[step]:
            return False
    return not place and {step for step, _ in moves} <= set(sizes)


def _meta_window(builder: Builder, view: View) -> torch.Tensor:
    buffer = builder.buffers[view.buffer]
    elements = max(extent(buffer.shape, buffer.stride), view.offset)
    numbers = [*view.shape, *view.stride, view.offset, elements]
    symbolic = next((traced for n in map(traced_size, numbers) if isinstance(traced := n, torch.SymInt)), None)
    with nullcontext() if symbolic is None else FakeTensorMode(shape_env=symbolic.node.shape_env):
        storage = torch.empty(traced_size(elements), dtype=getattr(torch, buffer.dtype), device="meta")
        shape, stride = [*map(traced_size, view.shape)], [*map(traced_size, view.stride)]
        return storage.as_strided(shape, stride, traced_size(view.offset))


def _relative_offset(
    builder: Builder, node: fx.Node, source: View, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """as_strided counts from the start of the storage; a buffer's windows count from the buffer's first element.

    What eager computes may have memory before that, too: a copy with a slice replaced is one of the whole storage.
    """
    base = builder.storage_offset(source.buffer)
    if builder.buffers[source.buffer].kind == "temporary":
        base = size_in(node.args[0].meta["val"].storage_offset(), builder.decisions) - source.offset
    if len(args) > 2 and args[2] is not None:
        return (*args[:2], size_in(args[2], builder.decisions) - base), kwargs
    if kwargs.get("storage_offset") is not None:
        return args, {**kwargs, "storage_offset": size_in(kwargs["storage_offset"], builder.decisions) - base}
    return args, kwargs
