"""Which operators are loops for dtypes that ATen supports in few operators: float8, uint16, uint32 and uint64.

Any other operator on them is a library call, and fails as it does in eager execution.
"""

from __future__ import annotations

from optfuse.compiler.ir.dtypes import FLOAT8

_COMPARED = "eq.Tensor eq.Scalar ne.Tensor ne.Scalar where.self isnan.default"
_UNSIGNED = (
    "isinf.default mul.Tensor mul.Scalar "
    "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor bitwise_or.Tensor bitwise_or.Scalar "
    "bitwise_or.Scalar_Tensor bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor"
)
_MOVED = (
    "_to_copy.default clone.default lift_fresh_copy.default copy.default fill.Scalar fill.Tensor scalar_tensor.default "
    "full.default full_like.default new_full.default ones.default ones_like.default new_ones.default zeros.default "
    "zeros_like.default new_zeros.default zero.default empty.memory_format empty_like.default new_empty.default "
    "empty_strided.default new_empty_strided.default empty_permuted.default "
    "cat.default stack.default constant_pad_nd.default slice_scatter.default select_scatter.default flip.default "
    "roll.default repeat.default index.Tensor index_select.default "
    "sum.default sum.dim_IntList any.default any.dim any.dims all.default all.dim all.dims"
)


def _overloads(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


#: Operators that keep elements as they are, or convert them to another dtype before they compute.
MOVING = _overloads(_MOVED) | {"prims.convert_element_type.default"}
_ON_FLOAT8 = _overloads(f"{_COMPARED} abs.default")
_ON_UNSIGNED = _overloads(f"{_COMPARED} {_UNSIGNED}")


def computes_in(target: str, dtype: str) -> bool:
    """Whether an elementwise operator whose operands' common dtype is this limited one is loops."""
    return target in (_ON_FLOAT8 if dtype in FLOAT8 else _ON_UNSIGNED)
