"""The loop graph of a whole function, run by the interpreter, against eager execution of the function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from optfuse.compiler.frontend import capture, gather_inputs
from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.lower import lower
from tests.compiler.lower.eager import check, lowered

MODELS = Path(__file__).parents[2] / "models"
LOOSE = {"rtol": 1e-4, "atol": 1e-5}


def softmax(x):
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def attention(x, w):
    q, k, v = (x @ w).view(2, 7, 3, 2, 4).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(4)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    return (softmax(scores.masked_fill(~mask, -math.inf)) @ v).transpose(1, 2).reshape(2, 7, 8)


def layer_norm(x, w, b):
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * (var + 1e-5).rsqrt() * w + b


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def rotary(x):
    position = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = torch.cat([position, position], -1)
    half = x.shape[-1] // 2
    return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()


def shifted_windows(x):
    rolled = F.pad(x, (0, 0, 1, 0, 0, 2)).roll((-1, 2), (1, 2))
    windows = rolled.view(2, 4, 2, 3, 2, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 3)
    return windows.mean(1)


def loss(table, ids, targets):
    logits = table[ids] @ table.t()
    top = logits.amax(-1, keepdim=True)
    logs = logits - top - (logits - top).exp().sum(-1, keepdim=True).log()
    return -logs.gather(-1, targets[..., None]).mean(), logits.argmax(-1)


def gradient_of_a_layer(x, w, b):
    x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
    out = gelu(layer_norm(x, w, b)).square().mean()
    return torch.autograd.grad(out, (x, w, b))


def batch_statistics(x):
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt(), 0.9 * mean.flatten() + 0.1, var.squeeze()


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = {
    "softmax": (softmax, (randn(3, 5, 7),)),
    "attention": (attention, (randn(2, 7, 8), randn(8, 24))),
    "layer_norm": (layer_norm, (randn(4, 9), randn(9), randn(9))),
    "rotary": (rotary, (randn(2, 5, 6),)),
    "shifted_windows": (shifted_windows, (randn(2, 6, 5, 3),)),
    "loss": (loss, (randn(11, 4), torch.tensor([[0, 10, 3]]), torch.tensor([[2, 5, 5]]))),
    "gradient_of_a_layer": (gradient_of_a_layer, (randn(4, 9), randn(9), randn(9))),
    "batch_statistics": (batch_statistics, (randn(4, 3, 2, 5).contiguous(memory_format=torch.channels_last),)),
}


@pytest.mark.parametrize("name", CASES)
def test_function(name):
    function, inputs = CASES[name]
    graph, constants = lowered(function, *inputs)
    expected = pytree.tree_leaves(function(*inputs))
    for actual, wanted in zip(interpret(graph, inputs, constants), expected, strict=True):
        torch.testing.assert_close(actual, wanted, **LOOSE)


@pytest.mark.parametrize("name", CASES)
def test_double_is_the_oracle_of_float64(name):
    """The float32 graph in double mode agrees with eager on float64 inputs far beyond float32."""
    function, inputs = CASES[name]
    graph, constants = lowered(function, *inputs)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # arange / n is of the default dtype
    try:
        wide = [t.double() if t.is_floating_point() else t for t in inputs]
        expected = pytree.tree_leaves(function(*wide))
    finally:
        torch.set_default_dtype(default)
    for actual, wanted in zip(interpret(graph, inputs, constants, double=True), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-7, atol=1e-7)  # folded constants were rounded


@dataclass(frozen=True)
class Step:
    """One op of a random program: its name and the numbers that parametrise it."""

    name: str
    a: int
    b: int


UNARY = {
    "exp": lambda x, s: x.clamp(max=2).exp(),
    "permute": lambda x, s: x.transpose(s.a % x.dim(), s.b % x.dim()),
    "flatten": lambda x, s: x.flatten(),
    "unsqueeze": lambda x, s: x.unsqueeze(s.a % (x.dim() + 1)) if x.dim() < 4 else x,
    "slice": lambda x, s: x.narrow(s.a % x.dim(), s.b % x.shape[s.a % x.dim()], 1),
    "stride": lambda x, s: x[:: 1 + s.a % 2],
    "expand": lambda x, s: x.expand(2, *x.shape) if x.dim() < 4 else x,
    "sum": lambda x, s: x.sum(s.a % x.dim(), keepdim=True),
    "amax": lambda x, s: x.amax(s.a % x.dim(), keepdim=bool(s.b % 2)) if x.dim() > 1 else x,
    "mean": lambda x, s: x.mean(),
    "var": lambda x, s: x.var(s.a % x.dim(), correction=0, keepdim=True),
    "pad": lambda x, s: F.pad(x, (s.a % 3, s.b % 2), value=0.5),
    "flip": lambda x, s: x.flip(s.a % x.dim()),
    "roll": lambda x, s: x.roll(s.b, s.a % x.dim()),
    "repeat": lambda x, s: x.repeat(*[2 if d == s.a % x.dim() else 1 for d in range(x.dim())]),
    "half": lambda x, s: x.to(torch.float16),
    "wide": lambda x, s: x.to(torch.float32),
    "argmax": lambda x, s: x + x.argmax(s.a % x.dim(), keepdim=True),
    "take": lambda x, s: x.index_select(s.a % x.dim(), torch.tensor([0, x.shape[s.a % x.dim()] - 1])),
    "mask": lambda x, s: torch.where(torch.arange(x.shape[-1]) > s.a, x, 1.0),
    "clone": lambda x, s: x.contiguous().view(-1, 1),
}
BINARY = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y.tanh(),
    "less": lambda x, y: torch.where(x < y, x, y),
    "cat": lambda x, y: torch.cat([x.flatten(), y.flatten()]),
}
STEPS = st.builds(Step, st.sampled_from([*UNARY, *BINARY]), st.integers(0, 7), st.integers(0, 7))


def program(steps):
    """A function that applies the steps in turn, each to the latest value that has dimensions."""

    def run(x, y):
        values = [x, y]
        for step in steps:
            latest = values[-1] if values[-1].dim() else values[-1][None]
            if step.name in UNARY:
                values.append(UNARY[step.name](latest, step))
            else:
                other = values[step.a % len(values)]
                fits = all(m == n or 1 in (m, n) for m, n in zip(latest.shape[::-1], other.shape[::-1], strict=False))
                values.append(BINARY[step.name](latest, other) if fits or step.name == "cat" else latest + 1)
            if values[-1].numel() > 2000:
                values.append(values[-1].flatten()[:50])
        return tuple(values[2:])

    return run


@given(st.lists(STEPS, min_size=1, max_size=8), st.integers(0, 3))
def test_random_programs(steps, seed):
    generator = torch.Generator().manual_seed(seed)
    # integers keep sums exact and rich in ties; products stay small by tanh
    x = torch.randint(-3, 4, (3, 4), generator=generator).float()
    y = torch.randint(-3, 4, (4,), generator=generator).float()
    check(program(steps), x, y, rtol=2e-3, atol=2e-3)


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", ["mlp", "vit", "convnext"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_model(name, dtype):
    file = load_model_file(MODELS / f"{name}.py")
    model = file.model("small", dtype)
    args, kwargs = file.inputs("small", dtype)
    captured = capture(model, args, dict(kwargs), name=name)
    graph = lower(captured.graph, name=name, mutations=captured.mutations, constants=captured.constants)
    verify(graph)
    outputs = interpret(graph, gather_inputs(captured, model, args, dict(kwargs)), captured.constants)
    with torch.no_grad():
        expected = pytree.tree_leaves(model(*args, **kwargs))
    loose = {"rtol": 5e-2, "atol": 1e-2} if dtype == torch.bfloat16 else LOOSE
    for actual, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(actual, wanted, **loose)
