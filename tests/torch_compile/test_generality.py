"""What PyTorch's own tests found in ``torch.compile(f, backend="optfuse")``, a test for each class of defect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optfuse.compiler.frontend.calls.aliased_outputs import overlapping
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


@pytest.mark.spread(3)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("function", [as_strided_image, by_place, lambda x: by_place(F.relu(x)[1:])])
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


def constants_in_one_memory(x: Tensor) -> tuple[Tensor, ...]:
    a = torch.tensor([1, 2, 3])
    b = a[0:2]
    a[0] = 0
    return a, b, x + 1


def image_in_one_memory(x: Tensor) -> tuple[Tensor, ...]:
    y = F.relu(F.conv2d(x, torch.ones(8, 4, 1, 1)))
    return y[0], y, y.flatten(2)[:, :, 1::2]


@pytest.mark.spread(3)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function", [constants_in_one_memory, image_in_one_memory, lambda x: ((x * 2)[1:], (x * 2)[1:], (x + 1).chunk(2))]
)
def test_results_that_share_memory_in_eager_share_it(compiled: Compiler, function: Any, grad: bool) -> None:
    x = torch.randn(2, 4, 6, 6, requires_grad=grad)
    wanted, got = (torch.utils._pytree.tree_leaves(f(x)) for f in (function, compiled(function)))  # noqa: SLF001
    for y, z in zip(wanted, got, strict=True):
        assert z.stride() == y.stride()
        torch.testing.assert_close(z, y)
    with torch.no_grad():
        for k in range(len(wanted)):
            for results in (wanted, got):
                results[k].detach().flatten()[0] += 5 + k
                results[k].detach()[0] += 1
            torch.testing.assert_close(got, wanted)
    assert planned(compiled)


def test_results_share_memory_at_every_size(compiled: Compiler) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y[1:], y[2:]

    fast = compiled(function)
    for rows in (4, 6, 5):
        first, second = fast(torch.ones(rows, 3))
        first.add_(1)
        assert torch.equal(second, torch.full((rows - 2, 3), 3.0))


def test_which_windows_overlap() -> None:
    base = torch.zeros(4, 6)

    def overlap(one: Tensor, other: Tensor) -> bool:
        nodes = [SimpleNamespace(meta={"val": value}) for value in (one, other)]
        return overlapping(*nodes)  # type: ignore[arg-type]

    windows = [base[1:3], base[:, ::2], base[:, 1::2], base.t()[2:4], base[3], base[:2, 4:], base[:0], base[2, 2:3]]
    windows += [base.diagonal(), base.unfold(1, 3, 2), base[:1].expand(4, 6)]
    for one in windows:
        for other in windows:
            base.zero_()
            one.fill_(1)
            nothing = not one.numel() and not other.numel()  # two objects all the same
            assert overlap(one, other) == (bool(other.any()) or nothing)


def test_a_result_without_elements_needs_no_constant(compiled: Compiler) -> None:
    got = compiled(lambda: (torch.logspace(1, 3, 0), torch.tensor([1.5, 2.5])[:0].exp()))()
    assert [tuple(y.shape) for y in got] == [(0,), (0,)]


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize("shape", [(16,), (4, 4)])
def test_places_count_from_a_tensor_that_lies_in_an_arena(compiled: Compiler, shape: tuple[int, ...]) -> None:
    """The gradient's zeros lie behind another value in the arena: ATen counted from the arena's beginning."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, y, (2, 1, 1, 2), (1, 2, 4, 8), 2)

    x, y = torch.randn(shape, requires_grad=True), torch.randn(2, 1, 1, 2, requires_grad=True)
    weights = torch.arange(16.0).view(shape)
    wanted, got = (torch.autograd.grad((f(x, y) * weights).sum(), (x, y)) for f in (function, compiled(function)))
    torch.testing.assert_close(got, wanted)
    assert planned(compiled)


def test_tensors_without_values_run_as_they_were_traced(compiled: Compiler) -> None:
    for rows in (3, 4, 5):  # the last two are a range
        got = compiled(lambda x: x * 2)(torch.ones(rows, device="meta"))
        assert (tuple(got.shape), got.device.type) == ((rows,), "meta")


#: What ``calls_back`` calls, as often as is said.
CALLED: list[Any] = []


@torch.library.custom_op("optfuse_tests::calls_back", mutates_args=())
def calls_back(x: Tensor) -> Tensor:
    """Calls the next of ``CALLED``, which may be the compiled function that calls this operator."""
    return CALLED.pop()(x).clone()


@calls_back.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operator_may_call_the_function_that_calls_it(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return calls_back(x.sin()) * 2

    fast, x = compiled(function), torch.arange(3.0)
    CALLED[:] = [torch.cos, fast, fast]
    wanted = ((x.sin().sin().sin().cos() * 2) * 2) * 2
    torch.testing.assert_close(fast(x), wanted)
    assert not CALLED
    assert planned(compiled)


def attention_of_scattered_rows(x: Tensor) -> Tensor:
    a = x.as_strided((1, 6, 4), (0, 8, 2))
    return F.scaled_dot_product_attention(a, a, a, attn_mask=a[0, :, :1] > 0)


def attention_that_is_written(x: Tensor) -> Tensor:
    a = x.view(2, 6, 4)
    found = F.scaled_dot_product_attention(a, a, a)
    found.transpose(0, 1)[1:].mul_(2)
    return found + 1


@pytest.mark.spread(2)
@pytest.mark.parametrize("function", [attention_of_scattered_rows, attention_that_is_written])
def test_attention_of_any_layout_and_what_becomes_of_it(compiled: Compiler, function: Any) -> None:
    x = torch.randn(48, requires_grad=True)
    wanted, got = (f(x) for f in (function, compiled(function)))
    torch.testing.assert_close(got, wanted)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (wanted, got)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert planned(compiled)
