"""Masks of changing sizes: their elements as functions of positions, against the masks themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from optfuse.compiler.frontend.graph.index_elements import Chosen, Element, Holds
from optfuse.compiler.frontend.graph.index_values import Patterns
from optfuse.compiler.frontend.passes.attention import simplify_attention_masks

Make = Callable[[int, int], Tensor]


def by_comparison(batch: int, length: int) -> Tensor:
    return torch.arange(length)[None, :] <= torch.arange(length)[:, None]


def packed(batch: int, length: int) -> Tensor:
    """The mask of causal attention over sequences that may be packed in one row, of which there is one here."""
    positions = (torch.arange(length) + 0).unsqueeze(0).expand(batch, -1)
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    sequence = (steps != 1).cumsum(-1)
    rows = torch.arange(batch)[:, None, None, None]
    queries, keys = torch.arange(length)[None, None, :, None], torch.arange(length)[None, None, None, :]
    same = sequence[rows, queries] == sequence[rows, keys]
    seen = positions[rows, keys] <= positions[rows, queries]
    return (queries.new_ones((), dtype=torch.bool) & same & seen).expand(batch, -1, length, length)


def triangle(batch: int, length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def added(batch: int, length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def everything(batch: int, length: int) -> Tensor:
    kept = torch.ones(batch, length)[:, None, None, :].expand(batch, 1, length, length)
    return (1.0 - kept) * -1e9


def both_ways(batch: int, length: int) -> Tensor:
    """The mask that transformers make for attention to all positions."""
    queries = (torch.arange(length) + 0)[None, None, :, None]
    return (queries >= 0).expand(batch, -1, length, length)


def but_the_first(batch: int, length: int) -> Tensor:
    return (torch.arange(length)[None, :] - 1 >= 0).expand(length, length)


def window(batch: int, length: int) -> Tensor:
    keys, queries = torch.arange(length)[None, :], torch.arange(length)[:, None]
    return (keys <= queries) & (keys > queries - 3)


def up_to_twenty(batch: int, length: int) -> Tensor:
    return (torch.arange(length) < 20).expand(length, length)


def written(batch: int, length: int) -> Tensor:
    mask = torch.ones(length, length, dtype=torch.bool)
    mask[0] = False
    return mask


def written_through_a_view(batch: int, length: int) -> Tensor:
    mask = torch.ones(length, length, dtype=torch.bool)
    mask.view(-1)[:1].fill_(False)
    return mask


def beside_a_write(batch: int, length: int) -> Tensor:
    buckets = torch.arange(length)
    buckets += 1
    return everything(batch, length)


CASES: Mapping[Make, str] = {
    by_comparison: "causal",
    packed: "causal",
    triangle: "causal",
    added: "causal",
    everything: "all",
    both_ways: "all",
    but_the_first: "mask",
    window: "mask",
    up_to_twenty: "mask",
    written: "mask",
    written_through_a_view: "mask",
    beside_a_write: "all",
}


def traced(make: Make) -> GraphModule:
    """The graph of attention under a mask, from torch.compile, for any batch and length."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, inputs: Any) -> GraphModule:
        graphs.append(graph)
        return graph

    def attention(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=make(x.shape[0], x.shape[2]))

    torch._dynamo.reset()  # noqa: SLF001 - its public face
    with torch.no_grad():
        torch.compile(attention, backend=keep, dynamic=True)(torch.randn(3, 2, 5, 4))
    return graphs[0]


@pytest.mark.spread(4, 1)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_masks_of_changing_sizes_are_known_by_their_positions(make: Make) -> None:
    graph = simplify_attention_masks(traced(make), {})
    (call,) = [node for node in graph.graph.nodes if "scaled_dot_product" in str(node.target)]
    found = "mask" if call.kwargs.get("attn_mask") is not None else "causal" if call.kwargs.get("is_causal") else "all"
    assert found == CASES[make]


def test_operators_are_known_as_functions_and_as_methods() -> None:
    graph = traced(packed)
    compared = [node for node in graph.graph.nodes if node.target in (operator.eq, operator.ne, operator.le)]
    assert len(compared) == 3
    for node in compared:  # as torch 2.11 writes some of them
        node.op, node.target = "call_method", f"__{node.target.__name__}__"
    simplified = simplify_attention_masks(graph, {})
    (call,) = [node for node in simplified.graph.nodes if "scaled_dot_product" in str(node.target)]
    assert call.kwargs.get("is_causal")


class Watched(Interpreter):
    """Runs a graph and keeps the value of each node."""

    def run_node(self, n: Node) -> Any:
        self.values: dict[Node, Any] = getattr(self, "values", {})
        self.values[n] = super().run_node(n)
        return self.values[n]


@pytest.mark.spread(4)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_elements_are_those_of_the_tensors(make: Make) -> None:
    graph = traced(make)
    patterns = Patterns(graph)
    x = torch.randn(2, 2, 7, 4)
    sizes = {str(node.name): node for node in graph.graph.find_nodes(op="placeholder")}
    given = [_given(node, x) for node in sizes.values()]
    watched = Watched(graph)
    watched.run(*given)
    found = 0
    for node, value in watched.values.items():
        pattern = patterns.of(node)
        if pattern is None:
            continue
        for index in product(*map(range, value.shape)):
            element = pattern.at(tuple(sympy.Integer(i) for i in index))
            if element is not None:
                found += 1
                assert _number(element) == value[index].item(), (node, index)
    assert found or make in (written, written_through_a_view)


def _given(node: Node, x: Tensor) -> Any:
    value = node.meta["example_value"]
    if isinstance(value, Tensor):
        return x
    return x.shape[2] if int(value) == 5 else {3: x.shape[0], 2: x.shape[1], 4: x.shape[3]}[int(value)]


def _number(element: Element) -> float | bool:
    if isinstance(element, Chosen):
        return element.first if _number(element.condition) else element.second
    if isinstance(element, Holds):
        return all(bool(expression >= 0) for expression in element.expressions)
    return element if isinstance(element, bool) else float(element)  # type: ignore[arg-type]
