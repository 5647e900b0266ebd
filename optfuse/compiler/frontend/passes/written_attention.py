"""Recognize attention written as two products with a softmax between, and replace it by one call.

The scores, a number for each pair of rows, are then never in memory. This runs before autograd sees the graph, so that
the gradients are those of the one call, too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.evaluate import node_value
from optfuse.compiler.frontend.graph.rewrite import copied, fake, stays
from optfuse.compiler.frontend.passes.scores_mask import ScoresMask, put, shape_of
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY, is_mutating, operator_name, shares_memory
from optfuse.compiler.frontend.torch_internals.torch_sizes import broadcasts_to

aten = torch.ops.aten

Kind = Literal["product", "sum of products", "add", "multiply", "divide", "fill", "cast", "reshape", "softmax", "drop"]

_CALLS: Mapping[Kind, tuple[Any, ...]] = {
    "product": (torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm", aten.matmul.default, aten.bmm.default),
    "sum of products": (torch.baddbmm, "baddbmm", aten.baddbmm.default),
    "add": (torch.add, operator.add, operator.iadd, "add", "add_", aten.add.Tensor, aten.add_.Tensor),
    "multiply": (
        torch.mul, torch.multiply, operator.mul, operator.imul, "mul", "mul_", aten.mul.Tensor, aten.mul_.Tensor,
    ),
    "divide": (torch.div, operator.truediv, operator.itruediv, "div", "div_", aten.div.Tensor, aten.div_.Tensor),
    "fill": (
        torch.masked_fill, "masked_fill", "masked_fill_", aten.masked_fill.Scalar, aten.masked_fill_.Scalar,
        torch.where, aten.where.ScalarOther, aten.where.self,
    ),
    "cast": ("to", "float", "half", "bfloat16", "type_as", TO_COPY, aten.to.dtype, aten.type_as.default),
    "reshape": ("view", "reshape", torch.reshape, aten.view.default, aten.reshape.default),
    "softmax": (torch.softmax, F.softmax, "softmax", aten.softmax.int),
    "drop": (F.dropout, torch.dropout, aten.dropout.default),
}  # fmt: skip

_KINDS: Mapping[Any, Kind] = {target: kind for kind, targets in _CALLS.items() for target in targets}
_PRODUCTS: tuple[Kind, ...] = ("product", "sum of products")
_STEPS: tuple[Kind, ...] = ("add", "multiply", "divide", "fill", "cast", "reshape")
_WHERE = frozenset({torch.where, aten.where.ScalarOther, aten.where.self})
#: Methods that take no more of their second argument than its shape or its dtype.
_SHAPE_ONLY = frozenset({"expand_as", "type_as", aten.expand_as.default, aten.type_as.default})
_HALF = frozenset({torch.float16, torch.bfloat16})

#: Library kernels take heads of up to so many elements, and of a multiple of
WIDEST_HEAD, ALIGNED = 256, 8
#: A finite fill that leaves nothing of a score that it is added to.
OVERWHELMING = 1e30


@dataclass(frozen=True, slots=True)
class _Written:
    """Attention as it was found. ``steps`` are the nodes between the first product and the softmax, in order."""

    first: Node
    steps: tuple[Node, ...]
    softmax: Node
    dropout: float
    second: Node

    @property
    def chain(self) -> tuple[Node, ...]:
        """All of its nodes, last first."""
        return (self.second, *_after(self), self.softmax, *reversed(self.steps), self.first)

    @property
    def query(self) -> Node:
        return _factors(self.first)[0]

    @property
    def transposed_key(self) -> Node:
        return _factors(self.first)[1]

    @property
    def value(self) -> Node:
        return _factors(self.second)[1]


def recognize_attention(graph: GraphModule) -> GraphModule:
    """``softmax(q @ k.transpose(-2, -1) * scale + mask) @ v`` becomes ``scaled_dot_product_attention``.

    Before: ``torch.softmax(q @ k.mT / 8 + mask, -1) @ v``. After: ``scaled_dot_product_attention(q, k, v, mask,
    scale=1 / 8)``. In half precision, where there are at least as many scores as elements of queries and values, and
    where nothing else reads them. Masks may be added or filled in; a row whose keys are all filled with minus infinity
    is no number, as in eager execution. Works on graphs before autograd, of torch functions or of ATen operators.
    """
    if not any(_kind(node) == "softmax" for node in graph.graph.nodes):
        return graph
    result = copied(graph)
    result.graph.eliminate_dead_code(is_impure_node=stays)  # such as a mean of weights that is not read
    nodes = list(result.graph.nodes)
    for node in nodes:
        node.meta = {**node.meta, "val": node_value(node)}
    _name_results_of_writes(nodes)
    place = {node: k for k, node in enumerate(nodes)}
    matches = [_match(node) for node in nodes if _kind(node) == "softmax"]
    found = [match for match in matches if match is not None and _is_replaceable(match, place)]
    if not found:
        return graph
    for written in found:
        _replace(written)
        for node in written.chain:  # last first
            for user in [user for user in node.users if _is_assertion(user)]:
                result.graph.erase_node(user)
            if not node.users:
                result.graph.erase_node(node)
    result.recompile()
    return result


def _name_results_of_writes(nodes: Sequence[Node]) -> None:
    """Let what reads scores after a step has written into them read that step's result, which is the same tensor."""
    for node in nodes:
        if _kind(node) in _STEPS and is_mutating(node.target) and _kind(node.args[0]) in (*_PRODUCTS, *_STEPS):
            node.args[0].replace_all_uses_with(node, delete_user_cb=lambda user, node=node: user > node)


