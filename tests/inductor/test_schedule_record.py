"""What a buffer of Inductor's computes, from stand-ins for its nodes."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import fx

from optfuse.inductor.schedule_record import _computed, _Facts  # pyright: ignore[reportPrivateUsage]

aten = torch.ops.aten


def test_a_buffer_of_positions_is_computed_by_who_loads_it() -> None:
    """``sub`` had a buffer of its own, which no kernel reads: Inductor's loaders compute it."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    iota = graph.call_function(aten.arange.default, (8,))
    mask = graph.call_function(aten.ge.Scalar, (iota, 4))
    sub = graph.call_function(aten.sub.Tensor, (iota, mask))
    where = graph.call_function(aten.where.self, (sub, x, 0.0))
    operation = SimpleNamespace(get_origins=lambda: {where}, get_origin_node=lambda: where)

    def computed(inlined: dict[fx.Node, frozenset[fx.Node]]) -> set[fx.Node]:
        return _computed(operation, frozenset({x}), _Facts({}, frozenset(), inlined))

    assert computed({}) == {where}
    assert computed({sub: frozenset({iota, mask, sub})}) == {iota, mask, sub, where}
    other = graph.call_function(aten.neg.default, (x,))
    assert computed({other: frozenset({other})}) == {where}
