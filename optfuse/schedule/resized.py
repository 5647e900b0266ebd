"""A model's inputs at other sizes, and the regions in which its schedule holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import InvalidOptionError
from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.size_regions import SizeRegions, size_regions

#: By argument, its position or its keyword: by dimension the least and the most size.
Dynamic = Mapping[int | str, Mapping[int, tuple[int, int]]]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def regions_of(
    captured: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[Captured]],
    inputs: Inputs,
    dynamic: Dynamic,
    device: str,
    options: SolveOptions,
) -> SizeRegions:
    """Where the schedule of the example inputs holds when one size of theirs changes.

    ``captured``: the graphs of some inputs.

    Raises:
        InvalidOptionError: If ``dynamic`` names no tensor argument or dimension, or more than one size.
    """
    hint, (least, most) = one_size(inputs, dynamic)

    def problem(size: int) -> Sequence[Instance]:
        return [fusion_problem(graph, device).instance for graph in captured(*resized(inputs, dynamic, size))]

    return size_regions(problem, hint, least, most, options)


def one_size(inputs: Inputs, dynamic: Dynamic) -> tuple[int, tuple[int, int]]:
    """The example's size of the dimensions that ``dynamic`` names, and its range: all must agree.

    Raises:
        InvalidOptionError: If an argument or a dimension is unknown, or the sizes or ranges differ.
    """
    found: set[tuple[int, tuple[int, int]]] = set()
    for key, dims in dynamic.items():
        value = _argument(inputs, key)
        if not isinstance(value, Tensor):
            raise InvalidOptionError(f"dynamic: argument {key!r} is {type(value).__name__}, not a tensor")
        for dim, span in dims.items():
            if not -value.ndim <= dim < value.ndim:
                raise InvalidOptionError(f"dynamic: argument {key!r} has {value.ndim} dimensions, not dimension {dim}")
            found.add((value.shape[dim], (span[0], span[1])))
    if len(found) != 1:
        said = ", ".join(f"{size} in {least}..{most}" for size, (least, most) in sorted(found)) or "none"
        raise InvalidOptionError(f"dynamic: one size at a time, equal in all that it names, not {said}")
    hint, (least, most) = found.pop()
    if not 1 <= least <= hint <= most:
        raise InvalidOptionError(f"dynamic: the example's size {hint} is not in its range, {least}..{most}")
    return hint, (least, most)


def resized(inputs: Inputs, dynamic: Dynamic, size: int) -> Inputs:
    """The inputs with another size of the dimensions that ``dynamic`` names; what they hold is zeros."""
    args, kwargs = list(inputs[0]), dict(inputs[1])
    for key, dims in dynamic.items():
        value: Tensor = _argument(inputs, key)
        shape = list(value.shape)
        for dim in dims:
            shape[dim] = size
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