def _kind(node: Any) -> Kind | None:
    return _KINDS.get(node.target) if isinstance(node, Node) and node.op in {"call_function", "call_method"} else None


def _value(node: Any) -> torch.Tensor | None:
    return fake(node) if isinstance(node, Node) else None


def _factors(product: Node) -> tuple[Any, Any]:
    """What is multiplied: also of ``baddbmm(input, a, b)``, whose factors may be given by name."""
    if _kind(product) == "product":
        return product.args[0], product.args[1]
    named = product.kwargs.get("batch1"), product.kwargs.get("batch2")
    return product.args[1:3] if len(product.args) == 3 else named


def _match(softmax: Node) -> _Written | None:
    """The attention around a softmax over the last axis, if it is one."""
    scores = _value(softmax.args[0]) if softmax.args else None
    dim = softmax.kwargs.get("dim", softmax.args[1] if len(softmax.args) > 1 else None)
    if scores is None or dim not in (-1, scores.dim() - 1):
        return None
    before = _before(softmax)
    after = _second_product(softmax)
    if before is None or after is None:
        return None
    return _Written(before[0], before[1:], softmax, after[1], after[0])


def _before(softmax: Node) -> tuple[Node, ...] | None:
    """The first product, and the steps from there to the softmax; None unless each is read by the next alone."""
    steps: list[Node] = []
    node, reader = softmax.args[0], softmax
    while isinstance(node, Node) and _readers(node) == {reader}:
        if _kind(node) in _PRODUCTS:
            return (node, *reversed(steps))
        if _kind(node) not in _STEPS:
            return None
        steps.append(node)
        node, reader = _scores_of(node), node
    return None


def _readers(node: Node) -> set[Node]:
    """What reads a node's values, and not only its shape or dtype."""
    return {user for user in node.users if not _reads_shape(user, node)}


def _reads_shape(user: Node, node: Node) -> bool:
    return _is_assertion(user) or (user.target in _SHAPE_ONLY and user.args[0] is not node)


def _is_assertion(node: Node) -> bool:
    return operator_name(node.target) == "_assert_tensor_metadata"


def _scores_of(step: Node) -> Any:
    """Which operand of a step holds the scores; of two that are added, the one that a product leads to."""
    if _kind(step) == "add" and not step.kwargs:
        chains = [arg for arg in step.args if _leads_to_product(arg)]
        return chains[0] if len(chains) == 1 else None
    return (*step.args, None, None)[1 if step.target in _WHERE else 0]


def _leads_to_product(node: Any) -> bool:
    while _kind(node) in _STEPS:
        node = node.args[1 if node.target in _WHERE else 0]
    return _kind(node) in _PRODUCTS


