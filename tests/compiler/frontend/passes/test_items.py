"""Tensors filled with an element of another tensor."""

from __future__ import annotations

import pytest
import torch

import optfuse
from optfuse.compiler.frontend import capture


class Anchors(torch.nn.Module):
    """As detectors make them: a column of each level's stride."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor([8.0, 16.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = [torch.full((4, 1), stride, dtype=x.dtype) for stride in self.stride]
        return x * columns[0] + torch.full((), columns[1].amax())


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_that_element_expanded(dtype: torch.dtype) -> None:
    model, x = Anchors(), torch.randn(4, 3, dtype=dtype)
    captured = capture(model, (x,))
    assert "_local_scalar_dense" not in captured.graph.code
    assert "full" not in captured.graph.code
    program = optfuse.optimize(model, (x,)).compile()
    torch.testing.assert_close(program(x), model(x), rtol=0.01, atol=0.01)


def test_an_item_that_is_needed_as_a_number_stays() -> None:
    class Sized(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((3,), x.sum().item() + 1)

    with pytest.raises(optfuse.errors.OptfuseError, match="known only when the model runs"):
        optfuse.optimize(Sized(), (torch.randn(4),))
