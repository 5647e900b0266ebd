"""How much memory buffers take: the last row has its padding, too."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.ir.buffer_layout import padding, span
from optfuse.compiler.ir.nodes import Buffer


@pytest.mark.parametrize(
    ("shape", "stride", "elements", "beyond"),
    [
        ((), (), 1, 0),
        ((3, 0, 5), (0, 5, 1), 0, 0),
        ((4, 5), (5, 1), 20, 0),
        ((4, 5), (1, 4), 20, 0),
        ((2, 4, 49), (256, 64, 1), 512, 15),
        ((2, 1, 49), (64, 64, 1), 128, 15),
        ((1, 1, 49), (64, 64, 1), 49, 0),
        ((4, 5), (10, 2), 39, 0),
        ((2, 3, 4, 5), (60, 1, 15, 3), 120, 0),
    ],
)
def test_spans(shape: tuple[int, ...], stride: tuple[int, ...], elements: int, beyond: int) -> None:
    buffer = Buffer("x", "bfloat16", shape, stride)
    assert (span(buffer), padding(buffer) if elements else 0) == (elements, beyond)


def test_a_mask_that_attention_reads_in_vectors_has_whole_rows() -> None:
    class Attend(nn.Module):
        def forward(self, q: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias * 2 + 1)

    q, bias = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((2, 2, 25, 16), (1, 2, 25, 25)))
    source = optfuse.optimize(Attend(), (q, bias), name="attend").source  # type: ignore[union-attr]
    elements, pitch = re.findall(
        r"window\(empty\(\((\d+),\), .*?\), \(1, 2, 25, 25\), \(\d+, \d+, (\d+), 1\)\)", source
    )[0]
    assert int(elements) == 2 * 25 * int(pitch)