def _second_product(softmax: Node) -> tuple[Node, float] | None:
    """The product of the weights with the values, and the share of weights that are dropped before it."""
    node, dropout = softmax, 0.0
    while len(readers := _readers(node)) == 1:
        (user,) = readers
        if _kind(user) == "product":
            return (user, dropout) if user.args[0] is node and user.args[1] is not node else None
        if _kind(user) == "drop" and dropout == 0.0:
            dropout = _dropped(user)
        elif _kind(user) not in ("cast", "reshape"):
            return None
        node = user
    return None


def _after(written: _Written) -> Iterator[Node]:
    """What is between the softmax and the second product, last first."""
    node = _factors(written.second)[0]
    while node is not written.softmax:
        yield node
        node = node.args[0]


def _dropped(drop: Node) -> float:
    p, training = (*drop.args, *(None,) * 3)[1:3]
    p = drop.kwargs.get("p", 0.5 if p is None else p)
    training = drop.kwargs.get("training", drop.kwargs.get("train", True if training is None else training))
    return float(p) if training else 0.0


def _is_replaceable(written: _Written, place: Mapping[Node, int]) -> bool:
    """Whether one call computes the same: by dtypes, shapes, masks, and writes in between."""
    scores, weights = _value(written.softmax.args[0]), _value(written.softmax)
    tensors = [_value(node) for node in (written.query, written.transposed_key, written.value)]
    out = _value(written.second)
    if scores is None or weights is None or out is None or any(x is None for x in tensors):
        return False
    query, key, value = (x for x in tensors if x is not None)
    if not {x.dtype for x in (query, key, value, out)} <= _HALF or len({query.dtype, key.dtype, value.dtype}) > 1:
        return False
    if not all(type(n) is int for x in (query, key, value, scores) for n in x.shape):
        return False
    if not _fits(query, key, value, scores, out) or not all(_is_harmless(step, query) for step in written.steps):
        return False
    if _kind(written.first) == "sum of products" and _mask_of_sum(written.first) is None:
        return False
    chain = set(written.chain)
    between = (node for node, k in place.items() if place[written.first] < k < place[written.second])
    return not any(node not in chain and is_mutating(node.target, node.kwargs) for node in between)


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether batches are alike, heads are what libraries take, and scores as many as queries and values."""
    if query.dim() < 3 or scores.dim() < 3 or query.dim() != key.dim() or value.dim() != out.dim():
        return False
    rows, width = query.shape[-2:]
    length, depth = value.shape[-2:]
    batch = math.prod(scores.shape[:-2])
    alike = query.shape[:-2] == key.shape[:-2] and value.shape[:-2] == out.shape[:-2]
    if not alike or scores.shape[-2:] != (rows, length) or math.prod(out.shape[:-2]) != batch:
        return False
    if math.prod(query.shape[:-2]) != batch or max(width, depth) > WIDEST_HEAD or width % ALIGNED or depth % ALIGNED:
        return False
    return rows * length >= rows * width + length * depth


def _is_harmless(step: Node, query: torch.Tensor) -> bool:
    """Whether a step between product and softmax can be expressed by a scale and a mask."""
    kind = _kind(step)
    result = _value(step)
    if result is None or result.dtype not in (query.dtype, torch.float32) or result.device != query.device:
        return False
    if kind == "cast":
        return True
    if kind == "reshape":
        before = _value(step.args[0])
        return before is not None and before.shape[-2:] == result.shape[-2:]
    if kind in ("multiply", "divide"):
        return not step.kwargs and _number(step.args[1]) not in (None, 0.0)
    if kind == "fill":
        return _fill(step) is not None
    return _is_mask(_added(step), query.dtype, result)


def _is_mask(mask: Any, dtype: torch.dtype, scores: torch.Tensor) -> bool:
    """Whether what is added is a number, or a mask that the one call takes: of its dtype, and without a gradient."""
    if _number(mask) is not None:
        return True
    given = _value(mask)
    if given is None or given.dtype != dtype or given.requires_grad or given.dim() > scores.dim():
        return False
    return broadcasts_to(given.shape, scores.shape)


def _number(x: Any) -> float | None:
    return float(x) if isinstance(x, int | float) and not isinstance(x, bool) else None


def _added(step: Node) -> Any:
    """What is added to the scores; None where the scores are added into a mask, in place."""
    if step.args[0] is _scores_of(step):
        return step.args[1]
    return None if is_mutating(step.target) else step.args[0]


def _mask_of_sum(product: Node) -> Any:
    """What ``baddbmm`` adds to the product, if both are taken once."""
    factors = [product.kwargs.get(name, 1) for name in ("beta", "alpha")]
    given, scores, query = product.args[0], _value(product), _value(_factors(product)[0])
    if _number(factors[0]) != 1.0 or _number(factors[1]) in (None, 0.0) or scores is None or query is None:
        return None
    return given if _is_mask(given, query.dtype, scores) else None


def _fill(step: Node) -> tuple[Node, float, bool] | None:
    """A fill's condition, its number, and whether it is filled in where the condition does not hold."""
    if len(step.args) != 3 or step.kwargs:
        return None
    inverse = step.target in _WHERE
    condition, number = (step.args[0], step.args[2]) if inverse else (step.args[1], step.args[2])
    fill, held, scores = _number(number), _value(condition), _value(step)
    if fill is None or held is None or scores is None or held.dtype != torch.bool:
        return None
    if fill > -OVERWHELMING or not broadcasts_to(held.shape, scores.shape):
        return None
    return condition, fill, inverse  # type: ignore[return-value]


