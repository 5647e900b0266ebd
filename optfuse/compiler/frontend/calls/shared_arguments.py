"""Arguments in memory: a graph that writes into one is compiled for those that share it, some for their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.torch_internals.torch_bridge import FakeTensor, written_inputs
from optfuse.errors import CaptureError

_KINDS = (torch.Tensor, torch.nn.Parameter, FakeTensor)

#: Pairs of arguments, by number.
Shared = tuple[tuple[int, int], ...]


def shared_memory(arguments: Sequence[Any]) -> Shared:
    """The pairs of tensors among arguments that lie in one storage and are not known to have no byte in common."""
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
    x, y = arguments[one], arguments[other]
    if not (x.numel() and y.numel()):
        return False
    steps = {step for tensor in (x, y) for step in _strides(tensor)}
    return _windows_meet(_window(x), _window(y), sorted(steps, reverse=True))


#: The byte of a storage at which a tensor begins, and by stride in bytes the length of a dimension, less one; that of
#: stride 1 are the bytes of an element.
_Window = tuple[int, dict[int, int]]


def _strides(x: torch.Tensor) -> list[int]:
    return [step * x.element_size() for n, step in zip(x.shape, x.stride(), strict=True) if n > 1 and step]


def _window(x: torch.Tensor) -> _Window:
    lengths = {1: x.element_size() - 1}
    for n, step in zip(x.shape, x.stride(), strict=True):
        if n > 1 and step:
            bytes_ = step * x.element_size()
            lengths[bytes_] = lengths.get(bytes_, 0) + n - 1
    return int(x.storage_offset()) * x.element_size(), lengths


def _windows_meet(one: _Window, other: _Window, strides: Sequence[int]) -> bool:
    """Whether windows may have a byte in common, told by rows of the largest stride where each lies inside of its rows.

    Columns of one matrix have none, though the span from the first byte to the last of one meets the other's.
    """
    (low, high), (first, last) = _span(one), _span(other)
    if low > last or first > high:
        return False
    if not strides:
        return True
    row, *smaller = strides
    (a, inside), (b, beside) = (
        (start % row, {s: n for s, n in lengths.items() if s != row}) for start, lengths in (one, other)
    )
    if max(_span((a, inside))[1], _span((b, beside))[1]) >= row:
        return True  # a row reaches into the next one
    rows = [(start // row, start // row + lengths.get(row, 0)) for start, lengths in (one, other)]
    apart = rows[0][0] > rows[1][1] or rows[1][0] > rows[0][1]
    return not apart and _windows_meet((a, inside), (b, beside), smaller)


def _span(window: _Window) -> tuple[int, int]:
    """The first byte of a window and its last one."""
    start, lengths = window
    return start, start + sum(step * n for step, n in lengths.items())


def require_no_write(module: GraphModule, shared: Shared) -> None:
    """Raise a CaptureError if a forward or inference graph writes into one of two arguments that share memory."""
    inputs = module.graph.find_nodes(op="placeholder") if shared else []
    copied_into = {node.args[0] for node in module.graph.nodes if node.target is torch.ops.aten.copy_.default}
    written = {*written_inputs(), *(k for k, node in enumerate(inputs) if node in copied_into)}
    pair = next((pair for pair in shared if not written.isdisjoint(pair)), None)
    if pair is not None:
        raise CaptureError(f"arguments {pair[0]} and {pair[1]} share memory, and one of them is written")
