"""No-ops are removed; copies that leave the graph stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from optfuse.compiler.frontend.passes.noops import drop_assertions, drop_copies, remove_noops
from tests.compiler.frontend.passes.graphs import operators, run, traced

aten = torch.ops.aten
X = torch.arange(12.0).reshape(3, 4)

GONE: dict[str, Callable[[torch.Tensor], Any]] = {
    "alias": lambda x: (aten.alias(x).exp(),),
    "detach": lambda x: (aten.detach(x).exp(),),
    "clone": lambda x: (x.clone().exp(),),
    "cast to the same dtype": lambda x: (aten._to_copy(x, dtype=torch.float32).exp(),),  # noqa: SLF001
    "view to the same shape": lambda x: (aten.view(x, [3, -1]).exp(),),
    "expand to the same shape": lambda x: (aten.expand(x, [-1, 4]).exp(),),
    "whole slice": lambda x: (aten.slice(x, 1, 0, 2**63 - 1).exp(),),
    "permutation in order": lambda x: (aten.permute(x, [0, 1]).exp(),),
    "padding by nothing": lambda x: (aten.constant_pad_nd(x, [0, 0, 0, 0], 1.0).exp(),),
    "several in a row": lambda x: (aten.view(aten.alias(x.clone()), [3, 4]).exp(),),
}
KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "clone in another layout": lambda x: (x.t().clone(memory_format=torch.contiguous_format).exp(),),
    "cast": lambda x: (aten._to_copy(x, dtype=torch.float64).exp(),),  # noqa: SLF001
    "view": lambda x: (aten.view(x, [4, 3]).exp(),),
    "slice": lambda x: (aten.slice(x, 1, 0, 3).exp(),),
    "permutation": lambda x: (aten.permute(x, [1, 0]).exp(),),
    "padding that shifts": lambda x: (aten.constant_pad_nd(x, [1, -1]).exp(),),
    "clone of an input, returned": lambda x: (x.clone(), x.exp()),
    "clone of an input, returned through a view": lambda x: (aten.view(x.clone(), [12]), x.exp()),
}


@pytest.mark.parametrize("name", GONE)
def test_gone(name: str) -> None:
    captured = traced(GONE[name], X)
    after = remove_noops(captured)
    assert operators(after) == ["exp.default"]
    assert len(operators(captured)) > 1
    torch.testing.assert_close(run(after, X), run(captured, X))


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    captured = traced(KEPT[name], X)
    assert operators(remove_noops(captured)) == operators(captured)


def test_value_kept_for_backward_is_copied_even_if_invisible() -> None:
    captured = traced(lambda x: (x.exp(), x.clone()), X, visible=frozenset({0}))
    assert operators(remove_noops(captured)) == ["exp.default", "clone.default"]


def test_copy_into_an_input_needs_no_copy_of_its_own() -> None:
    captured = traced(lambda x: (x.exp().clone(), x.sum()), X, mutations=((0, 0),))
    after = remove_noops(captured)
    assert operators(after) == ["exp.default", "sum.default"]


def test_scalar_tensor_is_full() -> None:
    after = remove_noops(traced(lambda x: (x + aten.scalar_tensor(2.0, dtype=torch.float32),), X))
    assert operators(after) == ["full.default", "add.Tensor"]
    torch.testing.assert_close(run(after, X), (X + 2,))


def test_assertions_go() -> None:
    captured = traced(lambda x: (x.exp(),), X)
    (node,) = captured.graph.graph.find_nodes(op="call_function", target=aten.exp.default)
    check = aten._assert_tensor_metadata.default  # noqa: SLF001
    with captured.graph.graph.inserting_before(node):
        captured.graph.graph.call_function(check, (node.args[0], [3, 4]))
    assert operators(captured) == ["_assert_tensor_metadata.default", "exp.default"]
    assert operators(drop_assertions(captured)) == ["exp.default"]


def one_hot(places: torch.Tensor) -> tuple[torch.Tensor]:
    inside = aten.ge.Scalar(places, 0).all(), aten.lt.Scalar(places, 4).all()
    for each in inside:
        aten._assert_async.msg(each, "outside")  # noqa: SLF001
    return (places[:, None] == torch.arange(4),)


IN_RANGE: dict[str, Callable[[torch.Tensor], Any]] = {
    "topk": lambda x: one_hot(x.topk(2)[1].flatten()),
    "topk of columns": lambda x: one_hot(aten.topk(x, 2, 0)[1].flatten()),
    "sort": lambda x: one_hot(aten.sort.stable(x, stable=True, dim=1)[1][0]),
    "argmax": lambda x: one_hot(x.argmax(1)),
    "remainder": lambda x: one_hot(x[0].long() % 4),
    "clamp": lambda x: one_hot(x[0].long().clamp(0, 3)),
}
OUT_OF_RANGE: dict[str, Callable[[torch.Tensor], Any]] = {
    "values": lambda x: one_hot(x[0].long()),
    "argmax of all": lambda x: one_hot(x.argmax()[None]),
    "sort of more": lambda x: one_hot(aten.sort.stable(x.view(2, 6), stable=True, dim=1)[1][0]),
    "remainder": lambda x: one_hot(x[0].long() % 5),
    "clamp": lambda x: one_hot(x[0].long().clamp(0)),
}


@pytest.mark.parametrize("name", IN_RANGE)
def test_checks_of_places_that_are_in_range_go(name: str) -> None:
    assert "_assert_async.msg" not in operators(drop_assertions(traced(IN_RANGE[name], X)))


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_checks_of_other_values_stay(name: str) -> None:
    after = operators(drop_assertions(traced(OUT_OF_RANGE[name], X)))
    assert "_assert_async.msg" in after


def test_input_graph_is_not_changed() -> None:
    captured = traced(GONE["several in a row"], X)
    before = operators(captured)
    remove_noops(captured)
    assert operators(captured) == before


SHARED: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {
    "of a computed value": (lambda x: (x.exp().clone().sin(),), 0),
    "of an input": (lambda x: (x.clone().sin(),), 1),
    "that leaves": (lambda x: (x.exp().clone(),), 1),
    "whose source leaves": (lambda x: (y := x.exp(), y.clone().sin()), 1),
    "that leaves through a view": (lambda x: (x.exp().clone().view(12),), 1),
    "that is written": (lambda x: (aten.add_(x.exp().clone(), 1).sin(),), 1),
    "whose source is written": (lambda x: ((y := x.exp()).clone().sin(), aten.add_(y, 1).sin()), 1),
}


@pytest.mark.parametrize("name", SHARED)
def test_copies_that_are_dropped_before_saving(name: str) -> None:
    function, left = SHARED[name]
    captured = traced(function, X)
    wanted = run(captured, X)
    drop_copies(captured.graph)
    assert operators(captured).count("clone.default") == left
    torch.testing.assert_close(run(captured, X), wanted)
