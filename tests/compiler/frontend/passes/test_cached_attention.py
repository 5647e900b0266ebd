"""Attention of few queries over many keys becomes the operator that splits the keys; other attention does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.passes.cached_attention import split_cached_attention
from tests.compiler.frontend.passes.graphs import operators, run, traced

aten = torch.ops.aten

SPLIT = "optfuse.attention_cached.default"


def make(*shape: int) -> Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def repeated(x: Tensor, times: int) -> Tensor:
    """Each head of keys for as many heads of queries, as transformers writes it."""
    batch, heads, length, width = x.shape
    wide = aten.expand.default(aten.unsqueeze.default(x, 2), [batch, heads, times, length, width])
    return aten.view.default(aten.clone.default(wide), [batch, heads * times, length, width])


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 - it has no public name
    return flash(query, key, value, **{"attn_mask": mask, **options})[0]


def grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor]:
    return (attend(query, repeated(key, 4), repeated(value, 4), mask),)


def scaled(query: Tensor, key: Tensor, value: Tensor, _: Tensor) -> tuple[Tensor]:
    return (attend(query, repeated(key, 4), repeated(value, 4), scale=0.3),)


@pytest.mark.parametrize("function", [grouped, scaled], ids=lambda function: function.__name__)
def test_heads_are_not_repeated(function: Callable[..., Any]) -> None:
    inputs = make(2, 8, 1, 16), make(2, 2, 256, 16), make(2, 2, 256, 16), make(2, 1, 1, 256)
    captured = split_cached_attention(traced(function, *inputs))
    found = operators(captured)
    assert SPLIT in found
    assert not {"expand.default", "clone.default"} & set(found)
    assert not any("scaled_dot_product" in name for name in found)
    (out,), (expected,) = run(captured, *inputs), function(*inputs)
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)


def test_heads_of_one_query_head_each() -> None:
    query, key, value = (
        make(2, 4, 3, 16).transpose(1, 2).contiguous().transpose(1, 2),
        make(2, 4, 200, 16),
        make(2, 4, 200, 16),
    )
    captured = split_cached_attention(traced(lambda *x: (attend(*x, is_causal=True),), query, key, value))
    assert operators(captured) == [SPLIT]
    torch.testing.assert_close(
        run(captured, query, key, value)[0], attend(query, key, value, is_causal=True), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize(
    ("heads", "length", "columns", "dtype"),
    [
        (2, 1, 64, torch.bfloat16),
        (2, 64, 256, torch.bfloat16),
        (80, 1, 256, torch.bfloat16),
        (2, 1, 256, torch.float32),
    ],
    ids=["few keys", "many queries", "many heads", "float32"],
)
def test_other_attention_stays(heads: int, length: int, columns: int, dtype: torch.dtype) -> None:
    query, key = make(1, heads, length, 16).to(dtype), make(1, 1, columns, 16).to(dtype).expand(1, heads, -1, -1)
    key = key if heads < 80 else repeated(key[:, :1], heads)
    captured = traced(lambda q, k: (attend(q, repeated(k[:, :1], heads), repeated(k[:, :1], heads)),), query, key)
    assert SPLIT not in operators(split_cached_attention(captured))


def test_what_else_is_read_stays() -> None:
    """The log-sum-exp is not an output of ours."""

    def function(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        flash = aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 - it has no public name
        return flash(query, key, value)

    captured = traced(function, make(1, 2, 1, 16), make(1, 2, 256, 16), make(1, 2, 256, 16))
    assert SPLIT not in operators(split_cached_attention(captured))
