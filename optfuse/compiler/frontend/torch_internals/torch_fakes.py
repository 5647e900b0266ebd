"""Fake tensors: what operators yield on them, without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from optfuse.compiler.frontend.torch_internals.torch_bridge import operator_name, outside_of_modes, tree_leaves


def forget_fake_results() -> None:
    """Empty torch's memory of what operators yield on fake tensors.

    An operator may return one tensor twice; remembered, its results are two. Without this a graph traced again is
    another graph.
    """
    FakeTensorMode.cache_clear()


def mode_of_values(graph: GraphModule) -> AbstractContextManager[Any]:
    """The context in which the fake tensors of a graph were made, where torch's partitioner makes others."""
    values = (node.meta.get("val") for node in graph.graph.nodes)
    return detect_fake_mode([value for value in values if isinstance(value, FakeTensor)]) or nullcontext()


def fake_result(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None) -> Any:
    """What ``target`` yields on fake tensors (args may hold nodes, whose ``meta["val"]`` is then meant).

    ``like`` is a fake tensor, or several, whose mode serves when no argument has one.
    """

    def value(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument

    real_args = torch.fx.node.map_aggregate(tuple(args), value)
    real_kwargs = torch.fx.node.map_aggregate(dict(kwargs), value)
    fakes = [leaf for leaf in tree_leaves((real_args, real_kwargs)) if isinstance(leaf, FakeTensor)]
    fakes = fakes or [leaf for leaf in tree_leaves(like) if isinstance(leaf, FakeTensor)]
    mode = detect_fake_mode(fakes) if fakes else None
    with mode or FakeTensorMode():
        return target(*real_args, **real_kwargs)


def fake_result_afresh(node: torch.fx.Node) -> Any:
    """What a node yields on fake tensors of a mode of their own, whichever modes its arguments' are of."""
    with FakeTensorMode():

        def value(argument: Any) -> Any:
            x = argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
            fake = isinstance(x, torch.Tensor)
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) if fake else x

        args, kwargs = torch.fx.node.map_aggregate((tuple(node.args), dict(node.kwargs)), value)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def fake_strided(value: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A fake tensor like ``value`` with memory of its own and other strides (in elements)."""
    with detect_fake_mode([value]) or FakeTensorMode():
        return torch.empty_strided(value.shape, tuple(stride), dtype=value.dtype, device=value.device)


class _Recorder(TorchDispatchMode):
    """Notes the operators that run within it."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(operator_name(func))
        return func(*args, **(kwargs or {}))


def operators_of(function: Callable[..., Any], like: Sequence[torch.Tensor | None]) -> tuple[list[str], Any]:
    """The operators that ``function`` runs on tensors such as these, and its result as a fake tensor.

    Of ``like`` only sizes, strides, dtypes, devices and whether gradients are wanted count; nothing is computed, and
    no tracer that is at work sees it.
    """

    def fake(x: torch.Tensor | None) -> torch.Tensor | None:
        if x is None:
            return None
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device, requires_grad=x.requires_grad)

    sizes = [n for x in like if x is not None for n in (*x.shape, *x.stride()) if isinstance(n, torch.SymInt)]
    with outside_of_modes(), FakeTensorMode(shape_env=sizes[0].node.shape_env if sizes else None):
        arguments = [fake(x) for x in like]
        with _Recorder() as recorder:
            result = function(*arguments)
    return recorder.operators, result
