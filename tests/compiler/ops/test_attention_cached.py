"""The generated attention of few queries over many keys, interpreted, against matrix products in float64."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

import optfuse.compiler.ops.attention_cached
from optfuse.compiler.ops.attention import attention_weights
from optfuse.compiler.ops.attention_memory import attention_heads
from optfuse.runtime.environment import mode, prepare

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture(scope="module")
def cached() -> ModuleType:
    """The module with its kernels interpreted."""
    prepare()
    return importlib.reload(optfuse.compiler.ops.attention_cached)


def make(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.spread(4)
@pytest.mark.parametrize("processors", [1, 4, 132], ids=["whole", "few splits", "many splits"])
@pytest.mark.parametrize("masked", ["", "causal", "batch", "once", "expanded"])
@pytest.mark.parametrize(
    "sizes", [(2, 4, 2, 1, 200, 16, 16), (1, 6, 1, 5, 70, 24, 20), (3, 2, 2, 3, 64, 32, 32)], ids=str
)
def test_against_float64(cached: ModuleType, sizes: tuple[int, ...], masked: str, processors: int) -> None:
    """Sizes: batches, heads, groups, queries, keys, widths of keys and of values. One query sees nothing."""
    batches, heads, groups, length, columns, width, values = sizes
    query = make(batches, length, heads, width).transpose(1, 2)
    key, value = make(batches, groups, columns, width), make(batches, groups, columns, values)
    mask = None
    if masked in ("batch", "once", "expanded"):
        many = batches if masked == "batch" else 1
        mask = torch.randn(many, 1 if masked == "expanded" else heads, length, columns)
        mask[:, :, :, 5:9] = -torch.inf
        mask[-1, 0, length - 1] = -torch.inf if length > 1 or masked != "expanded" else 1.0
        mask = mask.to(torch.bfloat16) if masked == "batch" else mask
    found = cached.attention_by_splits(query, key, value, mask, masked == "causal", 0.3, processors)
    exact = [x.double() for x in (query, key, value)]
    bias = None if mask is None else mask.double().expand(batches, heads, length, columns)
    weights, _ = attention_weights(exact[0], exact[1], bias, masked == "causal", 0.3)
    expected = weights @ attention_heads(exact[2], heads)
    assert found.shape == expected.shape
    assert found.transpose(1, 2).is_contiguous()
    assert (found.double() - expected).norm() / expected.norm() < 6e-3
    if mask is not None and bool((mask[-1, 0, -1] == -torch.inf).all()):
        assert bool((found[-1, 0, -1] == 0).all())
