"""Convolutions of windows side by side as matrix products: where they are, what they compute, how they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from optfuse.compiler.frontend.convolution_forms.patches import is_patches
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training
from tests.compiler.frontend.running import capture_and_compare, run_graph, targets
from tests.oracle.judging import check

aten = torch.ops.aten


class Embedding(nn.Module):
    """A convolution after another operator, so that its image may need a gradient and lie in some layout."""

    def __init__(self, channels: int, out: int, kernel: Any, *, mixed: bool = False, **options: Any) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 3, padding=1) if mixed else None
        self.patches = nn.Conv2d(channels, out, kernel, **{"stride": kernel, **options})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x) if self.mix is None else self.mix(x)
        return self.patches(x).flatten(2).transpose(1, 2).sin()


#: (channels, output channels, kernel, image), whether a convolution before it lays the image out, the stride.
CASES: dict[str, tuple[Any, ...]] = {
    "embedding": (3, 8, 4, (16, 12), False),
    "down-sampling": (6, 10, 2, (8, 8), True),
    "what is left over": (6, 10, (2, 3), (9, 13), True),
    "left over, channels first": (5, 4, 3, (10, 7), False),
    "one window": (4, 6, (3, 5), (3, 5), True),
    "one window, steps of one": (4, 6, (3, 5), (3, 5), True, 1),
    "one window in one dimension": (4, 6, (3, 2), (3, 8), False, (1, 2)),
    "one channel": (1, 8, 2, (6, 4), True),
    "rows": (3, 8, (1, 4), (5, 8), False),
}


def products(captured: Captured) -> int:
    found = targets(captured)
    return found["aten.mm.default"] + found["aten.addmm.default"]


def convolutions(captured: Captured) -> list[torch.fx.Node]:
    kinds = (aten.convolution.default, aten.convolution_backward.default)
    return [node for node in captured.graph.graph.nodes if node.target in kinds]


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", CASES)
def test_inference_like_eager(name: str) -> None:
    channels, out, kernel, size, mixed, *stride = CASES[name]
    model = Embedding(channels, out, kernel, mixed=mixed, bias=mixed, stride=stride[0] if stride else kernel).eval()
    captured = capture_and_compare(model, (torch.randn(2, channels, *size),))
    assert len(convolutions(captured)) == mixed
    assert products(captured) == 1


@pytest.mark.spread(4, 1)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("one window", "one channel", "rows")])
def test_gradients_like_eager(name: str) -> None:
    channels, out, kernel, size, mixed, *stride = CASES[name]
    model = Embedding(channels, out, kernel, mixed=mixed, stride=stride[0] if stride else kernel).double()
    x = torch.randn(2, channels, *size, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(model(x).cos().sum(), [x, *model.parameters()])
    forward, backward = capture_training(Summed(model), (x,))
    assert len(convolutions(forward)) == len(convolutions(backward)) == mixed
    assert products(backward) == 2
    found = trained(forward, backward, model, x)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


class Summed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).cos().sum()


def trained(forward: Captured, backward: Captured, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of ``x`` and of the parameters, by the two graphs."""
    parameters = {f"model.{name}": value.detach() for name, value in model.named_parameters()}
    inputs = [parameters.get(str(source.target), x.detach()) for source in forward.inputs]
    outputs = list(run_graph(forward)(inputs))
    kept = dict(zip([str(node) for node in forward.outputs], outputs, strict=True))
    tangent = torch.ones_like(outputs[0])
    given = [kept.get(node.name, tangent) for node in backward.placeholders]
    gradients = run_graph(backward)(given)
    wanted = [x.shape, *(value.shape for value in model.parameters())]
    by_input = dict(zip([str(source.target) for source in forward.inputs], gradients, strict=True))
    found = [by_input[next(name for name in by_input if name not in parameters)], *(by_input[n] for n in parameters)]
    assert [value.shape for value in found] == wanted
    return found


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (3, {"stride": 2}),
        (3, {"stride": 3, "padding": 1}),
        (1, {"stride": 1}),
        (2, {"stride": 2, "groups": 2}),
        (2, {"stride": 2, "dilation": 2}),
        (2, {"stride": (2, 1)}),
    ],
)
def test_other_convolutions_stay(kernel: int, options: dict[str, Any]) -> None:
    captured = capture(nn.Conv2d(4, 6, kernel, **options).eval(), (torch.randn(1, 4, 12, 12),))
    assert len(convolutions(captured)) == 1
    assert not any(is_patches(node) for node in convolutions(captured))


