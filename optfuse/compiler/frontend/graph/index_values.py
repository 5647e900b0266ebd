"""Symbolic values of tensors whose elements are functions of their indices, such as masks, for all sizes at once.

``arange(n)[None, :] <= arange(n)[:, None]`` is causal for all n, which no evaluation at one n proves. An element is a
number, a truth value, an affine expression of its index, or a condition ``expression >= 0``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import sympy
import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.evaluate import node_value
from optfuse.compiler.frontend.graph.index_elements import (
    Chosen,
    Element,
    Holds,
    Index,
    Pattern,
    UnknownElementError,
    arithmetic,
    both,
    choose,
    compared,
    element_of,
    is_constant,
    number,
    operand,
)
from optfuse.compiler.frontend.torch_internals.torch_bridge import is_mutating, operator_name, storage_place
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic


class Patterns:
    """The patterns of a graph's nodes, each computed once."""

    def __init__(self, graph: GraphModule) -> None:
        calls = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method")]
        writing = [node for node in calls if is_mutating(node.target, node.kwargs)]
        given = [node_value(source) for node in writing for source in node.all_input_nodes]
        #: where the tensors lie that may be written in place
        self._written = {storage_place(value)[0] for value in given if _is_strided(value)}
        self._found: dict[Node, Pattern | None] = {}

    def of(self, node: Node) -> Pattern | None:
        """The pattern of a node; None if it has none, or shares memory that may be written in place."""
        order = [node]
        while order:  # a chain of nodes may be longer than Python's stack
            missing = [source for source in order[-1].all_input_nodes if source not in self._found]
            if missing:
                order += missing
            else:
                last = order.pop()
                self._found[last] = self._made(last)
        return self._found[node]

    def _made(self, node: Node) -> Pattern | None:
        value = node_value(node)
        rule = _RULES.get(_name(node)) if node.op in ("call_function", "call_method") else None
        if rule is None or not _is_strided(value) or value.dim() > 8:
            return None
        if storage_place(value)[0] in self._written:
            return None
        result = tuple(number(size) for size in value.shape)
        try:
            args, kwargs = (torch.fx.node.map_arg(given, self._argument) for given in (node.args, node.kwargs))
            element = rule(result, *args, **{k: v for k, v in kwargs.items() if k not in _WHERE})
        except (TypeError, ValueError, IndexError, UnknownElementError):
            return None
        return None if element is None else Pattern(result, _typed(element, value.dtype))

    def _argument(self, source: Node) -> Any:
        pattern = self._found[source]
        return _scalar(source) if pattern is None else pattern


