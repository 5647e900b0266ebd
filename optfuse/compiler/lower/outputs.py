"""Write a graph's results: outputs in the layouts that eager execution gives, then the new values of mutated inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from torch import fx
from torch.utils import _pytree as pytree

from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.nodes import LibraryCall, Output, View
from optfuse.compiler.lower.builder import Builder, Spec, size_in
from optfuse.compiler.lower.expressions import DTYPES
from optfuse.compiler.lower.library import plain
from optfuse.compiler.lower.registry import Uniform, Value
from optfuse.compiler.lower.strided_layout import overlaps, same_layout
from optfuse.errors import CaptureError


def write_outputs(
    builder: Builder,
    node: fx.Node,
    values: Mapping[fx.Node, Value],
    inputs: list[Value],
    mutations: tuple[tuple[int, int], ...],
    strides: Mapping[int, tuple[int, ...]],
) -> tuple[Output, ...]:
    """The graph's outputs, copied where their layouts differ from eager's; mutated inputs get their new values last.

    An output or a new value that aliases an input about to be overwritten is copied first.
    """
    returned = pytree.tree_leaves(node.args[0])
    renewed = {position: inputs[target] for position, target in mutations}
    sources = {position: values[returned[position]] for position in renewed}
    overwritten = {t.buffer for k, t in renewed.items() if isinstance(t, View) and sources[k] != t}

    outputs: list[Output] = []
    settled: dict[fx.Node, View] = {}
    for position, source in enumerate(returned):
        if position in renewed:
            continue
        value = values[source] if isinstance(source, fx.Node) else source
        if not isinstance(value, View | Uniform):
            outputs.append(plain(node, value, builder.decisions))
            continue
        if source not in settled:
            settled[source] = _settle(builder, source, value, overwritten, strides.get(position))
        outputs.append(settled[source])

    for position, source in sources.items():
        if isinstance(source, View) and source.buffer in overwritten and source != renewed[position]:
            builder.enter(returned[position])
            sources[position] = builder.copy(source, name=f"{returned[position].name}_copy")
    numbers: list[tuple[View, View]] = []
    for position, target in renewed.items():
        source = sources[position]
        if source != target:
            builder.enter(returned[position])
            if _is_number_elsewhere(builder, target) and _is_number_elsewhere(builder, source):
                numbers.append((target, source))
            else:
                _update(builder, target, source)
    _update_numbers(builder, numbers)
    return tuple(outputs)


def _settle(
    builder: Builder, source: fx.Node, value: View | Uniform, overwritten: set[str], stride: tuple[int, ...] | None
) -> View:
    """An output in its promised layout, and in no buffer that is about to be overwritten."""
    builder.enter(source)
    view = builder.in_memory(value)
    promised = builder.spec.stride if stride is None else tuple(size_in(step, builder.decisions) for step in stride)
    spec = replace(builder.spec, stride=promised)
    if view.buffer not in overwritten and same_layout(view.shape, view.stride, spec.stride):
        return view
    if overlaps(spec.shape, spec.stride):
        return _settle_shared(builder, view, spec, uniform=isinstance(value, Uniform))
    return builder.copy(view, spec, name=f"{source.name}_copy")


def _settle_shared(builder: Builder, view: View, spec: Spec, *, uniform: bool) -> View:
    """A copy of ``view`` whose elements share memory as eager's do: what is repeated is there once.

    Windows of other values than one that overlap otherwise are written out.
    """
    if uniform:
        part = View(view.buffer, (extent(spec.shape, spec.stride),), (0,), view.offset)
        once = replace(spec, shape=part.shape, stride=(1,))
    else:
        part = replace(
            view, shape=tuple(1 if step == 0 else n for n, step in zip(spec.shape, spec.stride, strict=True))
        )
        once = replace(spec, shape=part.shape)
    if overlaps(once.shape, once.stride):
        return builder.copy(view, spec, name=f"{builder.node.name}_copy")
    made = builder.copy(part, once, name=f"{builder.node.name}_copy")
    return View(made.buffer, spec.shape, spec.stride)


def _is_number_elsewhere(builder: Builder, value: Value) -> TypeGuard[View]:
    return isinstance(value, View) and not value.shape and builder.device(value) != builder.main


def _update_numbers(builder: Builder, numbers: Sequence[tuple[View, View]]) -> None:
    """Store new values of numbers in the host's memory, all by one call."""
    if len(numbers) < 2:
        for target, source in numbers:
            _update(builder, target, source)
        return
    targets, sources = zip(*numbers, strict=True)
    origin = replace(builder.origin, target="aten._foreach_copy_.default")
    builder.emit(
        LibraryCall(
            name=builder.fresh_name("numbers_update"),
            target=origin.target,
            args=(targets, sources),
            kwargs=(),
            outputs=(),
            origin=origin,
            mutates=tuple(target.buffer for target in targets),
        )
    )


def _update(builder: Builder, target: Value, source: Value) -> None:
    """Store the new value of an input into the input."""
    assert isinstance(target, View), f"{builder.node.name} renews an input that is no tensor"
    assert isinstance(source, View | Uniform), f"{builder.node.name} renews an input and is no tensor"
    origin = replace(builder.origin, target="aten.copy_.default")
    if overlaps(target.shape, target.stride):
        raise CaptureError(
            f"{target.buffer} is written, and several of its elements lie in one place (strides {target.stride}): "
            "which of their new values stays is not planned; give the model a copy of it"
        )
    if builder.dtype(target) not in DTYPES or builder.device(target) != builder.main:
        builder.emit(
            LibraryCall(
                name=f"{target.buffer}_update",
                target=origin.target,
                args=(target, builder.in_memory(source)),
                kwargs=(),
                outputs=(None,),
                origin=origin,
                mutates=(target.buffer,),
            )
        )
        return
    builder.store_into(target, lambda index: builder.load(source, index), name=f"{target.buffer}_update", origin=origin)
