"""Depthwise convolutions that our kernels compute: which they are, what they compute, how they lie."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import assert_gradients_near_eagers, targets
from tests.oracle.judging import OPTIONS

BF16 = torch.bfloat16
FORWARD, IMAGES, WEIGHTS = (f"optfuse.depthwise{part}.default" for part in ("", "_images", "_weights"))
LIBRARY, GRADIENT = "aten.convolution.default", "aten.convolution_backward.default"

#: Dimensions of the images, options of the convolution, and how often a graph of training calls what.
CASES: dict[str, tuple[int, dict[str, Any], dict[str, int]]] = {
    "9 x 9": (2, {"kernel_size": 9, "padding": 4}, {FORWARD: 2, WEIGHTS: 1}),
    "1 x 5": (2, {"kernel_size": (1, 5), "padding": (0, 2), "bias": False}, {FORWARD: 2, WEIGHTS: 1}),
    "dilated": (2, {"kernel_size": 3, "padding": 2, "dilation": 2}, {FORWARD: 2, WEIGHTS: 1}),
    "of tokens": (1, {"kernel_size": 4, "padding": 3}, {FORWARD: 1, IMAGES: 1, WEIGHTS: 1}),
    "of videos": (3, {"kernel_size": 3, "padding": 1}, {FORWARD: 1, IMAGES: 1, WEIGHTS: 1}),
    "every second": (2, {"kernel_size": 3, "padding": 1, "stride": 2}, {LIBRARY: 1, IMAGES: 1, WEIGHTS: 1}),
}


def around(rank: int, options: dict[str, Any], channels: int = 12) -> nn.Module:
    """A depthwise convolution between activations."""
    torch.manual_seed(0)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    return nn.Sequential(nn.SiLU(), kind(channels, channels, **{"groups": channels, **options}), nn.GELU())


def images(rank: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 12, *(9, 8, 5)[:rank], generator=torch.Generator().manual_seed(1))


def calls(*graphs: Any) -> Counter[str]:
    """How often graphs call what may compute a depthwise convolution."""
    found = sum((targets(graph) for graph in graphs), Counter[str]())
    return Counter({name: found[name] for name in (FORWARD, IMAGES, WEIGHTS, LIBRARY, GRADIENT) if found[name]})


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("case", CASES)
def test_training(case: str, dtype: torch.dtype) -> None:
    rank, options, expected = CASES[case]
    model, x = around(rank, options).to(dtype), images(rank).to(dtype).requires_grad_()
    if dtype == BF16:  # in float32 no gradient is turned around first
        assert calls(*capture_training(model, (x,))) == expected
    assert_gradients_near_eagers(model, x, share=5e-3 if dtype == BF16 else 1e-6, options=OPTIONS)


@pytest.mark.parametrize(
    ("options", "batch", "call"),
    [
        ({"kernel_size": 3, "padding": 1}, 2, LIBRARY),
        ({"kernel_size": 7, "padding": 3}, 2, LIBRARY),
        ({"kernel_size": 3, "padding": 1}, 1, FORWARD),
        ({"kernel_size": (3, 5), "padding": (1, 2)}, 2, FORWARD),
        ({"kernel_size": 3, "stride": 3}, 2, FORWARD),
        ({"kernel_size": 3, "groups": 6}, 2, LIBRARY),
        ({"kernel_size": 9, "padding": 4, "bias": False}, 2, FORWARD),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_library_keeps_what_it_is_fast_at(options: dict[str, Any], batch: int, call: str) -> None:
    model, x = around(2, options).to(BF16), images(2, batch).to(BF16)
    assert calls(capture(model, (x,), name="model")) == {call: 1}
    result = optfuse.optimize(model, (x,), options=OPTIONS).compile()(x)
    truth = deepcopy(model).double()(x.double())
    assert (result.double() - truth).norm() / truth.norm() < 6e-3


def test_a_gradient_of_which_the_library_has_a_part() -> None:
    """Weights of every second pixel, of many images: cuDNN's; the gradient of the images is ours."""
    model = around(2, {"kernel_size": 3, "padding": 1, "stride": 2}).to(BF16)
    x = torch.randn(64, 12, 9, 9).to(BF16).requires_grad_()
    assert calls(*capture_training(model, (x,))) == {LIBRARY: 1, IMAGES: 1, GRADIENT: 1}


def test_images_between_convolutions_stay_channels_last() -> None:
    wide = {"kernel_size": 9, "padding": 4, "groups": 64}
    model = nn.Sequential(nn.Conv2d(16, 64, 3), around(2, wide, 64), nn.Conv2d(64, 16, 3)).to(BF16)
    graph = capture(model, (torch.randn(2, 16, 20, 20).to(BF16),), name="model").graph.graph
    [call] = [node for node in graph.nodes if str(node.target) == FORWARD]
    assert call.meta["val"].is_contiguous(memory_format=torch.channels_last)


def test_a_range_of_sizes_has_one_graph() -> None:
    model = around(1, {"kernel_size": 4, "padding": 3}).eval()
    fast = torch.compile(model, backend="optfuse", dynamic=True)
    before = len(optfuse.compiled_graphs())
    for length in (7, 12, 30):
        x = torch.randn(3, 12, length)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
    assert len(optfuse.compiled_graphs()) == before + 1
