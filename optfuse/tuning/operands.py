"""Tensors for a kernel by itself: of the right shapes, strides and types, with values that it can bear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy
import torch

from optfuse.compiler.codegen.reduction_passes import operands, stored
from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.kernel_spec import KernelSpec
from optfuse.compiler.ir.nodes import Buffer, Call, Expr, Load, tvar
from optfuse.compiler.ir.torch_semantics import torch_dtype
from optfuse.compiler.ir.traversal import loads_under


def index_ends(spec: KernelSpec, buffers: Mapping[str, Buffer]) -> dict[str, int] | None:
    """Of each buffer that says where to read another: the number of places there are, so that its values are less.

    None if some position is computed in a way that is not followed here: such a kernel must not run on made-up values.
    """
    ends: dict[str, int] = {}
    for member in spec.members:
        for load in loads_under(operands(member.nest) + stored(member.nest)):
            for k, position in enumerate(load.indirect):
                taken = _taken_from(position)
                if taken is None or taken.buffer in spec.registers:
                    return None
                places = _places(load, k, buffers[load.buffer])
                ends[taken.buffer] = min(places, ends.get(taken.buffer, places))
    return ends


def _taken_from(position: Expr) -> Load | None:
    """The load whose value a position is as long as it is no less than 0: casts, and the mending of negative ones."""
    match position:
        case Load():
            return position
        case Call("cast", (inner,)):
            return _taken_from(inner)
        case Call("where", (_, _, otherwise)):
            return _taken_from(otherwise)
        case _:
            return None


def _places(load: Load, k: int, buffer: Buffer) -> int:
    """The size of the dimension that the k-th position walks; 1, so that it is 0, where that is not seen."""
    step = sympy.expand(load.index).coeff(tvar(k))
    return min((int(n) for n, s in zip(buffer.shape, buffer.stride, strict=True) if s == step), default=1)


def make_operands(
    names: tuple[str, ...], buffers: Mapping[str, Buffer], ends: Mapping[str, int], device: torch.device
) -> list[torch.Tensor]:
    """Random numbers: normal ones, coin flips, positions below their ends; whole numbers that are none are 0 to 7."""
    return list(_made(names, buffers, ends, device))


def _made(
    names: tuple[str, ...], buffers: Mapping[str, Buffer], ends: Mapping[str, int], device: torch.device
) -> Iterator[torch.Tensor]:
    for name in names:
        buffer = buffers[name]
        shape, stride = buffer.shape, buffer.stride
        dtype = torch_dtype(buffer.dtype)
        memory = torch.empty(extent(shape, stride), dtype=dtype, device=device)
        if dtype.is_floating_point and dtype.itemsize > 1:
            memory.normal_()
        elif dtype is torch.bool:
            memory.random_(0, 2)
        elif dtype.is_floating_point or dtype.is_complex:
            memory.fill_(1)
        else:
            memory.random_(0, ends.get(name, 8))
        yield memory.as_strided(shape, stride)
