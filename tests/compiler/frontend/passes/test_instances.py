"""Instance norms: one reduction over each image and channel in any layout, and the numbers of eager execution."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training

aten = torch.ops.aten


class Normed(nn.Module):
    """An instance norm between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.norm = nn.InstanceNorm2d(16, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu())


def test_channels_last_images_are_not_copied_for_their_norm() -> None:
    x = torch.randn(2, 8, 12, 12, requires_grad=True)
    for graph in (capture(Normed().eval(), (x.detach(),)), *capture_training(Normed(), (x,))):
        images = [node for node in graph.graph.graph.nodes if node.target is aten.clone.default]
        assert not [node for node in images if node.meta["val"].numel() == 2 * 16 * 12 * 12]


NORMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "rows": (nn.InstanceNorm1d(6, affine=True), (3, 6, 50)),
    "images": (nn.InstanceNorm2d(6), (2, 6, 9, 11)),
    "volumes": (nn.InstanceNorm3d(6, affine=True), (2, 6, 5, 6, 7)),
    "one image": (nn.InstanceNorm2d(6, affine=True), (6, 9, 11)),
    "statistics": (nn.InstanceNorm2d(6, affine=True, track_running_stats=True), (2, 6, 9, 11)),
}


@pytest.mark.spread(5, 1)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", NORMS)
def test_a_step_of_torch_compile(kind: str, autocast: bool) -> None:
    torch.compiler.reset()
    norm, shape = NORMS[kind]
    torch.manual_seed(0)
    models = [deepcopy(norm) for _ in range(2)]
    x = torch.randn(shape)
    if x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    outcomes = []
    for model, run in zip(models, (torch.compile(models[0], backend="optfuse"), models[1]), strict=True):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            result = run(leaf)
        (result * torch.linspace(0, 1, result.numel()).view(shape)).sum().backward()
        outcomes.append([result, leaf.grad, *(p.grad for p in model.parameters()), *model.buffers()])
    for ours, eager in zip(*outcomes, strict=True):
        assert (ours.dtype, ours.stride()) == (eager.dtype, eager.stride())
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def test_one_element_is_refused_as_by_eager_execution() -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match="more than 1 spatial element"):
        torch.compile(nn.InstanceNorm2d(3), backend="optfuse")(torch.randn(2, 3, 1, 1))
