"""Simplify attention before dispatch: drop masks that allow everything, find causal ones, make a call one operator."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.evaluate import Evaluator, constant_nodes
from optfuse.compiler.frontend.graph.index_values import Patterns, pattern_meaning
from optfuse.compiler.frontend.graph.rewrite import copied, stays
from optfuse.compiler.frontend.operators.attention import attend
from optfuse.compiler.frontend.torch_internals.torch_bridge import is_mutating, operator_name, shares_memory

_ATTENTION = frozenset({F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default})
_MASK = 3  # position among (query, key, value, attn_mask, dropout_p, is_causal)
_CAUSAL = 5


def simplify_attention_masks(graph: GraphModule, known: Mapping[str, torch.Tensor]) -> GraphModule:
    """The graph without all-true masks of ``scaled_dot_product_attention``; lower-triangular ones become causal.

    Before: ``scaled_dot_product_attention(q, k, v, ones(n, n))``. After: ``scaled_dot_product_attention(q, k, v)``.
    Masks are constants, or of changing sizes and known by the positions of their elements (``index_values``).
    With a mask fewer fused kernels apply, and some attention would come apart. Works on graphs before autograd, of
    torch functions or of ATen operators. ``known``: constants by attribute or placeholder name.
    """
    calls = [node for node in graph.graph.nodes if node.target in _ATTENTION and isinstance(_mask(node), Node)]
    if not calls:
        return graph
    graph = copied(graph)
    constants = constant_nodes(graph, known)
    evaluator, patterns = Evaluator(constants, known), Patterns(graph)
    meaning: dict[Node, str | None] = {}
    for node in graph.graph.nodes:
        mask = _mask(node) if node.target in _ATTENTION else None
        if not isinstance(mask, Node):
            continue
        if mask not in meaning:
            known_here = mask in constants
            meaning[mask] = mask_meaning(evaluator.value(mask)) if known_here else pattern_meaning(patterns.of(mask))
        if meaning[mask] is not None:
            _set_mask(node, causal=meaning[mask] == "causal")
    graph.graph.eliminate_dead_code(is_impure_node=stays)
    graph.recompile()
    return graph


def keep_attention_whole(graph: GraphModule) -> GraphModule:
    """Replace each ``scaled_dot_product_attention`` by ``attend``, which is one operator whatever its arguments.

    Works on graphs before autograd, and on those that they hold (under autocast, checkpoints).
    """
    calls = [node for node in graph.graph.nodes if node.target in _ATTENTION]
    inner = {str(node.target): getattr(graph, str(node.target), None) for node in graph.graph.find_nodes(op="get_attr")}
    replaced = {name: keep_attention_whole(module) for name, module in inner.items() if isinstance(module, GraphModule)}
    changed = {name: module for name, module in replaced.items() if module is not inner[name]}
    if not calls and not changed:
        return graph
    graph = copied(graph)
    for name, module in changed.items():
        setattr(graph, name, module)
    for number, node in enumerate(node for node in graph.graph.nodes if node.target in _ATTENTION):
        node.target = attend
        node.kwargs = {**node.kwargs, "draw": number, "any_layout": _layout_is_free(node)}
        if _is_written(node):  # our operator needs its result for the gradient
            with graph.graph.inserting_after(node):
                copy = graph.graph.call_method("clone", (node,))
            copy.meta = dict(node.meta)
            node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
    graph.recompile()
    return graph


def _is_written(node: Node) -> bool:
    """Whether a node of Dynamo's graph writes into the memory of this one's result."""
    memory = node.meta.get("example_value")

    def shares(given: object) -> bool:
        value = given.meta.get("example_value") if isinstance(given, Node) else None
        return isinstance(value, torch.Tensor) and isinstance(memory, torch.Tensor) and shares_memory(value, memory)

    return any(
        is_mutating(each.target, each.kwargs) and any(shares(given) for given in each.all_input_nodes)
        for each in node.graph.nodes
    )


def attend_with_masks(graph: GraphModule) -> GraphModule:
    """Replace calls that have a mask, in half precision, by ``attend``, in a graph that is traced without gradients.

    Eager execution takes some of them apart on GPUs, and computes in float32: for a mask of another dtype, say.
    """
    calls = [n for n in graph.graph.nodes if n.target in _ATTENTION and isinstance(_mask(n), Node) and _is_half(n)]
    if not calls:
        return graph
    graph = copied(graph)
    calls = [n for n in graph.graph.nodes if n.target in _ATTENTION and isinstance(_mask(n), Node) and _is_half(n)]
    for node in calls:
        node.target = attend
        node.kwargs = {**node.kwargs, "any_layout": _layout_is_free(node), "ours": True}
    graph.recompile()
    return graph


def _is_half(node: Node) -> bool:
    query = node.args[0] if node.args else node.kwargs["query"]
    return isinstance(query, Node) and query.meta["val"].dtype in (torch.float16, torch.bfloat16)


def _layout_is_free(node: Node) -> bool:
    """Whether an attention's strides show nowhere: heads and rows are transposed, and then all is made contiguous."""
    return bool(node.users) and all(
        _swaps_heads_and_rows(user) and all(_name(after) in {"contiguous", "reshape"} for after in user.users)
        for user in node.users
    )


def _swaps_heads_and_rows(node: Node) -> bool:
    given = [arg for group in node.args[1:] for arg in (group if isinstance(group, list | tuple) else [group])]
    dims = [dim % 4 for dim in given if isinstance(dim, int)]
    if node.kwargs or len(dims) < len(given):
        return False
    return sorted(dims) == [1, 2] if _name(node) == "transpose" else _name(node) == "permute" and dims == [0, 2, 1, 3]


def _name(node: Node) -> str:
    """What a node calls, in any spelling: a method, a torch function, an ATen operator."""
    if isinstance(node.target, str):
        return node.target if node.op == "call_method" else ""
    return operator_name(node.target) or getattr(node.target, "__name__", "")


def mask_meaning(mask: torch.Tensor) -> str | None:
    """Say "all" if every position may be attended to, "causal" if exactly those at or before the query; else None.

    A boolean mask says where attention is allowed; a floating one is added to the scores.
    """
    if mask.dim() < 2 or mask.numel() == 0:
        return None
    if mask.dtype == torch.bool:
        allowed = mask
    else:
        if not bool(((mask == 0) | (mask == -torch.inf)).all()):
            return None
        allowed = mask == 0
    if bool(allowed.all()):
        return "all"
    rows, columns = allowed.shape[-2:]
    triangle = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
    return "causal" if rows == columns and bool((allowed == triangle).all()) else None


def _mask(node: Node) -> object:
    return node.kwargs.get("attn_mask", node.args[_MASK] if len(node.args) > _MASK else None)


def _set_mask(node: Node, *, causal: bool) -> None:
    """Drop the mask argument, and ask for causal attention instead where it said so."""
    args, kwargs = list(node.args), dict(node.kwargs)
    kwargs.pop("attn_mask", None)
    if len(args) > _MASK:
        args[_MASK] = None
    if causal and len(args) > _CAUSAL:
        args[_CAUSAL] = True
    elif causal:
        kwargs["is_causal"] = True
    node.args, node.kwargs = tuple(args), kwargs
