"""Seeds that are saved for attention's gradient, where a GPU's operators are traced without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from optfuse.compiler.frontend.passes.attention_seeds import save_no_seeds

aten = torch.ops.aten


def efficient(rate: float) -> Any:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Any:
        y, logs, *seeds = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, rate)  # noqa: SLF001
        none = q.new_empty(0)
        return y, *aten._scaled_dot_product_efficient_attention_backward(  # noqa: SLF001
            g, q, k, v, none, y, logs, *seeds, rate, [True, True, True, False]
        )

    return step


def flash(rate: float) -> Any:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Any:
        y, *more, seed, unused, _ = aten._scaled_dot_product_flash_attention(q, k, v, rate)  # noqa: SLF001
        return y, *aten._scaled_dot_product_flash_attention_backward(  # noqa: SLF001
            g, q, k, v, y, *more, rate, False, seed, unused
        )

    return step


def cudnn(rate: float) -> Any:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Any:
        y, logs, *more, seed, count, _ = aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
            q, k, v, None, True, rate
        )
        return y, *aten._scaled_dot_product_cudnn_attention_backward(  # noqa: SLF001
            g, q, k, v, y, logs, seed, count, None, *more, rate, False
        )

    return step


def traced(step: Any) -> GraphModule:
    with FakeTensorMode():
        x = [torch.empty(2, 4, 32, 16, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        return make_fx(step)(*x)


def positions(graph: GraphModule) -> list[int]:
    """Which of the attention's results are read."""
    graph.graph.eliminate_dead_code()
    return sorted(n.args[1] for n in graph.graph.nodes if "getitem" in n.name and "backward" not in n.args[0].name)


@pytest.mark.parametrize("attention", [efficient, flash, cudnn])
def test_seeds_are_saved_where_something_is_dropped(attention: Any) -> None:
    kept, before = traced(attention(0.3)), positions(traced(attention(0.3)))
    save_no_seeds(kept)
    assert positions(kept) == before
    graph = traced(attention(0.0))
    save_no_seeds(graph)
    assert len(positions(graph)) == len(before) - 2
    assert len(graph.graph.find_nodes(op="call_function", target=aten.full.default)) == 2
    given = [n.meta["val"].device.type for n in graph.graph.find_nodes(op="call_function", target=aten.full.default)]
    assert given == ["cuda", "cuda"]


@pytest.mark.parametrize("attention", [efficient, flash, cudnn])
def test_a_seed_left_out_has_the_fake_mode_of_the_graph(attention: Any) -> None:
    graph = traced(attention(0.0))
    save_no_seeds(graph)
    fakes = [leaf for node in graph.graph.nodes for leaf in tree_leaves(node.meta.get("val"))]
    assert len({id(leaf.fake_mode) for leaf in fakes if isinstance(leaf, FakeTensor)}) == 1
