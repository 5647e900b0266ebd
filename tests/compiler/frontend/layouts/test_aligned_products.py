"""Products of ragged extents compute the same on padded operands, and are padded where that is measured to pay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.layouts.aligned_products import align_product, products_to_align
from optfuse.compiler.frontend.tracing.inference import capture
from tests.strategies import share

aten = torch.ops.aten
SIZES = st.sampled_from([2, 3, 7, 8, 9, 16, 20])


class Product(nn.Module):
    """A product of two matrices, or of several, either of them transposed in memory, plus a bias."""

    def __init__(self, bias: torch.Tensor | None, turned: tuple[bool, bool]) -> None:
        super().__init__()
        self.bias, self.turned = bias, turned

    def forward(self, a, b):
        a, b = (x.mT if turned else x for x, turned in zip((a, b), self.turned, strict=True))
        if self.bias is not None:
            return torch.addmm(self.bias, a, b)
        return torch.bmm(a, b) if a.dim() == 3 else torch.mm(a, b)


def products(graph):
    return [
        node for node in graph.graph.nodes if node.target in (aten.mm.default, aten.addmm.default, aten.bmm.default)
    ]


@given(SIZES, SIZES, SIZES, st.sampled_from(["mm", "addmm", "bmm"]), st.booleans(), st.booleans())
@settings(max_examples=share(40), derandomize=True, deadline=None)
def test_padded_operands_give_the_same_product(m, k, n, kind, left, right):
    generator = torch.Generator().manual_seed(m * 1000 + k * 100 + n)

    def drawn(*shape):  # whole numbers: sums are exact in any order
        return torch.randint(-4, 5, shape, generator=generator).to(torch.bfloat16)

    batch = (3,) if kind == "bmm" else ()
    a = drawn(*batch, k, m) if left else drawn(*batch, m, k)
    b = drawn(*batch, n, k) if right else drawn(*batch, k, n)
    model = Product(drawn(n) if kind == "addmm" else None, (left, right))
    graph = copied(capture(model, (a, b)).graph)
    inputs = {"a": a, "b": b}
    given_ = [inputs.get(node.name, model.bias) for node in graph.graph.nodes if node.op == "placeholder"]
    (before,) = graph(*given_)
    (product,) = products(graph)
    align_product(product, {})
    graph.recompile()
    (after,) = graph(*given_)
    assert torch.equal(before, after)
    (made,) = products(graph)
    result, (x, y) = made.meta["val"], (node.meta["val"] for node in made.args[-2:])
    contiguous = [
        size for value in (result, x, y) for size, step in zip(value.shape, value.stride(), strict=True) if step == 1
    ]
    assert 1 in (m, n) or not any(size % 8 for size in contiguous if size > 1)


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "dtype", "pays"),
    [
        (32768, 1024, 5, torch.bfloat16, True),  # 62 us, and 20 padded
        (32768, 256, 91, torch.float16, True),  # 27 and 7
        (32768, 257, 256, torch.bfloat16, True),  # 43 and 14
        (1024, 768, 2, torch.bfloat16, False),  # 6.3 and 3.7: no time for a copy of the weights
        (32768, 1024, 8, torch.bfloat16, False),  # whole vectors
        (8192, 1024, 401, torch.float32, False),  # as fast in float32 without TF32
        (32768, 1024, 1, torch.bfloat16, False),  # a matrix and a vector
        (8192, 1024, 5001, torch.bfloat16, False),  # computed as 5000 columns and 1
    ],
)
def test_products_are_padded_where_it_pays(rows, terms, columns, dtype, pays):
    class Rows(nn.Module):
        def forward(self, a, b):
            return torch.mm(a.relu(), b.mT).square()

    inputs = (torch.zeros(rows, terms, dtype=dtype), torch.zeros(columns, terms, dtype=dtype))
    graph = capture(Rows(), inputs).graph
    padded = [node for node in graph.graph.nodes if node.target is aten.constant_pad_nd.default]
    assert bool(padded) == pays
    assert not products_to_align(graph)  # none is left


@pytest.fixture
def tf32():
    """TF32 allowed in products."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("tf32")
def test_products_in_float32_are_padded_with_tf32():
    class Rows(nn.Module):
        def forward(self, a, b):
            return torch.mm(a.relu(), b.mT).square()

    graph = capture(Rows(), (torch.zeros(8192, 1024), torch.zeros(401, 1024))).graph
    (padded,) = [node for node in graph.graph.nodes if node.target is aten.constant_pad_nd.default]
    assert padded.meta["val"].shape == (404, 1024)


def test_what_leaves_the_graph_has_the_strides_of_eager_execution():
    class Scores(nn.Module):
        def forward(self, a, b):
            scores = torch.bmm(a, b.mT)
            return scores, scores.softmax(-1)

    a, b = (torch.randn(512, 49, 16, dtype=torch.bfloat16) for _ in range(2))
    compiled = torch.compile(Scores(), backend="optfuse")
    for one, other in zip(compiled(a, b), Scores()(a, b), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
