"""Build the attention mask that has the effect of a model's operations on scores before its softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from optfuse.compiler.frontend.graph.rewrite import fake
from optfuse.compiler.frontend.torch_internals.torch_fakes import fake_result_afresh

aten = torch.ops.aten


@dataclass(slots=True)
class ScoresMask:
    """A mask under construction, put before ``before``: what is added to the scores, of the shape that they have."""

    before: Node
    like: Node
    node: Any = None
    scale: float = 1.0
    may_be_empty: bool = False

    def multiply(self, factor: float) -> None:
        self.scale *= factor
        if self.node is not None:
            self.node = put(self.before, aten.mul.Scalar, (self.node, factor))

    def add(self, mask: Any) -> None:
        """Add a mask; the same number added to all scores of a row changes no weight, and is left out."""
        if isinstance(mask, Node):
            self.may_be_empty = True
            self.node = mask if self.node is None else put(self.before, aten.add.Tensor, (self.node, mask))

    def fill(self, condition: Node, number: float, inverse: bool) -> None:
        """Let ``number`` take the place of the scores where the condition holds (does not, with ``inverse``)."""
        if inverse:
            condition = put(self.before, aten.logical_not.default, (condition,))
        if self.node is None:
            sizes = list(shape_of(condition))
            self.node = put(self.before, aten.new_zeros.default, (self.like, sizes))
        else:
            self.node = self._wide(condition)
        self.may_be_empty |= math.isinf(number)
        self.node = put(self.before, aten.masked_fill.Scalar, (self.node, condition, number))

    def _wide(self, condition: Node) -> Node:
        sizes = torch.broadcast_shapes(shape_of(self.node), shape_of(condition))
        return put(self.before, aten.expand.default, (self.node, list(sizes)))

    def reshape(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Follow the scores to other batches; the last two axes stay."""
        if self.node is None:
            return
        given = shape_of(self.node)
        given = (1,) * (len(old) - len(given)) + given
        if math.prod(given[:-2]) == 1:
            self.node = put(
                self.before,
                aten.reshape.default,
                (self.node, [1] * (len(new) - 2) + list(given[-2:])),
            )
            return
        full = put(self.before, aten.expand.default, (self.node, [*old[:-2], *given[-2:]]))
        self.node = put(self.before, aten.reshape.default, (full, [*new[:-2], *given[-2:]]))

    def finished(self) -> Node | None:
        """The mask, with rows in which no key is allowed made no numbers, as a softmax of them is."""
        if self.node is None:
            return None
        if len(shape_of(self.node)) < 2:
            self.node = put(self.before, aten.unsqueeze.default, (self.node, 0))
        if not self.may_be_empty:
            return self.node
        blocked = put(self.before, aten.eq.Scalar, (self.node, -math.inf))
        empty = put(self.before, aten.all.dim, (blocked, -1, True))
        return put(self.before, aten.masked_fill.Scalar, (self.node, empty, math.nan))


def shape_of(node: Node) -> tuple[int, ...]:
    value = fake(node)
    assert value is not None
    return tuple(value.shape)


def put(
    before: Node, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Node:
    """A new node just before ``before``. Its fake value is of a mode of its own: torch has one for each capture."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, dict(kwargs or {}))
    node.meta = {key: value for key, value in before.meta.items() if key not in ("val", "example_value")}
    node.meta["val"] = fake_result_afresh(node)
    return node
