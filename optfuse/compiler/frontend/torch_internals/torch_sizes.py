"""PyTorch's symbolic sizes: their expressions, the numbers that they were traced with, and which depend on data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, is_nested_int, statically_known_true
from torch.nested._internal.nested_tensor import _tensor_symint_registry

from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_leaves

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def static_value(value: Any, sizes: Mapping[sympy.Symbol, int] | None = None) -> Any:
    """A number or fake tensor without symbolic sizes: these take their values under ``sizes``.

    A value that ``sizes`` do not tell stays as it is. Without ``sizes`` each takes the value that it has now, which
    becomes a guard.
    """
    if isinstance(value, _SYMBOLIC):
        return _number(value, sizes)
    if not isinstance(value, FakeTensor) or not any(
        isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride())
    ):
        return value
    shape = [_number(n, sizes) for n in value.shape]
    stride, offset = [_number(n, sizes) for n in value.stride()], _number(value.storage_offset(), sizes)
    if any(isinstance(n, torch.SymInt) for n in (*shape, *stride, offset)):
        return value
    elements = offset + 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    with FakeTensorMode():
        storage = torch.empty(max(elements, offset), dtype=value.dtype, device=value.device)
        return storage.as_strided(shape, stride, offset)


def _number(value: Any, sizes: Mapping[sympy.Symbol, int] | None) -> Any:
    """A number's value, as in ``static_value``."""
    if not isinstance(value, _SYMBOLIC):
        return value
    kind = int if isinstance(value, torch.SymInt) else float if isinstance(value, torch.SymFloat) else bool
    if sizes is None:
        return kind(value)
    known = expression_of(value).xreplace({symbol: sympy.sympify(size) for symbol, size in sizes.items()})
    return value if known.free_symbols else kind(known)


def is_symbolic(value: Any) -> bool:
    """Whether a value is a number that torch knows by a symbol."""
    return isinstance(value, _SYMBOLIC)


def is_read_as_number(value: Any) -> bool:
    """Whether a value is a fake tensor whose element an operator has asked for, which torch notes on it."""
    return isinstance(value, FakeTensor) and value.item_memo is not None


def expression_of(value: Any) -> sympy.Basic:
    """The sympy expression of a symbolic number."""
    return value.node.expr


def symbols_of(value: Any) -> set[sympy.Symbol]:
    """The symbols of a number; none of any other value."""
    return set(expression_of(value).free_symbols) if is_symbolic(value) else set()


def hint_of(value: int | torch.SymInt) -> int:
    """The number that a size was traced with, without a guard: for choices that affect speed or memory alone."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def known_equal(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Whether two numbers are equal whatever their symbols are, without a guard.

    A tracer sees nothing of it: the size of a storage may be no number of its graph.
    """
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    with disable_proxy_modes_tracing():
        return statically_known_true(one == other)


def same_numbers(one: Sequence[int | torch.SymInt], other: Sequence[int | torch.SymInt]) -> bool:
    """Whether two shapes, or two strides, are equal whatever their symbols are.

    Torch's ``==`` would ask for a guard: a batch of 128 that is compared with 64 channels would rule out one of 64.
    """
    return len(one) == len(other) and all(map(known_equal, one, other))


def broadcasts_to(one: Sequence[int | torch.SymInt], other: Sequence[int | torch.SymInt]) -> bool:
    """Whether a tensor of one shape can be broadcast to another shape, whatever their symbols are."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return len(one) <= len(other) and all(known_equal(a, 1) or known_equal(a, b) for a, b in pairs)


def unbacked_symbols(value: Any) -> set[sympy.Symbol]:
    """The symbols of sizes and numbers in ``value`` (also inside of lists) that depend on the values of tensors."""
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, (torch.Tensor, *_SYMBOLIC))]
    return set().union(*map(free_unbacked_symbols, leaves))


def has_unbacked_size(value: Any) -> bool:
    """Whether a traced value (or a number or size of it) is known only when the graph runs."""
    return bool(free_unbacked_symbols(value)) if isinstance(value, (torch.Tensor, *_SYMBOLIC)) else False


def is_ragged_size(value: Any) -> bool:
    """Whether a traced value is the size of nested tensors that differs from row to row, which is no number."""
    return is_nested_int(value)


def without_ragged_size(value: Any) -> Any:
    """A tensor of the same memory that torch does not know as the offsets of nested tensors; any other value as it is.

    Torch gives their ragged size a symbol where it traces them, which asks for a tracer that has symbols.
    """
    known = isinstance(value, torch.Tensor) and value in _tensor_symint_registry
    return value.detach() if known and not isinstance(value, FakeTensor) else value
