"""Linear interpolation along one dimension after another: two gathers each, whose gradients are short sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule

from optfuse.compiler.frontend.graph.rewrite import retargeted

aten = torch.ops.aten

_MODES = {"linear": 3, "bilinear": 4, "trilinear": 5}
_HALF = frozenset({torch.float16, torch.bfloat16})


def interpolate_by_dimensions(graph: GraphModule) -> GraphModule:
    """The graph with linear, bilinear and trilinear interpolation as a weighted sum of two gathers for each dimension.

    Torch gathers all 4 or 8 neighbours of an element at once, so that the gradient adds to as many tensors of zeros, in
    memory and atomically; of one dimension it is a sum of few values (``passes.known_places``). Works on graphs before
    autograd, of torch functions or of ATen operators.
    """
    return retargeted(graph, _REWRITTEN)


def _functional(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """``torch.nn.functional.interpolate``."""
    spatial = input.dim() - 2
    sizes = [size] * spatial if isinstance(size, int) else size
    factors = [scale_factor] * spatial if isinstance(scale_factor, int | float) else scale_factor
    known = _MODES.get(mode) == input.dim() and (size is None) != (scale_factor is None) and not antialias
    made = None
    if known and not recompute_scale_factor:
        made = _interpolated(input, sizes, bool(align_corners), factors)
    if made is None:
        return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    return made


def _of_aten(overload: Any) -> Any:
    """The function that an operator ``upsample_*.vec`` becomes."""

    def run(
        input: Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Tensor:
        made = _interpolated(input, output_size, align_corners, scale_factors)
        return overload(input, output_size, align_corners, scale_factors) if made is None else made

    return run


def _interpolated(
    x: Tensor, sizes: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Tensor | None:
    """The interpolated images, as ATen makes them; None where it would raise, and of other types than floats."""
    spatial = x.dim() - 2
    given = sizes if sizes is not None else factors
    if given is None or len(given) != spatial or not x.is_floating_point() or 0 in x.shape:
        return None
    old = x.shape[2:]
    if sizes is None:
        assert factors is not None, "one of the two is given"
        sizes = [int(n * factor) for n, factor in zip(old, factors, strict=True)]
    if any(not isinstance(n, int) for n in (*sizes, *old)) or min(sizes) < 1:
        return None
    values = x.float() if x.dtype in _HALF else x
    for k, (n, size) in enumerate(zip(old, sizes, strict=True)):
        factor = None if factors is None else factors[k]
        values = _along(values, 2 + k, n, size, align_corners, factor)
    return values.to(x.dtype).contiguous(memory_format=suggest_memory_format(x))


def _along(x: Tensor, dim: int, old: int, size: int, align_corners: bool, factor: float | None) -> Tensor:
    """Interpolate along one dimension of ``old`` elements."""
    if old == size and (align_corners or factor is None or factor == 1):
        return x
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    at = torch.arange(size, device=x.device, dtype=exact)
    if align_corners:
        at = at * ((old - 1) / (size - 1) if size > 1 else 0.0)
    else:
        at = ((at + 0.5) * (old / size if factor is None else 1 / factor) - 0.5).clamp(min=0.0)
    low = at.to(torch.int64).clamp(max=old - 1)
    high = (low + 1).clamp(max=old - 1)
    share = (at - low).clamp(0.0, 1.0).view(-1, *[1] * (x.dim() - 1 - dim))
    places: list[Tensor | None] = [None] * dim
    first, second = (aten._unsafe_index.Tensor(x, [*places, each]) for each in (low, high))  # noqa: SLF001
    return first + (second - first) * share


_REWRITTEN: dict[Any, Any] = {
    F.interpolate: _functional,
    **{
        packet.vec: _of_aten(packet.vec)
        for packet in (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d)
    },
}
