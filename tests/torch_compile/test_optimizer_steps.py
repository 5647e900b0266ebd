"""Optimizer steps as torch.compile meets them: as eager computes them, in a small number of launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from tests.torch_compile.test_torch_compile import Compiler, compiled, fresh_dynamo

__all__ = ["compiled", "fresh_dynamo"]

SHAPES: tuple[tuple[int, ...], ...] = ((7,), (16, 8), (), (129,), (3, 5, 2), (0,), (1,), (33, 31), (64, 64))
if settings.default.max_examples < 100:  # all with ``--hypothesis-profile=nightly``: Dynamo traces the step for each
    SHAPES = (*SHAPES[:6], (33, 31))
Optimizers = dict[str, tuple[Callable[..., Any], dict[str, Any]]]
OPTIMIZERS: Optimizers = {
    "adamw": (torch.optim.AdamW, {"capturable": True}),
    "adamw on the host": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {"amsgrad": True, "capturable": True}),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True, "capturable": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"weight_decay": 0.1}),
    "nadam": (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (torch.optim.RAdam, {"weight_decay": 0.1}),
    "adamax": (torch.optim.Adamax, {"weight_decay": 0.1, "maximize": True}),
    "rprop": (torch.optim.Rprop, {}),
    "asgd": (torch.optim.ASGD, {"weight_decay": 0.1}),
}
#: Optimizers whose learning rate changes from step to step, as a float or as a tensor.
RATES: Optimizers = {
    "adamw": (torch.optim.AdamW, {}),
    "adamw one by one": (torch.optim.AdamW, {"foreach": False}),
    "adamw with a tensor": (torch.optim.AdamW, {"lr": torch.tensor(1e-3), "capturable": True}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "radam": (torch.optim.RAdam, {}),
    "asgd": (torch.optim.ASGD, {}),
}


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def launches(compiled: Compiler) -> list[int]:
    """Launches of each graph; all that it computes is in kernels."""
    schedules = [schedule for run in compiled.runs for schedule in run.record.schedules]
    assert not [op for schedule in schedules for op in schedule.library_ops]
    return [schedule.launches for schedule in schedules]


@pytest.mark.spread(12, 9)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_right_and_takes_at_most_four_launches(compiled: Compiler, name: str) -> None:
    make, given = OPTIMIZERS[name]
    ours, theirs = parameters(), []
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    on_host = {**given, "capturable": False} if "capturable" in given else given  # eager's steps may be on a GPU alone
    optimizer, expected = make(ours, foreach=True, **given), make(theirs, foreach=True, **on_host)
    step = compiled(optimizer.step)
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        step()
        expected.step()
    torch.testing.assert_close(ours, theirs)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(optimizer.state[p], expected.state[q], rtol=1e-5, atol=1e-5)
    assert launches(compiled)
    assert max(launches(compiled)) <= 4


@pytest.mark.spread(6, 3)
@pytest.mark.parametrize("name", RATES)
def test_a_rate_that_changes_compiles_nothing_anew(compiled: Compiler, name: str) -> None:
    """Dynamo traces the second value once more; from then on a rate is one more input."""
    make, given = RATES[name]
    ours = parameters()
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    optimizer, expected = make(ours, **{"foreach": True, **given}), make(theirs, **without_tensors(given))
    step = compiled(optimizer.step)
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        step()
        expected.step()
        for (group,) in (optimizer.param_groups, expected.param_groups):
            if isinstance(group["lr"], Tensor):
                group["lr"].mul_(0.8)
            else:
                group["lr"] *= 0.8
    torch.testing.assert_close(ours, theirs)
    graphs = launches(compiled)
    assert len(graphs) == (1 if "tensor" in name else 2)
    assert max(graphs) <= 4


def without_tensors(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments as eager execution takes them on the host."""
    plain = {key: x.item() if isinstance(x, Tensor) else x for key, x in given.items()}
    return {key: x for key, x in plain.items() if key != "capturable"}


@pytest.mark.slow
def test_gradients_are_unscaled_and_clipped_where_the_optimizer_steps(compiled: Compiler) -> None:
    """As ``torch.amp.GradScaler`` and ``clip_grad_norm_`` do it, inside of the compiled function."""
    ours = [p for p in parameters() if p.numel()]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    scale = torch.tensor(8.0)

    def step(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter]) -> Tensor:
        found = torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_(  # pyright: ignore
            [p.grad for p in weights], found, scale.reciprocal()
        )
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        return norm + found

    first, second = torch.optim.AdamW(ours, foreach=True), torch.optim.AdamW(theirs)
    run = compiled(step)
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        torch.testing.assert_close(run(first, ours), step(second, theirs))
    torch.testing.assert_close(ours, theirs)


def test_mixed_lists_share_launches_by_what_they_compute(compiled: Compiler) -> None:
    """Weights in bfloat16 with moments in float32, an average of weights, and lr as a tensor."""

    def step(
        weights: list[Tensor], grads: list[Tensor], means: list[Tensor], average: list[Tensor], lr: Tensor
    ) -> None:
        for w, g, m, a in zip(weights, grads, means, average, strict=True):
            m.lerp_(g.float(), 0.1)
            w.sub_((lr * m.sign()).to(w.dtype))
            a.lerp_(w.float(), 0.01)

    weights = [p.detach() for p in (*parameters(torch.bfloat16)[:5], *parameters()[:5])]
    ours = [weights, [torch.randn_like(w) for w in weights], *([w.float() * k for w in weights] for k in (0, 1))]
    theirs = [[x.clone() for x in some] for some in ours]
    run = compiled(step)
    for _ in range(2):
        run(*ours, torch.tensor(1e-2))
        weights, grads, means, exact = theirs
        step(weights, grads, means, exact, torch.tensor(1e-2))
    *kept, average = ours
    torch.testing.assert_close(kept, theirs[:3])
    torch.testing.assert_close(average, theirs[3], atol=1e-3, rtol=1e-3)  # of weights that kernels do not round before
    assert launches(compiled) == [1]


@pytest.mark.slow
def test_gradients_are_clipped_in_the_same_graph(compiled: Compiler) -> None:
    def step(weights: list[Tensor], grads: list[Tensor]) -> Tensor:
        norm = torch.nn.utils.get_total_norm(grads)
        torch.nn.utils.clip_grads_with_norm_(weights, 1.0, norm)
        for w, g in zip(weights, grads, strict=True):
            w.sub_(g, alpha=0.1)
        return norm

    ours = [p.detach() for p in parameters() if p.numel()]
    grads = [torch.randn_like(w) for w in ours]
    theirs, clipped = [w.clone() for w in ours], [g.clone() for g in grads]
    for w, g in zip((*ours, *theirs), (*grads, *clipped), strict=True):
        w.grad = g
    found, expected = compiled(step)(ours, grads), step(theirs, clipped)
    torch.testing.assert_close((found, ours, grads), (expected, theirs, clipped))
    assert max(launches(compiled)) <= 5