def test_transposed_convolutions_stay() -> None:
    captured = capture(nn.ConvTranspose2d(4, 6, 2, stride=2).eval(), (torch.randn(1, 4, 6, 6),))
    assert len(convolutions(captured)) == 1


@pytest.mark.parametrize(("kind", "size"), [(nn.Conv1d, (20,)), (nn.Conv3d, (4, 6, 4))])
def test_any_number_of_dimensions(kind: Any, size: Sequence[int]) -> None:
    captured = capture_and_compare(kind(3, 5, 2, stride=2).eval(), (torch.randn(2, 3, *size),))
    assert not convolutions(captured)


def test_channels_last_images_become_rows_without_a_transposition() -> None:
    captured = capture(Embedding(8, 16, 2, mixed=True).eval(), (torch.randn(2, 8, 8, 8),))
    (product,) = [n for n in captured.graph.graph.nodes if n.target in (aten.mm.default, aten.addmm.default)]
    rows = product.args[-2]
    windows = rows.args[0].args[0]  # view, clone
    assert windows.target is aten.permute.default
    assert windows.args[1] == [0, 2, 3, 4, 5, 1]
    assert windows.meta["val"].stride(-1) == 1


@pytest.mark.parametrize(("kernel", "row"), [(14, 592), (7, 147)])
def test_long_rows_of_windows_are_aligned(kernel: int, row: int) -> None:
    model = nn.Conv2d(3, 8, kernel, stride=kernel, bias=False).to(torch.bfloat16).eval()
    captured = capture(model, (torch.randn(2, 3, 28, 28, dtype=torch.bfloat16),))
    (product,) = [node for node in captured.graph.graph.nodes if node.target is aten.mm.default]
    assert product.args[0].meta["val"].stride() == (row, 1)
    assert product.args[1].meta["val"].stride() == (1, row)


@pytest.mark.parametrize(("out", "is_copied"), [(64, False), (2, True)])
def test_filters_are_read_as_they_lie_where_they_are_larger_than_the_image(out: int, is_copied: bool) -> None:
    model = Embedding(8, out, 5, mixed=True, stride=1).eval()
    captured = capture_and_compare(model, (torch.randn(4, 8, 5, 5),))
    copies = captured.graph.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert any(node.meta["val"].numel() == out * 200 for node in copies) == is_copied


@pytest.mark.parametrize("train", [False, True])
def test_windows_and_filters_agree_where_something_is_left_over(train: bool) -> None:
    model = Embedding(6, 36, 2)  # filters are smaller than the image, and larger than what windows cover of it
    x = torch.randn(2, 6, 9, 9).contiguous(memory_format=torch.channels_last)
    if not train:
        capture_and_compare(model.eval(), (x,))
        return
    model, x = model.double(), x.double().requires_grad_(True)
    expected = torch.autograd.grad(model(x).cos().sum(), [x, *model.parameters()])
    forward, backward = capture_training(Summed(model), (x,))
    for ours, theirs in zip(trained(forward, backward, model, x), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_the_caller_sees_keeps_its_layout() -> None:
    captured = capture(nn.Conv2d(3, 8, 4, stride=4).eval(), (torch.randn(2, 3, 16, 16),))
    assert captured.strides == {0: (128, 16, 4, 1)}


@pytest.mark.spread(4)
@pytest.mark.parametrize(("dtype", "train"), [(torch.float32, False), (torch.bfloat16, True)])
def test_emitted_programs(dtype: torch.dtype, train: bool) -> None:
    """A ragged row of windows, something left over, and an image that a convolution lays out."""
    model = Embedding(3, 6, (3, 2), mixed=True).to(dtype)
    x = torch.randn(2, 3, 10, 9, dtype=dtype, requires_grad=train)
    check(model if train else model.eval(), x, train=train)
