"""Functions of tensors as models, and their loop graphs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.nodes import LoopGraph
from optfuse.compiler.stages import lowered


def model(function: Any) -> nn.Module:
    class Model(nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return function(*tensors)

    return Model()


def graph_of(function: Any, *tensors: Tensor) -> LoopGraph:
    return lowered(capture(model(function), tensors, {}, name="model"))
