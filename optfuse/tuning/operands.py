"""Tensors to run a kernel alone: shapes, strides and dtypes as in the program, with valid random values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy
import torch

from optfuse.compiler.codegen.reduction_passes import operands, stored
from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.kernel_spec import KernelSpec
from optfuse.compiler.ir.nodes import Buffer, Call, Expr, Load, Store, tvar
from optfuse.compiler.ir.torch_semantics import torch_dtype
from optfuse.compiler.ir.traversal import loads_under


def index_ends(spec: KernelSpec, buffers: Mapping[str, Buffer]) -> dict[str, int] | None:
    """Return for each buffer of indices the size of the dimension that it indexes, which its values must stay below.

    None if an index is computed in another way than by casts and wrapping: the kernel must not run on random values.
    """
    ends: dict[str, int] = {}
    for member in spec.members:
        loads = loads_under(operands(member.nest) + stored(member.nest))
        for access in (*loads, *member.nest.stores):
            for k, position in enumerate(access.indirect):
                taken = _taken_from(position)
                if taken is None or taken.buffer in spec.registers:
                    return None
                places = _places(access, k, buffers[access.buffer])
                ends[taken.buffer] = min(places, ends.get(taken.buffer, places))
    return ends


def _taken_from(position: Expr) -> Load | None:
    """The load that an index comes from, through casts and the wrapping of negative indices; None if there is none."""
    match position:
        case Load():
            return position
        case Call("cast", (inner,)) | Call("position", (inner, _)):
            return _taken_from(inner)
        case Call("where", (_, _, otherwise)):
            return _taken_from(otherwise)
        case _:
            return None


def _places(access: Load | Store, k: int, buffer: Buffer) -> int:
    """The size of the dimension that the k-th index selects in; 1, so that indices are 0, if it is unknown."""
    step = sympy.expand(access.index).coeff(tvar(k))
    return min((int(n) for n, s in zip(buffer.shape, buffer.stride, strict=True) if s == step), default=1)


def make_operands(
    names: tuple[str, ...], buffers: Mapping[str, Buffer], ends: Mapping[str, int], device: torch.device
) -> list[torch.Tensor]:
    """Return random tensors: normal floats, random Booleans, indices below their ends, other integers from 0 to 7."""
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
