"""Lower a node to a call of the ATen operator itself, where there are no loops for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from optfuse.compiler.ir.collectives import NAMESPACE, WAIT, in_use, started_by
from optfuse.compiler.ir.nodes import Arg, LibraryCall, TorchValue, View
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.lower.builder import Builder, dtype_name, size_in
from optfuse.compiler.lower.overloads import (
    OpOverload,
    argument_names,
    concrete,
    draws_random,
    is_overload,
    ranks_of,
    written_label,
)
from optfuse.compiler.lower.registry import Uniform, Value
from optfuse.compiler.symbols.traced_sizes import float_of
from optfuse.errors import CaptureError


def lower_library(builder: Builder, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Emit a LibraryCall for ``node`` and return its value.

    The call's ``outputs`` have an entry for each returned item: a new buffer for a tensor; None for an absent tensor,
    for an item that is no tensor, and for an argument written in place, which is then the value.
    """
    target = node.target
    assert is_overload(target), f"{node.name}: {target} is no ATen overload"
    waits = str(target) == WAIT
    written = _written(builder, target, args, kwargs)
    base = _shared(target, args)
    returned = node.meta.get("val")
    items = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    several = isinstance(returned, tuple | list) and len(items) > 1

    values: list[Value] = []
    outputs: list[str | None] = []
    for k, item in enumerate(items):
        in_place = written.get(written_label(target, returned=k) or "")
        if in_place is None and isinstance(item, torch.Tensor):
            fresh = builder.allocate(
                builder.spec_of(item), name=f"{node.name}_{k}" if several else node.name, base=base
            )
            values.append(fresh)
            outputs.append(fresh.buffer)
        else:
            values.append(plain(node, item, builder.decisions) if in_place is None else in_place)
            outputs.append(None)

    builder.emit(
        LibraryCall(
            name=node.name,
            target=str(target),
            args=tuple(to_arg(builder, a) for a in args),
            kwargs=tuple((key, to_arg(builder, a)) for key, a in kwargs.items()),
            outputs=tuple(outputs),
            origin=builder.origin,
            mutates=_completed(builder, base) if waits else tuple(sorted({view.buffer for view in written.values()})),
            random=is_random(node),
            holds=_in_flight(builder, base) if waits else (),
            **_group(target, args, kwargs),
        )
    )
    return tuple(values) if isinstance(returned, tuple | list) else values[0]


def _shared(target: OpOverload, args: tuple[Any, ...]) -> str | None:
    """The buffer that the results of a view alias; None for an operator that allocates its results."""
    shares = target.is_view or str(target) == WAIT
    return args[0].buffer if shares and args and isinstance(args[0], View) else None


def _in_flight(builder: Builder, result: str | None) -> tuple[str, ...]:
    """What the collective that produces ``result`` reads or writes beside it: it is in use until the wait."""
    start = None if result is None else started_by(builder.ops, builder.buffers, result)
    return () if start is None else tuple(name for name in in_use(start) if name != result)


def _completed(builder: Builder, result: str | None) -> tuple[str, ...]:
    """The buffer whose elements a wait makes valid: what reads it by its own name later comes after the wait."""
    return () if result is None or builder.buffers[result].kind != "temporary" else (result,)


def _group(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The name of a collective's group and the number of its ranks, 0 where this process is in no such group."""
    named = {**dict(zip(argument_names(target), args, strict=False)), **kwargs}
    group = named.get("group_name")
    if target.namespace != NAMESPACE or not isinstance(group, str):
        return {}
    ranks = named.get("group_size")
    return {"group": str(group), "ranks": ranks if isinstance(ranks, int) else ranks_of(group)}


def to_arg(builder: Builder, value: Any) -> Arg:
    """A lowered argument in the form of the loop IR. Uniform tensors are put in memory.

    Raises:
        CaptureError: For an argument without a form in the loop IR, such as a subgraph or a generator.
    """
    match value:
        case View() | Uniform():
            return builder.in_memory(value)
        case None | bool() | int() | float() | str():
            return value
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return plain(builder.node, value, builder.decisions)
        case complex():
            return TorchValue("complex", f"{value.real!r} {value.imag!r}")
        case tuple() | list():
            return tuple(to_arg(builder, v) for v in value)
        case torch.dtype():
            return TorchValue("dtype", dtype_name(value))
        case torch.device():
            return TorchValue("device", str(value))
        case torch.layout():
            return TorchValue("layout", str(value).removeprefix("torch."))
        case torch.memory_format():
            return TorchValue("memory_format", str(value).removeprefix("torch."))
        case _:
            raise CaptureError(
                f"{builder.node.name} ({builder.node.target}): an argument of type {type(value).__name__} cannot be "
                "planned; keep this operator outside of the optimized model"
            )


def plain(node: fx.Node, value: object, decisions: Decisions | None = None) -> bool | int | float | None:
    """A traced value that is no tensor, as a Python scalar.

    Raises:
        CaptureError: If it is known only when the model runs (``item()``, ``nonzero``).
    """
    match value:
        case None | bool() | int() | float():
            return value
        case torch.SymInt() if decisions is not None:
            return size_in(value, decisions)
        case torch.SymFloat() if decisions is not None:
            return float_of(value, decisions)
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            if decisions is not None:
                raise CaptureError(f"{node.name}: the number {value} depends on sizes")
            known = concrete(value)
            if known is not None:
                return known
        case _:
            pass
    raise CaptureError(
        f"{node.name} ({node.target}): its value is known only when the model runs; take it out of the optimized model"
    )


def is_random(node: fx.Node) -> bool:
    """Whether the op draws from torch's generator. Attention without dropout does not, although it is tagged so."""
    target = node.target
    if not is_overload(target) or not draws_random(target):
        return False
    names = argument_names(target)
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    given = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(given != 0.0)


def _written(builder: Builder, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, View]:
    """The arguments that the call writes, by alias label; further items of a list have a number appended."""
    written: dict[str, View] = {}
    for position, name in enumerate(argument_names(target)):
        label = written_label(target, argument=position)
        if label is None:
            continue
        value = args[position] if position < len(args) else kwargs.get(name)
        for k, item in enumerate(value if isinstance(value, tuple | list) else (value,)):
            if isinstance(item, View | Uniform):
                written[label if k == 0 else f"{label}{k}"] = builder.in_memory(item)
    return written
