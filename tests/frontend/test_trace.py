"""What a model that cannot be traced says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from optfuse.errors import CaptureError
from optfuse.frontend import capture, capture_training
from optfuse.frontend.trace import trace


class Branches(nn.Module):
    """Control flow on a value."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Broken(nn.Module):
    """An error of the model's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x


@pytest.mark.parametrize("function", [capture, capture_training])
def test_data_dependent_branch_names_the_line(function: object) -> None:
    with pytest.raises(CaptureError) as failure:
        function(Branches(), (torch.ones(3),), name="branches")  # type: ignore[operator]
    message = str(failure.value)
    assert "\n" not in message
    assert message.startswith("branches cannot be captured as one graph")
    assert "test_trace.py" in message
    assert "(if x.sum() > 0:)" in message
    assert "torch.where" in message


def test_error_of_the_model_names_the_line() -> None:
    with pytest.raises(CaptureError, match=r"\(return x @ x\)"):
        capture(Broken(), (torch.ones(2, 3),))


def test_args_must_be_a_tuple() -> None:
    with pytest.raises(CaptureError, match="tuple"):
        capture(Broken(), torch.ones(2, 3))  # type: ignore[arg-type]


def test_nothing_to_train() -> None:
    with pytest.raises(CaptureError, match="requires a gradient"):
        capture_training(nn.ReLU(), (torch.ones(3),))


class Twice(nn.Module):
    """A model whose call passes one tensor twice, which is traced through a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model(x) + y


def test_modules_keep_their_names_when_a_tensor_is_passed_twice() -> None:
    x = torch.randn(3, 4)
    for args in ((x, x), (x, torch.randn(3, 4))):
        graph = trace(Twice(), args, None, "twice").program.graph_module.graph
        paths = {path for node in graph.nodes for path, _ in node.meta.get("nn_module_stack", {}).values()}
        assert paths - {""} == {"model"}
