"""Programs of ``torch.export`` as models: dynamic dimensions are the sizes that change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import optfuse
from optfuse.compiler.frontend.exported import ranges_of
from optfuse.errors import InvalidOptionError


class Model(nn.Module):
    """A keyword argument, and one that is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, scale: Tensor | None = None, *, y: Tensor) -> Tensor:
        return (self.linear(x).softmax(-1) + y) * (1 if scale is None else scale)


def exported(model: nn.Module, *, batch: Dim) -> tuple[ExportedProgram, Tensor, Tensor]:
    x, y = torch.randn(4, 8, 16), torch.randn(4, 8, 16)
    shapes = {"x": {0: batch}, "y": {0: batch}}
    return export(model, (x,), {"y": y}, dynamic_shapes=shapes), x, y


def test_a_program_is_optimized_at_its_example_over_its_dynamic_dimensions() -> None:
    model = Model().eval()
    program, x, y = exported(model, batch=Dim("batch", min=2, max=6))
    schedule = optfuse.optimize(program)
    assert schedule.regions is not None
    sizes = [point.size for point in schedule.regions.points]
    assert (sizes[0], sizes[-1]) == (2, 6)
    torch.testing.assert_close(schedule.compile()(x, y=y), model(x, y=y))
    assert optfuse.optimize(program, (x[:3],), {"y": y[:3]}, dynamic={}).regions is None


def test_dynamic_dimensions_are_ranges_by_argument() -> None:
    program, x, y = exported(Model(), batch=Dim("batch", min=2))
    assert ranges_of(program, ((x,), {"y": y})) == {0: {0: (2, 16)}, "y": {0: (2, 16)}}


def test_expressions_of_sizes_are_refused() -> None:
    half = Dim("half", min=2, max=8)
    x = torch.randn(6, 4)
    program = export(nn.ReLU(), (x,), dynamic_shapes=({0: 2 * half},))
    with pytest.raises(InvalidOptionError, match="expression"):
        optfuse.optimize(program)
