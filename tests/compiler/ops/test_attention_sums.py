"""The generated gradient of a shared mask, interpreted, against matrix products."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

import optfuse.compiler.ops.attention_sums
from optfuse.compiler.ops.attention import attention_backward_math, attention_weights
from optfuse.compiler.ops.attention_memory import attention_heads
from optfuse.runtime.environment import mode, prepare

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture(scope="module")
def sums() -> ModuleType:
    """The module with its kernel interpreted."""
    prepare()
    return importlib.reload(optfuse.compiler.ops.attention_sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [(3, 4, 2, 40, 70, 16, 16), (2, 2, 2, 64, 64, 24, 20), (1, 2, 1, 33, 65, 32, 32)], ids=str
)
def test_sum_over_batches(sums: ModuleType, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    """Sizes: batches, heads, groups, rows, columns, widths of keys and of values. One row sees nothing."""
    batches, heads, groups, rows, columns, width, values = sizes

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype).transpose(1, 2)

    query, key = make(batches, rows, heads, width), make(batches, columns, groups, width)
    value, grad = make(batches, columns, groups, values), make(batches, rows, heads, values)
    mask = torch.randn(1, heads, rows, columns).to(dtype)
    mask[:, 0, 3], mask[:, :, 5, :4] = -torch.inf, -torch.inf
    weights, lse = attention_weights(query, key, mask, False, 0.3)
    out = (weights @ attention_heads(value.to(weights.dtype), heads)).to(dtype)
    expected = attention_backward_math(grad, query, key, value, mask, lse, None, 0.0, False, 0.3)[3].sum(
        0, keepdim=True
    )
    found = sums.attention_mask_sum(grad, query, key, value, mask, out, lse, 0.3)
    assert found.dtype == dtype
    assert found.stride()[2] == columns + -columns % 16
    error = (found.double() - expected).norm() / expected.norm()
    assert error < (5e-3 if dtype == torch.bfloat16 else 1e-5)
