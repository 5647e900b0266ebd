"""Activations in matmuls and biases out of them: when, and that results stay."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from optfuse.compiler.frontend import Captured, capture, capture_training
from tests.compiler.frontend.running import call

BF16 = torch.bfloat16


class Layers(nn.Module):
    """Two linear layers and something between."""

    def __init__(self, function: Callable[[Layers, Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.function = function
        self.up, self.down = nn.Linear(16, 24, bias=bias), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def by_hand(x: Tensor) -> Tensor:
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def with_use(m: Layers, x: Tensor) -> Tensor:
    y = m.up(x)
    return m.down(F.relu(y)) + y.mean()


def targets(captured: Captured) -> list[str]:
    wanted = {"addmm", "mm", "addmm_activation"}
    names = [
        str(n.target).split(".")[1]
        for n in captured.graph.graph.nodes
        if n.op == "call_function" and "." in str(n.target)
    ]
    return [name for name in names if name in wanted]


FUSED: dict[str, Callable[[Layers, Tensor], Tensor]] = {
    "relu": lambda m, x: m.down(F.relu(m.up(x))),
    "gelu": lambda m, x: m.down(F.gelu(m.up(x), approximate="tanh")),
    "gelu of transformers": lambda m, x: m.down(NewGELUActivation()(m.up(x))),
    "gelu by hand": lambda m, x: m.down(by_hand(m.up(x))),
    "relu as a maximum": lambda m, x: m.down(m.up(x).clamp(min=0)),
    "read elsewhere too": lambda m, x: m.down(y := F.relu(m.up(x))) + y.mean(),
}
APART: dict[str, Callable[[Layers, Tensor], Tensor]] = {
    "gelu by erf": lambda m, x: m.down(F.gelu(m.up(x))),
    "leaky": lambda m, x: m.down(F.leaky_relu(m.up(x))),
    "read by loops alone": lambda m, x: F.relu(m.up(x)).sum(-1),
    "scaled by another": lambda m, x: m.down(F.relu(m.up(x) * m.down.weight[0])),
    "operand is read": with_use,
}


@pytest.mark.spread(8)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", [*FUSED, *APART])
def test_activations(name: str, bias: bool) -> None:
    torch.manual_seed(0)
    model, x = Layers({**FUSED, **APART}[name], bias).eval().to(BF16), torch.randn(2, 5, 16).to(BF16)
    captured = capture(model, (x,), name="model")
    assert ("addmm_activation" in targets(captured)) == (name in FUSED)
    with torch.no_grad():
        eager, ours = model(x), call(captured, model, (x,), {})
        exact = model.double()(x.double())
    error = (ours.double() - exact).norm() / exact.norm()
    assert error < max(1.5 * ((eager.double() - exact).norm() / exact.norm()), 4e-3)


def test_not_in_float32() -> None:
    assert "addmm_activation" not in targets(capture(Layers(FUSED["relu"]), (torch.randn(3, 16),), name="model"))


def test_biases_go_where_loops_read() -> None:
    x = torch.randn(3, 16)
    assert targets(capture(Layers(APART["gelu by erf"]), (x,), name="model")) == [
        "mm",
        "addmm",
    ]  # the second is returned
    assert targets(capture(Layers(APART["read by loops alone"]), (x,), name="model")) == ["mm"]
    assert targets(capture(Layers(lambda m, x: m.down(m.up(x)) * 2), (x,), name="model")) == ["addmm", "mm"]


def test_in_training_the_raw_product_is_kept() -> None:
    forward, backward = capture_training(Layers(lambda m, x: m.down(F.gelu(m.up(x))).sum()), (torch.randn(3, 16),))
    assert targets(forward) == ["mm", "mm"]
    product = forward.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)[0]
    assert product in forward.outputs
    assert len(targets(backward)) == 3
