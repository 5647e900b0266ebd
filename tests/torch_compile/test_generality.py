"""What PyTorch's own tests found in ``torch.compile(f, backend="optfuse")``, a test for each class of defect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler, planned

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture
def compiled() -> Compiler:
    """The compiler, with nothing compiled before."""
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)
    return Compiler()


def as_strided_image(x: Tensor) -> Tensor:
    return F.pad(x, [2, 2, 2, 2]).as_strided((2, 8, 2, 20, 12), (3200, 400, 160, 1, 20)) * 2


@torch.library.custom_op("optfuse_tests::by_place", mutates_args=())
def by_place(x: Tensor) -> Tensor:
    """Reads memory without a look at strides, as a kernel of a user's own may."""
    return x.as_strided((x.numel(),), (1,)) * 1


@by_place.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.numel())


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("function", [as_strided_image, by_place, lambda x: by_place(F.relu(x).flatten(0, 1)[2:])])
def test_memory_that_is_read_by_place_lies_as_in_eager(compiled: Compiler, function: Any, train: bool) -> None:
    convolution = nn.Conv2d(16, 8, 1, bias=False).requires_grad_(train and function is as_strided_image)
    x = torch.randn(2, 16, 16, 16)
    wanted, got = function(convolution(x)), compiled(lambda x: function(convolution(x)))(x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    if wanted.requires_grad:
        gradients = [torch.autograd.grad(y.square().sum(), convolution.weight)[0] for y in (wanted, got)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert planned(compiled)


@pytest.mark.parametrize("stride", [(16, 1), (1, 16), (3, 64)])
def test_copies_keep_the_layout_of_what_they_overwrite(compiled: Compiler, stride: tuple[int, int]) -> None:
    def function(x: Tensor) -> Tensor:
        result = torch.empty_strided((16, 8), stride)
        result[:] = x + x
        return result

    x = torch.randn(16, 8)
    got = compiled(function)(x)
    assert got.stride() == stride
    torch.testing.assert_close(got, x + x)


CAPTURED = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}


def test_a_size_that_a_check_settles_is_checked(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        places = x.nonzero()
        torch._check(places.size(0) == 4)  # noqa: SLF001 - public
        return places + 3

    def number(x: Tensor) -> Tensor:
        n = x[0].item()
        torch._check(n == 1)  # noqa: SLF001 - public
        return x * n

    x = torch.tensor([1, 1, 3, 4, 0, 0])
    with torch._dynamo.config.patch(CAPTURED):  # noqa: SLF001 - its public face
        for checked in (function, number):
            fast = compiled(checked, fullgraph=True)
            assert torch.equal(fast(x), checked(x))
            with pytest.raises(RuntimeError):
                fast(x * 0)


def test_the_last_compile_takes_every_size(compiled: Compiler) -> None:
    fast = compiled(lambda x: torch.softmax(x, -1).chunk(2), fullgraph=True)
    limit = torch._dynamo.config.recompile_limit  # noqa: SLF001 - its public face
    for rows in range(2, limit + 6):
        x = torch.randn(2 * rows, 3)
        torch.testing.assert_close(fast(x), torch.softmax(x, -1).chunk(2))
    assert len(compiled.names()) == limit - 1
    assert len(compiled.runs) == limit
