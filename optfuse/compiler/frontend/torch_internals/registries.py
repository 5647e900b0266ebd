"""Look up by name what torch has registered in this process: pytree classes and operators. Nothing is imported.

Beside ``torch_bridge`` the one module that touches private interfaces of torch, for files that name such things.
"""
# ruff: noqa: SLF001  (registries and schemas have no public name)

from __future__ import annotations

import torch
from torch.utils import _pytree

from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload, TreeSpec


def registered_name(kind: type) -> str | None:
    """The name under which a class is registered with pytree; None without one.

    None too for a class with a text form of its own, whose reader could do anything. Named tuples have pytree's.
    """
    found = _pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    if found is None or found.serialized_type_name == _pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        return None
    own_form = found.to_dumpable_context is not None or found.from_dumpable_context is not None
    return None if own_form and not _pytree.is_namedtuple_class(kind) else found.serialized_type_name


def registered_class(name: str) -> type | None:
    """The class that ``registered_name`` names; None if this process knows none. Nothing is imported."""
    found = _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    return found if found is not None and registered_name(found) == name else None


def leaf_spec() -> TreeSpec:
    """The structure of a single value."""
    return _pytree.tree_structure(0)


def checked_overload(target: str) -> OpOverload | None:
    """The operator of a name such as "aten.mm.default"; None if torch's dispatcher has none of this name.

    Asks the dispatcher first: as attributes of ``torch.ops`` there are also functions that import modules and open
    libraries, and TorchScript's operators, some of which write files.
    """
    if not target.isascii() or target.count(".") != 2 or not all(part.isidentifier() for part in target.split(".")):
        return None
    namespace, name, overload = target.split(".")
    try:
        torch._C._dispatch_find_schema_or_throw(f"{namespace}::{name}", "" if overload == "default" else overload)
    except RuntimeError:
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return found if isinstance(found, OpOverload) else None


def text_arguments(overload: OpOverload) -> tuple[str, ...]:
    """The names of an operator's arguments that take text."""
    return tuple(a.name for a in overload._schema.arguments if "str" in str(a.type))
