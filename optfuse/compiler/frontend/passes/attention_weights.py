"""Ask ``nn.MultiheadAttention`` for no weights where nothing reads them: its attention is then one operator."""

from __future__ import annotations

import inspect
import operator

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.evaluate import node_value
from optfuse.compiler.frontend.graph.rewrite import copied

_HALF = frozenset({torch.float16, torch.bfloat16})
_ARGUMENTS = inspect.signature(F.multi_head_attention_forward)


def drop_attention_weights(graph: GraphModule) -> GraphModule:
    """The graph whose multi-head attention returns its weights only where they are read.

    Weights are asked for by default, and are then two products with a softmax between, over a number in memory for each
    pair of rows: ``self.attention(x, x, x)[0]`` reads none of them. In half precision and without masks. Works on
    graphs of torch functions, before autograd.
    """
    if not any(_is_unread(node) for node in graph.graph.nodes):
        return graph
    result = copied(graph)
    for node in [node for node in result.graph.nodes if _is_unread(node)]:
        node.args, node.kwargs = (), {**_arguments(node), "need_weights": False}
    result.recompile()
    return result


def _arguments(node: Node) -> dict[str, object]:
    bound = _ARGUMENTS.bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _is_unread(node: Node) -> bool:
    """Whether a node is multi-head attention that makes weights which nothing reads."""
    if node.target is not F.multi_head_attention_forward:
        return False
    given = _arguments(node)
    if not given["need_weights"] or given["attn_mask"] is not None or given["key_padding_mask"] is not None:
        return False
    results = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    values = [node_value(user) for user in results]
    return len(results) == len(node.users) and all(getattr(value, "dtype", None) in _HALF for value in values)
