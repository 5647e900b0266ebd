"""Constant attention masks, before dispatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from optfuse.compiler.frontend.passes.attention import mask_meaning, simplify_attention_masks

N = 5
TRIANGLE = torch.ones(N, N, dtype=torch.bool).tril()
ADDED = torch.zeros(N, N).masked_fill(~TRIANGLE, -torch.inf)


@pytest.mark.parametrize(
    ("mask", "meaning"),
    [
        (torch.ones(2, 1, 3, N, dtype=torch.bool), "all"),
        (torch.zeros(3, N), "all"),
        (TRIANGLE, "causal"),
        (TRIANGLE.expand(2, 3, N, N), "causal"),
        (ADDED, "causal"),
        (TRIANGLE.t(), None),
        (TRIANGLE[1:], None),
        (ADDED * 0.5 + 1, None),
        (ADDED.clamp(min=-100), None),
        (torch.zeros(N, N, dtype=torch.bool), None),
        (torch.ones(N, dtype=torch.bool), None),
        (torch.ones(0, N, dtype=torch.bool), None),
    ],
)
def test_meaning(mask: torch.Tensor, meaning: str | None) -> None:
    assert mask_meaning(mask) == meaning


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    class Model(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    return torch.export.export(Model(), inputs, strict=False).graph_module


def call_of(graph: torch.fx.GraphModule) -> torch.fx.Node:
    (node,) = [n for n in graph.graph.nodes if "scaled_dot_product" in str(n.target)]
    return node


def positions(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, torch.arange(N)[:, None] >= torch.arange(N))


def by_shape(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, q, q, attn_mask=torch.ones_like(q[:, :1, :, :1]).bool().expand(-1, 1, N, N)
    )


def filled(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(N, N, dtype=torch.bool)
    mask[0, 1:].zero_()
    return F.scaled_dot_product_attention(q, q, q, mask)


def given(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, mask)


def windowed(q: torch.Tensor) -> torch.Tensor:
    mask = (torch.arange(N)[:, None] - torch.arange(N)).abs() < 2
    return F.scaled_dot_product_attention(q, q, q, mask)


Q = torch.arange(2.0 * 3 * N * 4).sin().reshape(2, 3, N, 4)


@pytest.mark.parametrize(("function", "causal"), [(positions, True), (by_shape, False)])
def test_mask_goes(function: Callable[..., Any], causal: bool) -> None:
    graph = graph_of(function, Q)
    after = simplify_attention_masks(graph, {})
    call = call_of(after)
    assert len(call.all_input_nodes) == 1
    assert call.kwargs.get("is_causal", False) is causal
    assert len(call_of(graph).all_input_nodes) == 2
    torch.testing.assert_close(after(Q)[0], function(Q))


@pytest.mark.parametrize("function", [filled, windowed])
def test_mask_that_says_something_stays(function: Callable[..., Any]) -> None:
    after = simplify_attention_masks(graph_of(function, Q), {})
    assert len(call_of(after).all_input_nodes) == 2
    torch.testing.assert_close(after(Q)[0], function(Q))


def test_mask_given_as_input_stays() -> None:
    mask = torch.ones(N, N, dtype=torch.bool)
    after = simplify_attention_masks(graph_of(given, Q, mask), {})
    assert len(call_of(after).all_input_nodes) == 2


def test_works_on_graphs_of_torch_functions() -> None:
    graph = torch.fx.symbolic_trace(positions)
    (name,) = [node.target for node in graph.graph.find_nodes(op="get_attr")]
    after = simplify_attention_masks(graph, {name: getattr(graph, name)})
    assert call_of(after).kwargs["is_causal"] is True
    torch.testing.assert_close(after(Q), positions(Q))


def test_a_mask_of_torch_functions_is_read() -> None:
    """As torch.compile hands it over, with Python's operators: ``operator.and_`` writes nothing, despite its name."""
    seen: list[torch.fx.Node] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        seen.append(call_of(simplify_attention_masks(graph, {})))
        return graph

    def function(q: torch.Tensor) -> torch.Tensor:
        places = torch.arange(N)
        mask = (places[None, :] <= places[:, None]) & torch.ones((), dtype=torch.bool)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    torch.compiler.reset()
    torch.compile(function, backend=keep, fullgraph=True)(Q)
    (call,) = seen
    assert call.kwargs == {"is_causal": True}
    assert len(call.all_input_nodes) == 1
