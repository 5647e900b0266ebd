"""``x[mask] = value`` as choices between old and new elements: a loop, in place of a search for the mask's places.

ATen's ``index_put`` looks up where a mask is true: the host waits for the number of places, and the gradient of the
values has a size that only the run tells. Where all places get the same values, neither is needed; where values with a
gradient differ, as in ``x[mask] = y[mask]``, they are scattered by the mask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from optfuse.compiler.frontend.graph.rewrite import copied

aten = torch.ops.aten

Indices = Sequence[Tensor | None]


def put_by_mask(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    """``index_put`` with one mask and the same values at all of its places; NotImplemented with others."""
    first = next((k for k, index in enumerate(indices) if index is not None), None)
    if first is None or any(index is not None for index in indices[first + 1 :]):
        return NotImplemented
    chosen = _chosen(self, first, indices[first], values, adds=accumulate)
    if chosen is None:
        return NotImplemented
    return chosen if self.is_contiguous() else aten.copy.default(self, chosen)  # in the layout of what is written


def choose_by_masks(graph: GraphModule) -> GraphModule:
    """The graph with writes by a mask as choices, so that their gradients have sizes that are known.

    Before: ``setitem(x, mask, value)``. After: ``x.copy_(where(mask, value, x))``. Works on graphs before autograd, of
    torch functions or of ATen operators.
    """
    if not any((node.op, node.target) in _WRITES for node in graph.graph.nodes):
        return graph
    graph = copied(graph)
    for node in graph.graph.nodes:
        if (node.op, node.target) in _WRITES:
            node.op, node.target = "call_function", _WRITES[node.op, node.target]
    graph.recompile()
    return graph


def _set_item(self: Any, key: Any, value: Any) -> None:
    """``self[key] = value``; by choices if the key is one mask among slices and numbers."""
    keys = key if isinstance(key, tuple) else (key,)
    place = next((k for k, one in enumerate(keys) if _is_mask(one)), None)
    if place is not None and isinstance(self, Tensor):
        before, mask, after = keys[:place], keys[place], keys[place + 1 :]
        if all(one is None or one is ... or type(one) in (int, slice) for one in (*before, *after)):
            window = self[(*before, *[slice(None)] * mask.dim(), *after)]
            left = any(one is ... for one in before)
            first = window.dim() - mask.dim() - _axes(after) if left else _axes(before)
            if not isinstance(value, Tensor):
                value = torch.full((), value, dtype=self.dtype, device=self.device)
            value = value.to(self.device, self.dtype)
            chosen = _chosen(window, first, mask, value)
            chosen = _filled(window, first, mask, value) if chosen is None else chosen
            if chosen is not None:
                window.copy_(chosen)
                return
    self[key] = value


def _is_mask(key: Any) -> bool:
    return isinstance(key, Tensor) and key.dtype == torch.bool and key.dim() > 0


def _axes(keys: Sequence[Any]) -> int:
    """How many dimensions of the result slices and new axes make."""
    return sum(one is None or type(one) is slice for one in keys)


def _index_put(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    written = _written(self, indices, values, accumulate)
    return aten.index_put.default(self, list(indices), values, accumulate) if written is None else written


def _index_put_in_place(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    written = _written(self, indices, values, accumulate)
    if written is None:
        return aten.index_put_.default(self, list(indices), values, accumulate)
    return self.copy_(written)


def _written(self: Tensor, indices: Indices, values: Tensor, accumulate: bool) -> Tensor | None:
    """The result of ``index_put`` without a search for a mask's places, if there is such a form."""
    chosen = put_by_mask(self, indices, values, accumulate)
    if chosen is not NotImplemented:
        return chosen
    mask = indices[0] if len(indices) == 1 and not accumulate else None
    return _filled(self, 0, mask, values) if mask is not None and _is_mask(mask) else None


#: What writes at places, as kind of node and target, and the same by choices where it can be.
_WRITES: dict[tuple[str, Any], Callable[..., Any]] = {
    ("call_function", operator.setitem): _set_item,
    ("call_function", torch.index_put): _index_put,
    ("call_function", torch.index_put_): _index_put_in_place,
    ("call_method", "index_put"): _index_put,
    ("call_method", "index_put_"): _index_put_in_place,
    ("call_function", aten.index_put.default): _index_put,
    ("call_function", aten.index_put_.default): _index_put_in_place,
}


def _chosen(x: Tensor, first: int, mask: Any, values: Tensor, *, adds: bool = False) -> Tensor | None:
    """``x`` with values where a mask over its dimensions from ``first`` on is true; None if each place has its own.

    The values' dimensions are those of ``x``, one for all places in place of the mask's, or the last of these.
    """
    count = mask.dim()
    if not _is_mask(mask) or not x.device == mask.device == values.device or values.dtype != x.dtype:
        return None
    behind = x.dim() - first - count
    if behind < 0 or tuple(mask.shape) != tuple(x.shape[first : first + count]):
        return None  # which is an error, said by what is written
    while values.dim() > first + 1 + behind and isinstance(values.shape[0], int) and values.shape[0] == 1:
        values = values.squeeze(0)
    at = values.dim() - behind - 1
    if at > first or (at >= 0 and not (isinstance(values.shape[at], int) and values.shape[at] == 1)):
        return None
    for _ in range(count - 1 if at >= 0 else 0):
        values = values.unsqueeze(at)
    for _ in range(behind):
        mask = mask.unsqueeze(-1)
    return torch.where(mask, x + values if adds else values, x)


def _filled(x: Tensor, first: int, mask: Tensor, values: Tensor) -> Tensor | None:
    """``x`` with values of their own at the places of a mask over its first dimensions, if those need a gradient.

    The gradient of ``masked_scatter`` has the values' size, where that of ``index_put`` has as many as the mask finds.
    """
    count, rest = mask.dim(), tuple(x.shape[mask.dim() :])
    if first or not (values.requires_grad and torch.is_grad_enabled()) or values.dim() != 1 + len(rest):
        return None
    if tuple(mask.shape) != tuple(x.shape[:count]) or tuple(values.shape[1:]) != rest or mask.device != x.device:
        return None
    found = mask.sum() == values.shape[0]
    aten._assert_async.msg(found, "as many rows of values are needed as a mask has places")  # noqa: SLF001
    for _ in rest:
        mask = mask.unsqueeze(-1)
    return x.masked_scatter(mask.expand(x.shape), values)
