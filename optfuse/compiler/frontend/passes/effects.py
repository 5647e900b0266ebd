"""Call operators with side effects (checks of linear algebra) directly, without the tokens that order them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from optfuse.compiler.frontend.torch_internals.torch_bridge import returns_of


def drop_effect_tokens(graph: GraphModule) -> frozenset[Node]:
    """Call effectful operators directly, in place; the placeholders of tokens are returned, and nothing uses them.

    Before: ``t = with_effects(token, _linalg_check_errors, info); return (getitem(t, 0), y)``. After:
    ``_linalg_check_errors(info); return (None, y)``. Torch itself passes None for a token and ignores those returned.
    """
    tokens: set[Node] = set()
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, operator, *args = node.args
        tokens.add(token)
        count = returns_of(operator)
        with graph.graph.inserting_before(node):
            call = graph.graph.call_function(operator, tuple(args), dict(node.kwargs))
        results = tuple(node.meta["val"][1:])
        call.meta = {**node.meta, "val": results if count > 1 else results[0] if count else None}
        for user in list(node.users):
            position: Any = user.args[1]
            if position > 0 and count > 1:
                user.args = (call, position - 1)
                continue
            user.replace_all_uses_with(call if position > 0 else token)
            graph.graph.erase_node(user)
        graph.graph.erase_node(node)
    if tokens:
        output = graph.graph.output_node()
        output.args = map_arg(output.args, lambda value: None if value in tokens else value)
        graph.recompile()
    return frozenset(token for token in tokens if token.op == "placeholder")
