"""Which indices are known to lie in a range, whatever the values of tensors: places of a sort, remainders, clamps."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

Bounds = tuple[float, float]
UNKNOWN: Bounds = (-float("inf"), float("inf"))

#: Operators whose results have the values of their first argument, or some of them.
_SAME = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,  # noqa: SLF001
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
    }
)
#: Operators that return (values, places along a dimension).
_PLACES = frozenset({aten.topk.default, aten.sort.default, aten.sort.stable, aten.max.dim, aten.min.dim})
_EXTREMES = frozenset({aten.argmax.default, aten.argmin.default})
#: Comparisons with a number, and whether they hold for all values between two bounds.
_COMPARED = {
    aten.ge.Scalar: lambda low, _, number: low >= number,
    aten.gt.Scalar: lambda low, _, number: low > number,
    aten.le.Scalar: lambda _, high, number: high <= number,
    aten.lt.Scalar: lambda _, high, number: high < number,
}


def holds(condition: Any) -> bool:
    """Whether a condition, such as ``all(x < 5)``, is true whatever the graph's inputs are.

    True: ``places = topk(scores, 2)[1]; all(places < scores.shape[-1])``.
    """
    while isinstance(condition, Node) and condition.target in (aten.all.default, *_SAME):
        condition = condition.args[0]
    if not isinstance(condition, Node) or condition.target not in _COMPARED:
        return False
    compared, number = condition.args
    if not isinstance(number, int | float):
        return False
    return bool(_COMPARED[condition.target](*index_bounds(compared), number))


def index_bounds(node: Any) -> Bounds:
    """The least and the greatest value that a tensor of integers may have, as far as its node tells."""
    while isinstance(node, Node) and node.target in _SAME:
        node = node.args[0]
    if not isinstance(node, Node):
        return UNKNOWN
    match node.target, node.args:
        case operator.getitem, (Node(target=target) as found, 1) if target in _PLACES:
            return _along(found.args[0], _dim(found, 2 if target is aten.topk.default else 1, -1))
        case target, (source, *_) if target in _EXTREMES:
            return _along(source, _dim(node, 1, None))
        case aten.remainder.Scalar, (_, int(divisor)) if divisor > 0 and _whole(node):
            return 0, divisor - 1
        case aten.arange.default, (int(end),):
            return 0, end - 1
        case aten.clamp.default, (source, *limits):
            low, high = index_bounds(source)
            least, most = (*limits, None, None)[:2]
            least, most = (limit if isinstance(limit, int) else None for limit in (least, most))
            return max(low, low if least is None else least), min(high, high if most is None else most)
        case _:
            return UNKNOWN


def _dim(node: Node, position: int, default: int | None) -> Any:
    """The dimension that a call is given."""
    return node.kwargs.get("dim", node.args[position] if len(node.args) > position else default)


def _whole(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _along(source: Any, dim: Any) -> Bounds:
    """Places in a tensor along one of its dimensions; None: in all of it."""
    value = source.meta.get("val") if isinstance(source, Node) else None
    size = None
    if isinstance(value, torch.Tensor):
        size = value.numel() if dim is None else value.shape[dim] if value.dim() else 1
    return (0, size - 1) if isinstance(size, int) else UNKNOWN
