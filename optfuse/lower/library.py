"""What we generate no loops for is a call of the ATen operator itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from optfuse.errors import CaptureError
from optfuse.ir.nodes import Arg, LibraryCall, TorchValue, View
from optfuse.lower.builder import Builder, dtype_name, spec_of
from optfuse.lower.registry import Uniform, Value


def lower_library(builder: Builder, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Emit a LibraryCall for ``node`` and return its value.

    The call's ``outputs`` have an entry a returned item: a new buffer for a tensor; None for an absent tensor, for an
    item that is no tensor, and for an argument written in place (that argument is then the value).
    """
    target = node.target
    assert isinstance(target, torch._ops.OpOverload), f"{node.name}: {target} is no ATen overload"
    written = _written(builder, target, args, kwargs)
    returned = node.meta.get("val")
    items = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    several = isinstance(returned, tuple | list) and len(items) > 1

    values: list[Value] = []
    outputs: list[str | None] = []
    for k, item in enumerate(items):
        in_place = written.get(_write_label(target._schema.returns[k])) if k < len(target._schema.returns) else None
        if in_place is None and isinstance(item, torch.Tensor):
            fresh = builder.allocate(spec_of(item), name=f"{node.name}_{k}" if several else node.name)
            values.append(fresh)
            outputs.append(fresh.buffer)
        else:
            values.append(plain(node, item) if in_place is None else in_place)
            outputs.append(None)

    builder.emit(
        LibraryCall(
            name=node.name,
            target=str(target),
            args=tuple(to_arg(builder, a) for a in args),
            kwargs=tuple((key, to_arg(builder, a)) for key, a in kwargs.items()),
            outputs=tuple(outputs),
            origin=builder.origin,
            mutates=tuple(sorted({view.buffer for view in written.values()})),
            random=is_random(node),
        )
    )
    return tuple(values) if isinstance(returned, tuple | list) else values[0]


def to_arg(builder: Builder, value: Any) -> Arg:
    """A lowered argument as the loop IR writes it. Uniform tensors are put in memory.

    Raises
    ------
    CaptureError
        For what has no form in the loop IR: complex scalars, subgraphs, generators.
    """
    match value:
        case View() | Uniform():
            return builder.in_memory(value)
        case None | bool() | int() | float() | str():
            return value
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


def plain(node: fx.Node, value: Any) -> Value:
    """A traced value that is no tensor, as a Python scalar.

    Raises
    ------
    CaptureError
        If it is known only when the model runs (``item()``, ``nonzero``).
    """
    match value:
        case None | bool() | int() | float():
            return value
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            concrete = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else None
            hint = value.node.hint if concrete is None else concrete
            if hint is not None:
                return hint
    raise CaptureError(
        f"{node.name} ({node.target}): its value is known only when the model runs; take it out of the optimized model"
    )


def is_random(node: fx.Node) -> bool:
    """Whether the op draws from torch's generator. Attention without dropout does not, whatever its tag says."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = [argument.name for argument in target._schema.arguments]
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    given = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return given != 0.0


def _written(
    builder: Builder, target: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str | None, View]:
    """The arguments that the call writes, by their label in the schema ("a" of ``Tensor(a!)``)."""
    written: dict[str | None, View] = {}
    for position, argument in enumerate(target._schema.arguments):
        label = _write_label(argument)
        if label is None:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        several = value if isinstance(value, tuple | list) else (value,)
        for k, item in enumerate(several):
            if isinstance(item, View | Uniform):
                written[label if k == 0 else f"{label}{k}"] = builder.in_memory(item)
    return written


def _write_label(argument: torch._C.Argument) -> str | None:
    info = argument.alias_info
    if info is None or not info.is_write:
        return None
    return ",".join(sorted(info.before_set))
