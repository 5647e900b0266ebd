"""Effectful operators lose their tokens and keep their effect."""

from __future__ import annotations

import pytest
import torch

from optfuse.compiler.frontend import capture, capture_training
from tests.compiler.frontend.passes.graphs import operators, run

#: Torch 2.11 traces these operators without their check.
CHECKS = pytest.mark.skipif(torch.__version__ < "2.12", reason="this torch traces linear algebra without its checks")


class Inverse(torch.nn.Module):
    """A check, as linear algebra makes it, between two other operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x @ x.t()).exp()


@CHECKS
def test_inference_keeps_the_check() -> None:
    x = torch.eye(3) + 0.1
    captured = capture(Inverse(), (x,))
    assert "_linalg_check_errors.default" in operators(captured)
    assert len(captured.placeholders) == len(captured.inputs) == 1
    torch.testing.assert_close(run(captured, x)[-1], Inverse()(x))
    with pytest.raises(RuntimeError, match="singular"):
        run(captured, torch.zeros(3, 3))


@CHECKS
def test_training_keeps_the_check() -> None:
    forward, backward = capture_training(Inverse(), (torch.eye(3).requires_grad_(),))
    assert operators(forward).count("_linalg_check_errors.default") == 1
    assert not any("with_effects" in name for name in operators(forward) + operators(backward))
    with pytest.raises(RuntimeError, match="singular"):
        run(forward, torch.zeros(3, 3))
