"""Arguments in memory: a graph that writes into one is compiled for those that share it, some for their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.torch_bridge import FakeTensor, written_inputs
from optfuse.errors import CaptureError

_KINDS = (torch.Tensor, torch.nn.Parameter, FakeTensor)

#: Pairs of arguments, by number.
Shared = tuple[tuple[int, int], ...]


def shared_memory(arguments: Sequence[Any]) -> Shared:
    """The pairs of tensors among arguments that lie in one storage, where the span of one meets the other's."""
    return tuple(
        pair for group in same_storage(arguments) for pair in combinations(group, 2) if _meet(arguments, *pair)
    )


def reads_offsets(graph: GraphModule) -> bool:
    """Whether a node says where in its memory a view begins: torch.compile guards no offset that is a number."""
    nodes = graph.graph.nodes
    named = [node for node in nodes if "as_strided" in getattr(node.target, "__name__", str(node.target))]
    return any(len(node.args) > 3 or node.kwargs.get("storage_offset") is not None for node in named)


def offsets_of(arguments: Sequence[Any]) -> tuple[int, ...]:
    """Where each tensor among arguments begins in its memory."""
    return tuple(int(x.storage_offset()) for x in arguments if type(x) in _KINDS and x.layout is torch.strided)


def same_storage(arguments: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """The numbers of tensors among arguments that lie in one storage, for each that has several of them."""
    tensors = [k for k, x in enumerate(arguments) if type(x) in _KINDS]
    storages: dict[int, list[int]] = {}
    for k in tensors:
        if arguments[k].layout is torch.strided:
            storages.setdefault(arguments[k].untyped_storage()._cdata, []).append(k)  # noqa: SLF001 - its address
    if len(storages) == len(tensors):
        return ()
    return tuple(tuple(group) for group in storages.values() if len(group) > 1)


def _meet(arguments: Sequence[Any], one: int, other: int) -> bool:
    (low, high), (first, last) = _span(arguments[one]), _span(arguments[other])
    return low < last and first < high


def _span(x: torch.Tensor) -> tuple[int, int]:
    """The bytes of a storage from a tensor's first element to its last one."""
    start = int(x.storage_offset())
    reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    return start * x.element_size(), (start + reach) * x.element_size()


def require_no_write(module: GraphModule, shared: Shared) -> None:
    """Raise a CaptureError if a forward or inference graph writes into one of two arguments that share memory."""
    inputs = module.graph.find_nodes(op="placeholder") if shared else []
    copied_into = {node.args[0] for node in module.graph.nodes if node.target is torch.ops.aten.copy_.default}
    written = {*written_inputs(), *(k for k, node in enumerate(inputs) if node in copied_into)}
    pair = next((pair for pair in shared if not written.isdisjoint(pair)), None)
    if pair is not None:
        raise CaptureError(f"arguments {pair[0]} and {pair[1]} share memory, and one of them is written")