def _is_strided(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


#: Arguments that say where and as what a tensor is made; its dtype is known from its fake value.
_WHERE = ("dtype", "device", "layout", "pin_memory", "requires_grad", "memory_format", "copy", "non_blocking")


def pattern_meaning(pattern: Pattern | None) -> str | None:
    """``mask_meaning`` of a mask of any size: "all", "causal" or None."""
    if pattern is None or len(pattern.shape) < 2:
        return None
    index = tuple(sympy.Dummy(f"i{k}", integer=True, nonnegative=True) for k in range(len(pattern.shape)))
    found = pattern.at(index)
    if isinstance(found, Chosen):
        found = _allowed(found)
    elif not isinstance(found, Holds):
        return "all" if found is True or (not isinstance(found, bool) and found == 0) else None
    if found is None:
        return None
    rows, columns = pattern.shape[-2:]
    return "causal" if rows == columns and found.expressions == {index[-2] - index[-1]} else None


def _allowed(added: Chosen) -> Holds | None:
    """Where a mask that is added allows attention."""
    if (added.first, added.second) == (0, -math.inf):
        return added.condition
    if (added.first, added.second) == (-math.inf, 0) and len(added.condition.expressions) == 1:
        return Holds(frozenset(sympy.expand(-expression - 1) for expression in added.condition.expressions))
    return None


def _name(node: Node) -> str:
    """What a node calls: ``a == b`` is "eq", whether it stands as a function, a method ``__eq__`` or an overload."""
    if isinstance(node.target, str):
        special = node.target.startswith("__") and node.target.endswith("__")
        return node.target[2:-2] if special else node.target
    return operator_name(node.target) or getattr(node.target, "__name__", "")


def _scalar(node: Node) -> Any:
    value = node_value(node)
    if is_symbolic(value):
        return value
    raise UnknownElementError


def _typed(element: Callable[[Index], Element], dtype: torch.dtype) -> Callable[[Index], Element]:
    """Elements as values of a dtype."""

    def typed(index: Index) -> Element:
        found = element(index)
        if dtype == torch.bool:
            known = isinstance(found, bool | Holds) or found is None
            return found if known else None if isinstance(found, Chosen) or not is_constant(found) else bool(found != 0)
        if isinstance(found, bool):
            found = sympy.Integer(int(found))
        if isinstance(found, Holds):
            return None
        if dtype.is_floating_point and isinstance(found, sympy.Expr):
            return float(found) if found.is_Integer and abs(int(found)) <= 256 else None  # exact in every float
        return found

    return typed


# --- rules: the result's shape and the arguments -> the element at an index


def _arange(result: Index, start: Any, end: Any = None, step: Any = 1) -> Callable[[Index], Element]:
    if any(isinstance(n, float) for n in (start, end, step)):
        raise UnknownElementError
    first = sympy.S.Zero if end is None else number(start)
    return lambda index: first + number(step) * index[0]


def _filled(value: Any) -> Callable[..., Callable[[Index], Element]]:
    return lambda result, *args, **kwargs: lambda index: element_of(value)


def _full(result: Index, size: Any, fill_value: Any) -> Callable[[Index], Element]:
    return operand(fill_value)


def _same(result: Index, source: Pattern, *args: Any) -> Callable[[Index], Element]:
    return source.at


def _pointwise(function: Callable[..., Element]) -> Callable[..., Callable[[Index], Element]]:
    def rule(result: Index, *args: Any) -> Callable[[Index], Element]:
        operands = [operand(arg) for arg in args]
        return lambda index: function(*(element(index) for element in operands))

    return rule


def _unsqueeze(result: Index, source: Pattern, dim: int) -> Callable[[Index], Element]:
    dim %= len(result)
    return lambda index: source.at(index[:dim] + index[dim + 1 :])


def _transpose(result: Index, source: Pattern, first: int, second: int) -> Callable[[Index], Element]:
    def element(index: Index) -> Element:
        turned = list(index)
        turned[first], turned[second] = index[second], index[first]
        return source.at(tuple(turned))

    return element


def _viewed(result: Index, source: Pattern, *shape: Any) -> Callable[[Index], Element]:
    """A view that adds or removes dimensions of one element."""
    kept = [d for d, n in enumerate(result) if n != 1]
    own = [d for d, n in enumerate(source.shape) if n != 1]
    if [result[d] for d in kept] != [source.shape[d] for d in own]:
        raise UnknownElementError

    def element(index: Index) -> Element:
        found = [sympy.S.Zero] * len(source.shape)
        for d, k in zip(own, kept, strict=True):
            found[d] = index[k]
        return source.at(tuple(found))

    return element


def _triangle(lower: bool) -> Callable[..., Callable[[Index], Element]]:
    def rule(result: Index, source: Pattern, diagonal: int = 0) -> Callable[[Index], Element]:
        def element(index: Index) -> Element:
            value, apart = source.at(index), sympy.expand(index[-2] - index[-1] + diagonal)
            inside = Holds(frozenset({apart if lower else -apart}))
            return inside if value is True else choose(inside, value, sympy.S.Zero)

        return element

    return rule


def _difference(result: Index, source: Pattern, n: int = 1, dim: int = -1, prepend: Any = None) -> Any:
    """``torch.diff`` with one value in front, where all differences are one number."""
    if n != 1 or not isinstance(prepend, Pattern) or prepend.shape[dim] != 1:
        raise UnknownElementError
    subtract = arithmetic(operator.sub)

    def element(index: Index) -> Element:
        before, first = list(index), list(index)
        before[dim], first[dim] = index[dim] - 1, sympy.S.Zero
        step = subtract(source.at(index), source.at(tuple(before)))
        start = subtract(source.at(tuple(first)), prepend.at(tuple(first)))
        return step if is_constant(step) and step == start else None

    return element


def _running_sum(result: Index, source: Pattern, dim: int = -1) -> Callable[[Index], Element]:
    def element(index: Index) -> Element:
        found = source.at(index)
        return sympy.S.Zero if found is False or (is_constant(found) and found == 0) else None

    return element


def _taken(result: Index, source: Pattern, key: Any) -> Callable[[Index], Element]:
    """``source[key]``: slices from the front, None, and tensors of positions for all dimensions together."""
    key = key if isinstance(key, tuple) else (key,)
    if all(isinstance(part, Pattern) for part in key):
        if len(key) != len(source.shape):
            raise UnknownElementError
        return lambda index: _gathered(source, [part.at(index) for part in key])
    if any(isinstance(part, Pattern) for part in key):
        raise UnknownElementError
    taken = sum(part is not None and part is not Ellipsis for part in key)
    rest = (slice(None),) * (len(source.shape) - taken)
    if Ellipsis in key:
        at = key.index(Ellipsis)
        key = (*key[:at], *rest, *key[at + 1 :])
    else:
        key = (*key, *rest)
    return _sliced(source, key)


def _sliced(source: Pattern, key: Sequence[Any]) -> Callable[[Index], Element]:
    if any(not isinstance(part, slice | int | None) for part in key):
        raise UnknownElementError
    starts = [part.start or 0 if isinstance(part, slice) else part for part in key if part is not None]
    steps = [part.step for part in key if isinstance(part, slice)]
    if any(not isinstance(start, int) or start < 0 for start in starts) or any(step not in (None, 1) for step in steps):
        raise UnknownElementError

    def element(index: Index) -> Element:
        given = iter(index)
        found: list[sympy.Expr] = []
        for part in key:
            position = sympy.S.Zero if isinstance(part, int) else next(given)
            if part is not None:
                found.append(position + (part if isinstance(part, int) else part.start or 0))
        return source.at(tuple(found))

    return element


def _gathered(source: Pattern, places: Sequence[Element]) -> Element:
    for place in places:
        # from the front: a negative position would count from the end
        if not isinstance(place, sympy.Expr) or place.is_nonnegative is not True:
            return None
    return source.at(tuple(place for place in places if isinstance(place, sympy.Expr)))


_RULES: Mapping[str, Callable[..., Callable[[Index], Element] | None]] = {
    "arange": _arange,
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1)),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0)),
    **dict.fromkeys(("full", "full_like", "new_full"), _full),
    **dict.fromkeys(
        ("to", "_to_copy", "contiguous", "clone", "alias", "detach", "expand", "expand_as", "bool", "float", "type"),
        _same,
    ),
    "add": _pointwise(arithmetic(operator.add)),
    "sub": _pointwise(arithmetic(operator.sub)),
    "rsub": _pointwise(lambda a, b: arithmetic(operator.sub)(b, a)),
    "mul": _pointwise(arithmetic(operator.mul)),
    "eq": _pointwise(compared(operator.eq, None)),
    "ne": _pointwise(compared(operator.ne, None)),
    "le": _pointwise(compared(operator.le, lambda a, b: b - a)),
    "ge": _pointwise(compared(operator.ge, lambda a, b: a - b)),
    "lt": _pointwise(compared(operator.lt, lambda a, b: b - a - 1)),
    "gt": _pointwise(compared(operator.gt, lambda a, b: a - b - 1)),
    **dict.fromkeys(("and_", "and", "bitwise_and", "logical_and"), _pointwise(both)),
    "where": _pointwise(choose),
    "masked_fill": _pointwise(lambda value, mask, fill: choose(mask, fill, value)),
    "unsqueeze": _unsqueeze,
    "transpose": _transpose,
    **dict.fromkeys(("view", "reshape"), _viewed),
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "diff": _difference,
    "cumsum": _running_sum,
    "getitem": _taken,
}
