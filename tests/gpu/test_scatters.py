"""Sums at places that data tell, on a GPU: of few terms in the half type itself, of many in float32, and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Messages(nn.Module):
    """A layer of a graph network: messages along edges, summed where they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 40)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        nodes = self.layer(x)
        messages = nodes.index_select(0, source).relu()
        return torch.zeros_like(nodes).scatter_add(0, target[:, None].expand_as(messages), messages)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("edges", [1500, 8009, 100_000])  # fewer than nodes, 8 a node, 100 a node
def test_messages(edges: int, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Messages().cuda().to(dtype)
    exact = Messages().cuda().double()
    exact.load_state_dict(model.state_dict())
    x = torch.randn(1001, 64, device="cuda", dtype=dtype)
    source, target = torch.randint(1001, (2, edges), device="cuda")
    outcomes = []
    for run in (torch.compile(model, backend="optfuse"), model, exact):
        net = exact if run is exact else model
        leaf = x.to(net.layer.weight.dtype).clone().requires_grad_()
        net.zero_grad()
        result = run(leaf, source, target)
        result.square().sum().backward()
        outcomes.append([result.detach(), leaf.grad, net.layer.weight.grad, net.layer.bias.grad])
    for ours, eager, truth in zip(*outcomes, strict=True):
        error, known = ((value - truth).norm() / truth.norm() for value in (ours.double(), eager.double()))
        assert error <= 2 * known + 1e-6


def test_rows_are_added_in_place() -> None:
    torch.compiler.reset()

    def add(total: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        total.index_add_(0, places, rows * 2)
        return total + 1

    total, rows = (torch.randint(-4, 5, (300, 24), device="cuda").bfloat16() for _ in range(2))
    places = torch.randint(300, (300,), device="cuda")
    ours, eager = total.clone(), total.clone()
    got, wanted = torch.compile(add, backend="optfuse")(ours, places, rows), add(eager, places, rows)
    assert torch.equal(got, wanted)
    assert torch.equal(ours, eager)
