"""Multi-head attention of which the caller reads the result alone: no weights are made, and the result is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import optfuse
from optfuse.compiler.frontend.passes.attention_weights import drop_attention_weights

WIDTH, HEADS, ROWS = 64, 4, 40
BLOCKED = torch.zeros(ROWS, ROWS, dtype=torch.bool).triu(1)


class Attending(nn.Module):
    """Self-attention by ``nn.MultiheadAttention``; what of its two results is returned, and its further arguments."""

    def __init__(self, read: Callable[[Any], Any] = lambda results: results[0], **further: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.read, self.further = nn.MultiheadAttention(WIDTH, HEADS), read, further

    def forward(self, x: torch.Tensor) -> Any:
        """Of rows (ROWS, batch, WIDTH)."""
        return self.read(self.attention(x, x, x, **self.further))


def rows(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(ROWS, 2, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def asked(model: nn.Module, x: torch.Tensor) -> tuple[Any, bool]:
    """The result of the rewritten graph, and whether its attention is asked for weights."""
    needs: list[bool] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        changed = drop_attention_weights(graph)
        changed.graph.lint()
        needs.extend(node.kwargs["need_weights"] for node in changed.graph.nodes if "need_weights" in node.kwargs)
        return changed

    torch.compiler.reset()
    return torch.compile(model, backend=backend, fullgraph=True)(x), needs == [True]


def test_weights_that_nothing_reads_are_not_asked_for() -> None:
    model = Attending().bfloat16()
    result, needs = asked(model, rows())
    assert not needs
    with torch.no_grad():
        exact = model.float()(rows().float())
        eager = model.bfloat16()(rows())
    assert float((result.detach().float() - exact).norm()) <= 1.2 * float((eager.float() - exact).norm())


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (Attending(lambda results: results), torch.bfloat16),
        (Attending(), torch.float32),
        (Attending(attn_mask=BLOCKED), torch.bfloat16),
    ],
    ids=["read", "single precision", "a mask"],
)
def test_else_they_are(model: Attending, dtype: torch.dtype) -> None:
    model = model.to(dtype)
    result, needs = asked(model, rows(dtype))
    assert needs
    torch.testing.assert_close(result, model(rows(dtype)))


def test_an_exported_model_is_one_operator_too() -> None:
    """Its weights' mean is in the graph, and nothing reads it."""
    schedule = optfuse.optimize(Attending().bfloat16().eval().requires_grad_(False), (rows(),))
    assert "aten.scaled_dot_product_attention.default" in schedule.library_ops
    assert "aten.bmm.default" not in schedule.library_ops


def test_gradients_are_as_exact_as_in_eager_execution() -> None:
    model, exact = Attending().bfloat16(), Attending()
    exact.load_state_dict(model.state_dict())  # as rounded
    found = []
    for each, x in ((exact, rows().float()), (model, rows()), (torch.compile(model, backend="optfuse"), rows())):
        each(x).float().square().sum().backward()
        found.append([p.grad.float() for p in each.parameters()])
        model.zero_grad(set_to_none=True)
    for truth, eager, ours in zip(*found, strict=True):
        assert float((ours - truth).norm()) <= 1.5 * float((eager - truth).norm()) + 1e-3 * float(truth.norm())
