"""Tensors of one number in the host's memory that operators take for numbers, as ``torch.zeros(2, n)`` does.

Dynamo keeps such a number's symbol at the fake tensor, where an operator finds it: no node yields it. AOTAutograd has
other fake tensors, for which it would be a value that only a run tells. A node that takes the item says it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.torch_internals.torch_bridge import DEPENDS_ON_DATA, outside_of_modes
from optfuse.compiler.frontend.torch_internals.torch_sizes import (
    hint_of,
    is_read_as_number,
    is_symbolic,
    symbols_of,
    unbacked_symbols,
)


def with_items(graph: GraphModule) -> GraphModule:
    """The graph of torch.compile's with the items of arguments whose numbers operators ask for.

    Before: ``zeros = torch.zeros(2, n)``.
    After: ``item = n.item(); zeros = torch.zeros(2, item)``.
    """
    if not any(map(_has_number, graph.graph.find_nodes(op="placeholder"))):
        return graph
    found = copied(graph)
    for placeholder in filter(_has_number, found.graph.find_nodes(op="placeholder")):
        readers = [user for user in placeholder.users if user.target != "item" and _reads_number(user, placeholder)]
        if readers:
            replace = partial(_replaced, old=placeholder, new=_item(placeholder))
            for user in readers:
                user.args, user.kwargs = map_aggregate((tuple(user.args), dict(user.kwargs)), replace)
    found.recompile()
    return found


def _replaced(value: Any, old: Node, new: Any) -> Any:
    return new if value is old else value


def _item(placeholder: Node) -> Any:
    """A node that takes the item, or the number itself, where torch.compile guards that it is this one."""
    number = placeholder.meta["example_value"].item_memo
    if not symbols_of(number):
        return number.node.hint
    with placeholder.graph.inserting_after(placeholder):
        item = placeholder.graph.call_method("item", (placeholder,))
    item.meta["example_value"] = number
    return item


def _has_number(placeholder: Node) -> bool:
    """Whether torch has a symbol for the element of an argument."""
    value = placeholder.meta.get("example_value")
    number = value.item_memo if is_read_as_number(value) else None
    return is_symbolic(number) and not unbacked_symbols(number)


def _reads_number(user: Node, placeholder: Node) -> bool:
    """Whether a node asks for the element: it fails on a tensor whose element is not known, and else does not."""
    if user.op not in {"call_function", "call_method"}:
        return False
    with outside_of_modes(), FakeTensorMode():
        unknown = torch.empty_strided((), (), dtype=placeholder.meta["example_value"].dtype)

        def value(argument: Any) -> Any:
            if argument is placeholder:
                return unknown
            known = argument.meta.get("example_value") if isinstance(argument, Node) else argument
            if isinstance(known, torch.Tensor):
                shape, stride = (tuple(map(hint_of, numbers)) for numbers in (known.shape, known.stride()))
                return torch.empty_strided(shape, stride, dtype=known.dtype, device=known.device)
            return known.node.hint if is_symbolic(known) else known

        args, kwargs = map_aggregate((tuple(user.args), dict(user.kwargs)), value)
        called: Any = user.target
        try:
            getattr(args[0], called)(*args[1:], **kwargs) if user.op == "call_method" else called(*args, **kwargs)
        except DEPENDS_ON_DATA:
            return True
        except Exception:  # the trial says nothing then, and the node stays as it is
            return False
    return False