def _replace(written: _Written) -> None:
    """Put the one call before the second product, and let it take the product's place."""
    before, second = written.second, _value(written.second)
    mask = ScoresMask(before, written.query)
    if _kind(written.first) == "sum of products":
        mask.scale = float(written.first.kwargs.get("alpha", 1))
        mask.add(_mask_of_sum(written.first))
    for step in written.steps:
        _tell(step, mask)
    scores = _value(written.softmax.args[0])
    assert scores is not None
    assert second is not None
    key = put(before, aten.transpose.int, (written.transposed_key, -2, -1))
    batch = list(scores.shape[:-2])
    given = [_in_rows(before, _with_batch(before, node, batch)) for node in (written.query, key, written.value)]
    out = put(before, aten.scaled_dot_product_attention.default,
        (*given, mask.finished(), written.dropout, False), {"scale": mask.scale},
    )  # fmt: skip
    if list(second.shape[:-2]) != batch:
        out = put(before, aten.reshape.default, (out, list(second.shape)))
    if _is_written(written.second):  # attention's gradient reads its result, a product's does not
        out = put(before, aten.clone.default, (out,))
    written.second.replace_all_uses_with(out)


def _is_written(product: Node) -> bool:
    """Whether a later node writes into a product, or into a view of it."""
    value = _value(product)
    assert value is not None
    targets = (node.args[0] for node in product.graph.nodes if is_mutating(node.target, node.kwargs) and node.args)
    held = ((target, _value(target)) for target in targets)
    return any(target is product or (x is not None and shares_memory(x, value)) for target, x in held)


def _tell(step: Node, mask: ScoresMask) -> None:
    """Let the mask account for one step."""
    kind = _kind(step)
    if kind in ("multiply", "divide"):
        number = _number(step.args[1])
        assert number is not None
        mask.multiply(number if kind == "multiply" else 1 / number)
    elif kind == "add":
        mask.add(_added(step))
    elif kind == "fill":
        filled = _fill(step)
        assert filled is not None
        mask.fill(*filled)
    elif kind == "reshape":
        mask.reshape(shape_of(step.args[0]), shape_of(step))


def _in_rows(before: Node, node: Node) -> Node:
    """A tensor whose last elements are neighbours: libraries have no kernel for another one."""
    value = _value(node)
    if value is None or value.stride(-1) == 1:
        return node
    return put(before, aten.clone.default, (node,), {"memory_format": torch.contiguous_format})


def _with_batch(before: Node, node: Node, batch: list[int]) -> Node:
    shape = list(shape_of(node))
    return node if shape[:-2] == batch else put(before, aten.reshape.default, (node, [*batch, *shape[-2:]]))
