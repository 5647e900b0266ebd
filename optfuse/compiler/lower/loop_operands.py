"""Which operands loops can read, by their dtypes and devices."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from optfuse.compiler.ir.dtypes import HALF, LIMITED
from optfuse.compiler.ir.nodes import View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import DTYPES
from optfuse.compiler.lower.limited_dtypes import MOVING
from optfuse.compiler.lower.pointwise import POINTWISE, TAKE_NUMBERS_WIDE
from optfuse.compiler.lower.registry import Uniform


def loops_cover(builder: Builder, node: fx.Node, args: Any, kwargs: Any) -> bool:
    """Whether every tensor has a dtype of the loop IR, and all are on the device of the loops.

    Uniform tensors may be on any device, since they are inlined as scalars; so may uniform results of them alone.
    """
    operands = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, View | Uniform)]
    specs = builder.specs
    dtypes = {builder.dtype(v) for v in operands} | {spec.dtype for spec in specs}
    if not LIMITED.isdisjoint(dtypes) and str(node.target) not in MOVING | POINTWISE:
        return False
    made = {spec.device for spec in specs}
    numbers = _reads_numbers(builder, node)
    views = [v for v in operands if isinstance(v, View) and not (numbers and not builder.buffers[v.buffer].shape)]
    read = {builder.device(v) for v in views}
    return dtypes <= DTYPES and read <= {builder.main} and len(read | made) <= 1


def _reads_numbers(builder: Builder, node: fx.Node) -> bool:
    """Whether loops may read operands without dimensions from the host: kernels get copies of them.

    Whether eager execution rounds such a number to a half type in which it computes is known of some operators alone.
    """
    target = str(node.target)
    computed = target in POINTWISE and all(spec.device == builder.main for spec in builder.specs)
    return computed and (target in TAKE_NUMBERS_WIDE or all(spec.dtype not in HALF for spec in builder.specs))
