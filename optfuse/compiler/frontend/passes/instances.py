"""Instance norms as group norms of one channel a group, which are loops in any layout."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from optfuse.compiler.frontend.graph.rewrite import retargeted

aten = torch.ops.aten


def norm_channels(graph: GraphModule) -> GraphModule:
    """The graph with instance norms, of the images at hand, as group norms.

    Torch makes a batch norm of them, of one image that has the channels of all: a view that channels-last images do not
    allow, so that they would be copied before and after.
    Works on graphs before autograd, of torch functions or of ATen operators.
    """
    return retargeted(graph, _REWRITTEN)


def _group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """``torch.instance_norm`` as a group norm; NotImplemented for kept statistics, and where it would raise."""
    del momentum, cudnn_enabled
    kept = running_mean is not None or running_var is not None or not use_input_stats
    if kept or input.dim() < 3 or not input.is_floating_point():
        return NotImplemented
    batch, channels, *pixels = input.shape
    if any(x is not None and (x.dim() != 1 or x.shape[0] != channels) for x in (weight, bias)):
        return NotImplemented
    if isinstance(batch, int) and isinstance(prod(pixels), int) and (batch == 0 or prod(pixels) < 2):
        return NotImplemented
    images = input.contiguous()
    return aten.native_group_norm.default(images, weight, bias, batch, channels, prod(pixels), channels, eps)[0]


def _of_torch(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.instance_norm``."""
    made = _group_norm(*args, **kwargs)
    return torch.instance_norm(*args, **kwargs) if made is NotImplemented else made


def _functional(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``torch.nn.functional.instance_norm``."""
    made = _group_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, True)
    if made is not NotImplemented:
        return made
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


_REWRITTEN: dict[Any, Any] = {
    F.instance_norm: _functional,
    torch.instance_norm: _of_torch,
    aten.instance_norm.default: _of_torch,
}
