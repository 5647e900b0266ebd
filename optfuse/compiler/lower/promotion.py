"""ATen's type promotion, by asking torch's own utilities. Cached by dtype and rank, which is all that it depends on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from optfuse.compiler.lower.expressions import compute_dtype

#: "same": the common dtype. "float": integers become the default float dtype. "bool": computed in the common dtype,
#: the result is bool. "long": bool becomes int64 (pow).
Kind = Literal["same", "float", "bool", "long"]

#: What promotion sees of an operand: a tensor's dtype and whether it has dimensions, or a Python scalar's type.
Operand = tuple[str, bool] | type

_KINDS = {"same": KIND.DEFAULT, "float": KIND.INT_TO_FLOAT, "bool": KIND.DEFAULT, "long": KIND.BOOL_TO_LONG}


@dataclass(frozen=True, slots=True)
class Promotion:
    """The dtype that operands are brought to, the one that is computed in, and the output's."""

    common: str
    compute: str
    result: str


@lru_cache(maxsize=4096)
def promote(kind: Kind, operands: tuple[Operand, ...]) -> Promotion:
    """The dtypes of an elementwise op over ``operands``, in the way of ``kind``."""
    _, common = elementwise_dtypes(*(_stand_in(o) for o in operands), type_promotion_kind=_KINDS[kind])
    name = str(common).removeprefix("torch.")
    return Promotion(name, compute_dtype(name), "bool" if kind == "bool" else name)


def _stand_in(operand: Operand) -> torch.Tensor | bool | int | float:
    """The smallest thing that torch's utility takes for an operand of this dtype and rank."""
    if isinstance(operand, tuple):
        dtype, dimensioned = operand
        return torch.empty((1,) if dimensioned else (), dtype=getattr(torch, dtype), device="meta")
    return operand(1)
