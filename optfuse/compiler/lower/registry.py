"""The table of lowering rules, and the values that rules take and return.

A rule is a function registered for ATen overloads by name::

    @lowers("aten.sum.dim_IntList")
    def sum_dim(builder: Builder, x: Value, dim=None, keepdim=False, *, dtype=None) -> Value: ...

It gets the ``Builder`` (which knows the current FX node) and the node's arguments, positional as in the overload's
schema, with each FX node replaced by its ``Value``. It emits at most one nest for each buffer through the builder and
returns the node's value. A rule that does not cover its arguments raises ``Declined`` before it emits anything: the
node becomes a library call.

Pointwise ops have a shorter form, ``@pointwise`` in ``optfuse.compiler.lower.pointwise``. Views need no rule: ATen
itself computes each of them (``optfuse.compiler.lower.views``). Rule modules are imported by
``optfuse/compiler/lower/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from optfuse.compiler.ir.nodes import Origin, View


@dataclass(frozen=True, slots=True)
class Uniform:
    """A tensor all of whose elements are ``value``: it is inlined wherever it is read, without op and buffer.

    ``constant`` is the constant buffer that holds it, if there is one. ``origin`` is its FX node, which names its
    buffer if a library call or the caller needs it in memory.
    """

    value: bool | int | float
    dtype: str
    shape: tuple[int, ...]
    origin: Origin
    device: str
    constant: View | None = None


#: The value of an FX node: a window of a buffer, a uniform tensor, a scalar, None, or a tuple of values.
Value = View | Uniform | bool | int | float | None | tuple["Value", ...]

Rule = Callable[..., Value]
RuleT = TypeVar("RuleT", bound=Callable[..., Any])

RULES: dict[str, Rule] = {}


class Declined(Exception):
    """Raised by a rule that does not cover its arguments: the node is lowered to a library call instead."""


def lowers(*targets: str) -> Callable[[RuleT], RuleT]:
    """Register the decorated function as the rule of the overloads named ``targets`` ("aten.add.Tensor")."""

    def register(rule: RuleT) -> RuleT:
        for target in targets:
            assert target not in RULES, f"{target} has two lowering rules"
            RULES[target] = rule
        return rule

    return register


def find_rule(target: str) -> Rule | None:
    """The rule of an overload, or None."""
    return RULES.get(target)
