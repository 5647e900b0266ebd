"""Facts of torch's operators: schemas, tags and aliasing. The only module here that uses torch's private names."""
# ruff: noqa: SLF001  (schemas, storages and operator classes have no public name)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["FakeTensor", "FakeTensorMode", "HigherOrderOperator", "OpOverload"]


def outside_of_modes() -> Any:
    """A context in which operators are executed, even while a trace is in progress."""
    return _disable_current_modes()


def is_overload(target: object) -> TypeGuard[OpOverload]:
    """Whether an FX node's target is an ATen (or custom) operator."""
    return isinstance(target, OpOverload)


def is_mutable(target: OpOverload) -> bool:
    """Whether the operator writes to some argument."""
    return target._schema.is_mutable


def draws_random(target: OpOverload) -> bool:
    """Whether the operator is marked as drawing from torch's generator."""
    return torch.Tag.nondeterministic_seeded in target.tags


def returns_nothing(target: OpOverload) -> bool:
    """Whether the operator returns nothing and is called for its side effect."""
    return not target._schema.returns


def written_label(target: OpOverload, *, argument: int | None = None, returned: int | None = None) -> str | None:
    """The alias label ("a" of ``Tensor(a!)``) of an argument or a returned item that the operator writes in place."""
    items = target._schema.arguments if argument is not None else target._schema.returns
    position = argument if argument is not None else returned
    if position is None or position >= len(items):
        return None
    info = items[position].alias_info
    return ",".join(sorted(info.before_set)) if info is not None and info.is_write else None


def argument_names(target: OpOverload) -> tuple[str, ...]:
    """The names of all arguments, in the order of the schema."""
    return tuple(argument.name for argument in target._schema.arguments)


def positional(
    target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with those by position that the schema takes by position, and with defaults filled in."""
    arguments = [a for a in target._schema.arguments if not a.kwarg_only]
    last = max((k for k, a in enumerate(arguments) if a.name in kwargs), default=-1)
    rest = dict(kwargs)
    filled = [*args, *(rest.pop(a.name, a.default_value) for a in arguments[len(args) : last + 1])]
    return tuple(filled), rest


def concrete(value: Any) -> bool | int | float | None:
    """The value of a specialised symbolic scalar; None if it is known only when the model runs."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    return value.node.hint


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors (of the meta device, too) lie in one storage."""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """The nodes among the arguments that a call writes in place."""
    target = node.target
    if not is_overload(target) or not is_mutable(target):
        return []
    written: list[fx.Node] = []
    for position, name in enumerate(argument_names(target)):
        if written_label(target, argument=position) is not None:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
            written += [n for n in (given if isinstance(given, tuple | list) else [given]) if isinstance(n, fx.Node)]
    return written


def ranks_of(group: str) -> int:
    """The number of ranks of a process group of this process; 0 if it has none of that name."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0
    from torch._C._distributed_c10d import _resolve_process_group

    try:
        return _resolve_process_group(group).size()
    except (RuntimeError, ValueError, LookupError):  # of a graph that was traced elsewhere
        return 0
