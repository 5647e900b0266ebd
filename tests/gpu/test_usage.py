"""Loops as users write them, with CUDA graphs from the second call on: each ends where eager execution ends.

A model in several graphs, layers that are compiled each by itself, gradients that add up, outputs that are kept, models
that take turns. What one recording writes must never be what another one's results are read from.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from optfuse.torch_compile.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("graphs_at_once", "exact_products"),
]

DEVICE = "cuda"
STEPS = 6
Compile = Callable[[Any], Any]
Loop = Callable[[nn.Module, Compile], list[torch.Tensor]]


class Block(nn.Module):
    """A layer with attention, whose saved values are of many sizes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(functional.gelu(self.wide(functional.layer_norm(x, (width,)))))


class Net(nn.Module):
    """Layers with, if wanted, breaks of the graph between them."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.layers, self.head, self.breaks = nn.ModuleList(Block() for _ in range(3)), nn.Linear(64, 24), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if self.breaks:
                torch._dynamo.graph_break()  # noqa: SLF001 - its public face
        return self.head(x.relu())


class Remembering(Net):
    """Layers whose values are computed again in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x.relu())


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)


def batch(k: int, rows: int = 4) -> torch.Tensor:
    """Inputs by number."""
    return torch.randn(rows, 32, 64, generator=torch.Generator().manual_seed(k)).to(DEVICE)


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def stepping(model: nn.Module, compile_: Compile, *, set_to_none: bool, micro: int = 1) -> list[torch.Tensor]:
    call, optimizer, losses = compile_(model), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for k in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        for j in range(micro):
            loss = call(batch(10 * k + j)).square().mean()
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return [*losses, *parameters(model)]


def plain(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    return stepping(model, compile_, set_to_none=True)


def gradients_in_place(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    return stepping(model, compile_, set_to_none=False)


def accumulation(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    return stepping(model, compile_, set_to_none=True, micro=3)


def pairs(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    """Two forward calls before one backward call, as contrastive losses have them."""
    call, optimizer = compile_(model), torch.optim.SGD(model.parameters(), lr=0.05)
    for k in range(STEPS):
        optimizer.zero_grad()
        a, b = call(batch(k)), call(batch(k + 100))
        (functional.mse_loss(a, b) + a.abs().mean()).backward()
        optimizer.step()
    return parameters(model)


def kept_outputs(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    call = compile_(model)
    with torch.no_grad():
        first = [call(batch(k)) for k in range(STEPS)]
    return [*first, *(call(batch(k)) for k in range(STEPS))]


def evaluation_between(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    call, optimizer = compile_(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = []
    for k in range(STEPS):
        optimizer.zero_grad()
        call(batch(k)).square().mean().backward()
        with torch.no_grad():
            seen.append(call(batch(50 + k)))
        optimizer.step()
    return [*seen, *parameters(model)]


def two_models(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    """One makes what the other judges, and both learn, in turn."""
    judge = copy.deepcopy(model)
    made, judged = compile_(model), compile_(judge)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02) for m in (model, judge)]
    for k in range(STEPS):
        optimizers[1].zero_grad()
        fake = functional.pad(made(batch(k)), (0, 40))
        (judged(fake.detach()).mean() - judged(batch(k + 9)).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judged(functional.pad(made(batch(k)), (0, 40))).square().mean().backward()
        optimizers[0].step()
    return [*parameters(model), *parameters(judge)]


def backward_twice(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    call = compile_(model)
    for k in range(STEPS):
        loss = call(batch(k)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def sizes_in_turn(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    call, optimizer = compile_(model), torch.optim.SGD(model.parameters(), lr=0.05)
    for k in range(3 * STEPS):
        optimizer.zero_grad()
        call(batch(k, rows=(4, 6, 4, 3)[k % 4])).square().mean().backward()
        optimizer.step()
    return parameters(model)


def parameters_replaced(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    call, seen = compile_(model), []
    for k in range(2 * STEPS):
        if k % 4 == 3:
            model.load_state_dict({n: x * 0.9 for n, x in model.state_dict().items()}, assign=True)
            model.requires_grad_(requires_grad=True)
        model.zero_grad()
        call(batch(k)).square().mean().backward()
        seen += [p.grad for p in model.parameters() if p.grad is not None]
    return seen


def averaged(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    """A copy follows the weights and teaches; losses are added up on the device and gradients clipped."""
    teacher = copy.deepcopy(model).requires_grad_(requires_grad=False)
    call, taught, total = compile_(model), compile_(teacher), torch.zeros((), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for k in range(STEPS):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = taught(batch(k))
        loss = functional.mse_loss(call(batch(k) + 0.1), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total += loss.detach()
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), model.parameters(), strict=True):
                p.lerp_(q, 0.1)
    return [total, *parameters(teacher)]


def in_threads(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    call, found = compile_(model), dict[int, torch.Tensor]()
    with torch.no_grad():
        call(batch(0))

    def work(first: int) -> None:
        with torch.no_grad():
            for k in range(first, first + STEPS):
                found[k] = call(batch(k)).clone()

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[k] for k in sorted(found)]


def layer_by_layer(model: nn.Module, compile_: Compile) -> list[torch.Tensor]:
    """Each layer compiled by itself: they share a program."""
    for layer in model.layers:  # type: ignore[union-attr]
        layer.forward = compile_(layer.forward)  # type: ignore[union-attr]
    return stepping(model, lambda whole: whole, set_to_none=True, micro=2)


LOOPS: list[Loop] = [
    plain,
    gradients_in_place,
    accumulation,
    pairs,
    kept_outputs,
    evaluation_between,
    two_models,
    backward_twice,
    sizes_in_turn,
    parameters_replaced,
    averaged,
    in_threads,
    layer_by_layer,
]


@pytest.mark.parametrize("kind", ["whole", "breaks", "checkpointed"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loop(loop: Loop, kind: str) -> None:
    model: nn.Module = Remembering() if kind == "checkpointed" else Net(breaks=kind == "breaks")
    other, model = copy.deepcopy(model).to(DEVICE), model.to(DEVICE)
    wanted = loop(other, lambda whole: whole)
    got = loop(model, lambda whole: torch.compile(whole, backend=backend, options={"time_limit": 2, "workers": 1}))
    assert len(got) == len(wanted)
    for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4, msg=lambda text, k=k: f"value {k}: {text}")


class Dropping(nn.Module):
    """Attention that drops scores, which is linear in its values."""

    def forward(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, q, v, dropout_p=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_drops_the_same_in_the_backward_pass(dtype: torch.dtype) -> None:
    """So a result is its gradient times the values, whether calls are launched, recorded or replayed."""
    fast = torch.compile(Dropping(), backend=backend, options={"time_limit": 2, "workers": 1})
    for k in range(STEPS):
        q, v = (torch.randn(2, 4, 128, 64, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(2))
        y = fast(q, v)
        y.backward(y.detach())
        assert v.grad is not None
        squares, products = float(y.detach().double().square().sum()), float((v.grad.double() * v.detach()).sum())
        assert abs(squares - products) < 0.02 * squares, k  # other draws would halve the latter
