"""Convolutions with their batch norm, residual and ReLU as one call: what is fused, what is not, and the results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.frontend import Captured, capture
from optfuse.compiler.frontend.aot_autograd.aot import as_traced
from optfuse.compiler.frontend.dynamo_backend import make_backend
from tests.compiler.frontend.running import call, capture_and_compare

BF16 = torch.bfloat16


class Block(nn.Module):
    """Two convolutions with norms, and what a function makes of them."""

    def __init__(self, function: Callable[[Block, Tensor], Tensor], groups: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.function = function
        self.one = nn.Conv2d(8, 8, 3, 1, 1, groups=groups, bias=bias)
        self.two = nn.Conv2d(8, 8, 1, bias=bias)
        self.norm, self.other = nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)
        for norm in (self.norm, self.other):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def fused(captured: Captured) -> list[bool]:
    """Whether each fused call has a residual."""
    target = torch.ops.optfuse.convolution_relu.default
    return [node.args[3] is not None for node in captured.graph.graph.find_nodes(op="call_function", target=target)]


def residual(m: Block, x: Tensor) -> Tensor:
    x = F.relu(m.one(x))
    return F.relu(x + m.norm(m.two(x)))


def in_place(m: Block, x: Tensor) -> Tensor:
    x = F.relu(m.norm(m.one(x)), inplace=True)
    out = m.other(m.two(x))
    out += x
    return F.relu(out, inplace=True)


def twice_used(m: Block, x: Tensor) -> Tensor:
    y = m.one(x)
    return F.relu(m.norm(y)) + y.mean()


def write_shared(m: Block, x: Tensor) -> Tensor:
    y = F.relu(m.norm(m.one(x)))
    z = F.relu(m.two(y))
    y += 1
    return z * y


CASES: dict[str, tuple[Callable[[Block, Tensor], Tensor], list[bool]]] = {
    "no norm": (lambda m, x: F.relu(m.one(x)), [False]),
    "norm": (lambda m, x: F.relu(m.norm(m.one(x))), [False]),
    "norm without weights": (lambda m, x: F.relu(m.other(m.one(x))), [False]),
    "residual": (residual, [False, True]),
    "in place": (in_place, [False, True]),
    "norms on both sides": (lambda m, x: F.relu(m.norm(m.one(x)) + m.other(m.two(x))), [True]),
    "convolutions on both sides": (lambda m, x: F.relu(m.one(x) + m.two(x)), [True]),
    "broadcast": (lambda m, x: F.relu(m.norm(m.one(x)) + m.two(x).mean((2, 3), keepdim=True)), []),
    "used twice": (twice_used, []),
    "shared and written": (write_shared, []),
    "other activation": (lambda m, x: F.gelu(m.norm(m.one(x))), []),
}


@pytest.mark.spread(8)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, bias: bool) -> None:
    function, expected = CASES[name]
    torch.manual_seed(0)
    model = Block(function, bias=bias).eval().to(BF16)
    x = torch.randn(2, 8, 6, 5).to(BF16)
    captured = capture(model, (x,), name="model")
    assert fused(captured) == expected
    with torch.no_grad():
        eager = model(x)
        ours = call(captured, model, (x,), {})
        exact = model.double()(x.double())
    error = (ours.double() - exact).norm() / exact.norm()
    assert error < max(1.5 * ((eager.double() - exact).norm() / exact.norm()), 4e-3)


def compiled(model: nn.Module, *, dynamic: bool = False) -> tuple[Callable[[Tensor], Tensor], list[Captured]]:
    """A model as torch.compile runs it, and its graphs as they come."""
    found: list[Captured] = []

    def run(captured: Captured) -> Callable[..., object]:
        found.append(captured)
        return as_traced(captured)

    torch.compiler.reset()
    return torch.compile(model, backend=make_backend(run), fullgraph=True, dynamic=dynamic), found


@pytest.mark.spread(4, 1)
@pytest.mark.parametrize("name", CASES)
def test_as_torch_compile_traces_it(name: str) -> None:
    function, expected = CASES[name]
    torch.manual_seed(0)
    model = Block(function, bias=True).eval().to(BF16)
    x = torch.randn(2, 8, 6, 5).to(BF16)
    run, found = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=0.05, atol=0.05)
    assert list(map(fused, found)) == [expected]


@pytest.mark.parametrize(("frozen", "mode"), [(True, torch.enable_grad), (False, torch.inference_mode)])
def test_without_gradients(frozen: bool, mode: Callable[[], torch.inference_mode]) -> None:
    model = Block(CASES["in place"][0]).eval().to(BF16).requires_grad_(not frozen)
    x = torch.randn(2, 8, 6, 5).to(BF16)
    run, found = compiled(model)
    with mode():
        torch.testing.assert_close(run(x), model(x), rtol=0.05, atol=0.05)
    assert list(map(fused, found)) == [[False, True]]


def test_not_where_a_gradient_is_wanted() -> None:
    model = Block(CASES["norm"][0]).eval().to(BF16)
    run, found = compiled(model)
    run(torch.randn(2, 8, 6, 5).to(BF16)).sum().backward()
    assert found
    assert not any(map(fused, found))


def in_place_elsewhere(m: Block, x: Tensor) -> Tensor:
    y = F.relu(m.norm(m.one(x)))
    F.hardswish(x, inplace=True)
    return y + x


def written_view(m: Block, x: Tensor) -> Tensor:
    x = x * 2
    F.elu(x[:, :4], inplace=True)
    return F.relu(m.norm(m.one(x)))


@pytest.mark.parametrize("function", [in_place_elsewhere, written_view])
def test_not_beside_writes_that_others_see(function: Callable[[Block, Tensor], Tensor]) -> None:
    model = Block(function).eval().to(BF16)
    x = torch.randn(2, 8, 6, 5).to(BF16)
    run, found = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x.clone()), model(x.clone()), rtol=0.05, atol=0.05)
    assert list(map(fused, found)) == [[]]


def test_left_alone() -> None:
    function = CASES["norm"][0]
    x = torch.randn(2, 8, 6, 5)
    assert fused(capture_and_compare(Block(function).eval(), (x,))) == []  # float32
    assert fused(capture(Block(function, groups=8).eval().to(BF16), (x.to(BF16),))) == []
    assert fused(capture(Block(function).train().to(BF16), (x.to(BF16),))) == []


class UnderScored(nn.Module):
    """A parameter that is called as torch calls what writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_ = nn.Parameter(torch.randn(8, 8, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, self.weight_, padding=1))


def test_a_parameter_that_is_called_like_a_write() -> None:
    captured = capture(UnderScored().eval().to(BF16), (torch.randn(2, 8, 6, 5).to(BF16),), name="model")
    assert fused(captured) == [False]


def test_weights_may_change_between_calls() -> None:
    model = Block(CASES["norm"][0], bias=True).eval().to(BF16)
    x = torch.randn(2, 8, 6, 5).to(BF16)
    captured = capture(model, (x,), name="model")
    with torch.no_grad():
        model.norm.weight.mul_(-2)
        model.one.bias.add_(1)
        torch.testing.assert_close(call(captured, model, (x,), {}), model(x), rtol=0.05, atol=0.05)
