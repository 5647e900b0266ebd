"""Grouped convolutions of single pixels as batched products: where they are, what they compute, how they lie."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher

import optfuse
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import assert_gradients_near_eagers, targets
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16


def mixing(rank: int, taken: int, made: int, groups: int, *, around: bool = False, **options: Any) -> nn.Module:
    """A grouped convolution between activations, or between convolutions that want channels last."""
    torch.manual_seed(0)
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    kind = kinds[rank - 1]
    grouped = kind(taken, made, **{"kernel_size": 1, "groups": groups, **options})
    others = (kind(taken, taken, 3, padding=1), kind(made, 8, 3, padding=1)) if around else (nn.SiLU(), nn.SiLU())
    return nn.Sequential(others[0], grouped, nn.GELU(), others[1]).to(BF16)


#: Dimensions of the images, channels taken and made, groups, and options.
CASES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "of a sequence": ((1, 32, 48, 2), {}),
    "of images": ((2, 32, 32, 4), {"bias": False}),
    "of images, channels last": ((2, 48, 24, 3), {"around": True}),
    "of videos": ((3, 16, 32, 2), {}),
}


def images(rank: int, channels: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, channels, *(6, 5, 4)[:rank], generator=generator).to(BF16)


def grouped(captured: Captured) -> int:
    """The grouped convolutions of a graph, and gradients of them."""
    kinds = {torch.ops.aten.convolution.default: 8, torch.ops.aten.convolution_backward.default: 9}
    return sum(node.args[kinds[node.target]] > 1 for node in captured.graph.graph.nodes if node.target in kinds)


@pytest.mark.parametrize("case", CASES)
def test_inference(case: str) -> None:
    sizes, options = CASES[case]
    model, x = mixing(*sizes, **options).eval(), images(sizes[0], sizes[1])
    captured = capture(model, (x,), name="model")
    assert (grouped(captured), targets(captured)["aten.bmm.default"]) == (0, 1)
    schedule = optfuse.optimize(model, (x,), options=OPTIONS)
    exact = deepcopy(model).double()(x.double())
    error, eager = ((y.double() - exact).abs().max() for y in (schedule.compile()(x), model(x)))
    assert error <= 1.5 * eager


@pytest.mark.parametrize("case", CASES)
def test_gradients(case: str) -> None:
    sizes, options = CASES[case]
    model, x = mixing(*sizes, **options), images(sizes[0], sizes[1]).requires_grad_()
    forward, backward = capture_training(model, (x,))
    assert (grouped(forward), grouped(backward), targets(backward)["aten.bmm.default"]) == (0, 0, 2)
    assert_gradients_near_eagers(model, x, share=1e-3, options=OPTIONS)


def test_rows_are_copied_where_strides_allow_no_view() -> None:
    """Under torch.compile the error that tells so can be another one."""
    sizes, options = CASES["of images"]
    model, x = mixing(*sizes, **options).eval(), images(sizes[0], sizes[1])
    with enable_python_dispatcher():
        schedule = optfuse.optimize(model, (x,), options=OPTIONS)
    torch.testing.assert_close(schedule.compile()(x), model(x), rtol=0.05, atol=0.05)


def test_channels_that_are_last_are_not_copied() -> None:
    """Between convolutions whose images are channels-last, the products read and write where these do."""
    sizes, options = CASES["of images, channels last"]
    model = mixing(*sizes, **options).eval()
    schedule = optfuse.optimize(model, (images(sizes[0], sizes[1]),), options=OPTIONS)
    assert isinstance(schedule, optfuse.Schedule)
    moved = [name for ops in schedule.to_pandas()["ops"] for name in ops if name.startswith(("clone", "reshape"))]
    assert len(moved) == 3  # the model's input, and the weights of the two other convolutions


@pytest.mark.parametrize(
    ("groups", "options"), [(2, {"kernel_size": 3}), (2, {"stride": 2}), (2, {"padding": 1}), (8, {}), (1, {})]
)
def test_others_stay_convolutions(groups: int, options: dict[str, Any]) -> None:
    model = mixing(2, 32, 32, groups, **options).eval()
    captured = capture(model, (images(2, 32),), name="model")
    assert targets(captured)["aten.bmm.default"] == 0
    assert targets(captured)["aten.convolution.default"] == 1
