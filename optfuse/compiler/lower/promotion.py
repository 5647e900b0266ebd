"""ATen's type promotion, by torch's own utilities; cached by kind, dtypes and ranks."""

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

#: An operand of promotion: a tensor's dtype and whether it has dimensions, or a Python scalar's type.
Operand = tuple[str, bool] | type

_KINDS = {"same": KIND.DEFAULT, "float": KIND.INT_TO_FLOAT, "bool": KIND.DEFAULT, "long": KIND.BOOL_TO_LONG}


@dataclass(frozen=True, slots=True)
class Promotion:
    """The common dtype of the operands, the computation dtype, and the output's dtype."""

    common: str
    compute: str
    result: str


@lru_cache(maxsize=4096)
def promote(kind: Kind, operands: tuple[Operand, ...]) -> Promotion:
    """The dtypes of a pointwise op of this kind over ``operands``."""
    _, common = elementwise_dtypes(*(_stand_in(o) for o in operands), type_promotion_kind=_KINDS[kind])
    name = str(common).removeprefix("torch.")
    return Promotion(name, compute_dtype(name), "bool" if kind == "bool" else name)


def _stand_in(operand: Operand) -> torch.Tensor | bool | int | float:
    """A minimal operand of this dtype and rank for torch's utility."""
    if isinstance(operand, tuple):
        dtype, dimensioned = operand
        return torch.empty((1,) if dimensioned else (), dtype=getattr(torch, dtype), device="meta")
    return operand(1)
