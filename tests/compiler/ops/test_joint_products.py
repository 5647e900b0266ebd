"""The kernel of products that share their few rows, interpreted, against products in float64."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

import optfuse.compiler.ops.joint_products
import optfuse.compiler.ops.ready_kernels
from optfuse.runtime.environment import mode, prepare

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture(scope="module")
def joint() -> ModuleType:
    """The module with its kernels interpreted."""
    prepare()
    importlib.reload(optfuse.compiler.ops.ready_kernels)
    return importlib.reload(optfuse.compiler.ops.joint_products)


@pytest.mark.spread(4)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [
        (2, 512, (48, 16)),
        (17, 528, (32, 80, 16)),
        (33, 640, (16, 16, 16, 96)),
        (64, 512, (4096, 4096)),
        (5, 1040, (6160,)),
        (100, 544, (48, 32)),
    ],
)
def test_against_float64(
    joint: ModuleType, rows: int, terms: int, columns: tuple[int, ...], dtype, biased: bool
) -> None:
    """Rows and sums that fill no tile; narrow and wide products; rows of x and of a weight that lie apart."""
    torch.manual_seed(rows)
    x = torch.randn(rows, terms + 32).to(dtype)[:, :terms]
    weights = [torch.randn(n, terms + 16 * k).to(dtype)[:, :terms] for k, n in enumerate(columns)]
    biases = [torch.randn(n).to(dtype) for n in columns] if biased else []
    out = torch.full((rows * sum(columns) + 8,), torch.nan, dtype=dtype)
    joint.joint_products_by_tiles(x, weights, biases, out[:-8])
    assert out[-8:].isnan().all(), "nothing is written behind the last product"
    pieces = out[:-8].split([rows * n for n in columns])
    for k, (piece, weight) in enumerate(zip(pieces, weights, strict=True)):
        exact = x.double() @ weight.double().T + (biases[k].double() if biased else 0)
        torch.testing.assert_close(piece.view(rows, -1).double(), exact, rtol=1e-2, atol=0.1)


def test_elsewhere_it_is_the_libraries(joint: ModuleType) -> None:
    x, weights = torch.randn(3, 32), [torch.randn(n, 32) for n in (8, 4)]
    out = torch.empty(36)
    assert joint.joint_products(x, weights, [], out=out) is out
    torch.testing.assert_close(out, torch.cat([(x @ w.T).flatten() for w in weights]))


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_weights_of_one_byte_are_read_as_such(joint: ModuleType, stored: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(6, 512).bfloat16(), (torch.randn(48, 512) * 20).abs().to(stored)
    out = torch.empty(6 * 48, dtype=torch.bfloat16)
    joint.joint_products_by_tiles(x, [weight], [], out)
    exact = x.double() @ weight.to(torch.bfloat16).double().T
    assert (out.view(6, 48).double() - exact).norm() < 0.005 * exact.norm()


@pytest.mark.parametrize("counts", [(3, 0, 0, 5), (0, 0, 8, 0), (1, 40, 0, 23), (0, 0, 0, 0)], ids=str)
def test_groups_of_rows_have_a_matrix_each(joint: ModuleType, counts: tuple[int, ...]) -> None:
    """Also groups of more rows than a tile, and rows behind the last group, which are left as they are."""
    torch.manual_seed(sum(counts))
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    rows = int(ends[-1]) + 2
    x, weights = torch.randn(rows, 64).bfloat16(), torch.randn(4, 48, 64).bfloat16()
    out = torch.full((rows, 48), 7.0, dtype=torch.bfloat16)
    joint.grouped_products_by_tiles(x, weights.transpose(1, 2), ends, out)
    assert (out[-2:] == 7.0).all()
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    exact = torch.einsum("tk,tnk->tn", x[:-2].double(), weights[group].double())
    torch.testing.assert_close(out[:-2].double(), exact, rtol=1e-2, atol=0.05)
