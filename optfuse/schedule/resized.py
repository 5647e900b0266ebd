"""A model's inputs at other sizes, and the regions in which its schedule holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import InvalidOptionError
from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.sizes.size_box import SizeBox, size_box
from optfuse.solver.sizes.size_regions import SizeRegions, size_regions

#: By argument, its position or its keyword: by dimension the least and the most size.
Dynamic = Mapping[int | str, Mapping[int, tuple[int, int]]]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ChangingSize:
    """One size that changes: what it is in the example, its range, and the dimensions (argument, dim) that have it."""

    hint: int
    least: int
    most: int
    places: tuple[tuple[int | str, int], ...]


def regions_of(
    captured: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[Captured]],
    inputs: Inputs,
    dynamic: Dynamic,
    device: str,
    options: SolveOptions,
) -> SizeRegions | SizeBox:
    """Where the schedule of the example inputs holds when one or two sizes of theirs change.

    ``captured``: the graphs of some inputs.

    Raises:
        InvalidOptionError: If ``dynamic`` names no tensor argument or dimension, or more than two sizes.
    """
    changing = changing_sizes(inputs, dynamic)

    def problem(sizes: Sequence[int]) -> Sequence[Instance]:
        graphs = captured(*resized(inputs, changing, sizes))
        return [fusion_problem(graph, device).instance for graph in graphs]

    if len(changing) == 1:
        (one,) = changing
        return size_regions(lambda size: problem([size]), one.hint, one.least, one.most, options)
    one, other = changing
    return size_box(problem, (one.hint, other.hint), ((one.least, one.most), (other.least, other.most)), options)


def changing_sizes(inputs: Inputs, dynamic: Dynamic) -> tuple[ChangingSize, ...]:
    """The one or two sizes that ``dynamic`` names: dimensions of equal size and equal range are one.

    Raises:
        InvalidOptionError: If an argument or a dimension is unknown, a size is not in its range, or there are more
            sizes or none.
    """
    found: dict[tuple[int, int, int], list[tuple[int | str, int]]] = {}
    for key, dims in dynamic.items():
        value = _argument(inputs, key)
        if not isinstance(value, Tensor):
            raise InvalidOptionError(f"dynamic: argument {key!r} is {type(value).__name__}, not a tensor")
        for dim, (least, most) in dims.items():
            if not -value.ndim <= dim < value.ndim:
                raise InvalidOptionError(f"dynamic: argument {key!r} has {value.ndim} dimensions, not dimension {dim}")
            found.setdefault((value.shape[dim], least, most), []).append((key, dim))
    if not 1 <= len(found) <= 2:
        said = ", ".join(f"{hint} in {least}..{most}" for hint, least, most in sorted(found)) or "none"
        raise InvalidOptionError(
            f"dynamic: one or two sizes, each equal in all dimensions that have the same range, not {said}"
        )
    for hint, least, most in found:
        if not 1 <= least <= hint <= most:
            raise InvalidOptionError(f"dynamic: the example's size {hint} is not in its range, {least}..{most}")
    return tuple(ChangingSize(*span, tuple(places)) for span, places in found.items())


def resized(inputs: Inputs, changing: Sequence[ChangingSize], sizes: Sequence[int]) -> Inputs:
    """The inputs with other sizes, one for each that changes; what they hold is zeros."""
    args, kwargs = list(inputs[0]), dict(inputs[1])
    shapes: dict[int | str, list[int]] = {}
    for one, size in zip(changing, sizes, strict=True):
        for key, dim in one.places:
            shapes.setdefault(key, list(_argument(inputs, key).shape))[dim] = size
    for key, shape in shapes.items():
        value: Tensor = _argument(inputs, key)
        order = sorted(range(value.ndim), key=value.stride, reverse=True)
        dense = torch.zeros([shape[k] for k in order], dtype=value.dtype, device=value.device)
        other = dense.permute([order.index(k) for k in range(value.ndim)]).requires_grad_(value.requires_grad)
        if isinstance(key, int):
            args[key] = other
        else:
            kwargs[key] = other
    return tuple(args), kwargs


def _argument(inputs: Inputs, key: int | str) -> Any:
    args, kwargs = inputs
    if isinstance(key, int) and 0 <= key < len(args):
        return args[key]
    if isinstance(key, str) and key in kwargs:
        return kwargs[key]
    given = ", ".join(map(repr, (*range(len(args)), *kwargs)))
    raise InvalidOptionError(f"dynamic: there is no argument {key!r}; those given are {given}")
