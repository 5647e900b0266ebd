"""Each mend of the interpreter, against torch: without it, its test fails on triton 3.6 or on 3.9."""

import pytest
import torch

from optfuse.runtime.environment import mode
from optfuse.runtime.interpreter_patch import narrow, widen

pytestmark = pytest.mark.skipif(mode() == "compile", reason="the interpreter is not in use on a machine with a GPU")

BF16 = torch.bfloat16


@pytest.fixture
def kernels():
    from tests.runtime import tiny_kernels

    return tiny_kernels


def halves(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(BF16)


def test_narrow_rounds_to_nearest_even_and_keeps_the_special_values():
    x = torch.tensor([1.0039, 1.00390625, 1.01171875, -0.0, float("inf"), 3.4e38, 1e-40])
    assert torch.equal(torch.from_numpy(narrow(x.numpy())).view(BF16), x.to(BF16))
    assert narrow(torch.tensor(float("nan")).numpy()).shape == ()
    assert torch.isnan(torch.from_numpy(widen(narrow(torch.tensor([float("nan")]).numpy())))).all()


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16])
def test_cast_to_bfloat16_rounds(kernels, source):
    x = (torch.randn(200, generator=torch.Generator().manual_seed(1)) * 300).to(source)
    y = torch.empty(200, dtype=BF16)
    kernels.copy_as[(2,)](x, y, 200, BLOCK=128)
    assert torch.equal(y, x.to(BF16))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_rounded_to_the_nearest_and_saturates_as_on_a_gpu(kernels, dtype):
    largest = torch.finfo(dtype).max
    x = torch.cat([torch.linspace(-2, 2, 1001) ** 5 * largest / 16, torch.tensor([float("inf"), -1e9, 1e-9])])
    y, z = torch.empty(1004, dtype=dtype), torch.empty(256)
    kernels.copy_as[(8,)](x, y, 1004, BLOCK=128)
    assert torch.equal(y.float(), x.clamp(-largest, largest).to(dtype).float())
    every = torch.arange(256).to(torch.uint8).view(dtype)
    kernels.copy_as[(2,)](every, z, 256, BLOCK=128)
    torch.testing.assert_close(z, every.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", [torch.float32, torch.int32, torch.float16, torch.bool])
def test_cast_from_bfloat16_reads_numbers_not_bits(kernels, target):
    x = halves(128) * 5
    y = torch.empty(128, dtype=target)
    kernels.copy_as[(1,)](x, y, 128, BLOCK=128)
    assert torch.equal(y, x.to(target))


def test_bfloat16_arithmetic_rounds_each_operation(kernels):
    a, b, z = halves(64, 1), halves(64, 2), torch.empty(64, dtype=BF16)
    kernels.arithmetic[(1,)](a, b, z, BLOCK=64)
    assert torch.equal(z, a * b + a - b)


def test_bfloat16_order(kernels):
    a, b = halves(64, 1), halves(64, 2)
    low, high, less = torch.empty(64, dtype=BF16), torch.empty(64, dtype=BF16), torch.empty(64)
    kernels.order[(1,)](a, b, low, high, less, BLOCK=64)
    assert torch.equal(low, torch.minimum(a, b))
    assert torch.equal(high, torch.maximum(a, b))
    assert torch.equal(less, (a < b).float())


def test_minimum_ignores_nan_as_the_hardware_does(kernels):
    a, b = torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, float("nan")])
    low, high, less = torch.empty(2), torch.empty(2), torch.empty(2)
    kernels.order[(1,)](a, b, low, high, less, BLOCK=2)
    assert low.tolist() == [2.0, 1.0]
    assert high.tolist() == [2.0, 1.0]


def test_bfloat16_clamp_and_fill(kernels):
    a = halves(64)
    y, z = torch.empty(64, dtype=BF16), torch.empty(64, dtype=BF16)
    kernels.clamp_and_fill[(1,)](a, y, z, BLOCK=64)
    assert torch.equal(y, a.clamp(-0.5, 0.5))
    assert torch.equal(z, torch.full((64,), 1.0039, dtype=BF16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_libdevice_and_erf(kernels, dtype):
    x = torch.randn(64, dtype=dtype, generator=torch.Generator().manual_seed(3))
    t, e, g, p = (torch.empty(64, dtype=dtype) for _ in range(4))
    s = torch.empty(64, dtype=torch.int32)
    kernels.functions[(1,)](x, t, e, g, p, s, BLOCK=64)
    torch.testing.assert_close(t, torch.tanh(x))
    torch.testing.assert_close(e, torch.erf(x))
    torch.testing.assert_close(g, torch.log1p(x.abs()))
    torch.testing.assert_close(p, x.abs() ** 1.5)
    assert torch.equal(s, torch.signbit(x).int())


def test_custom_reductions(kernels):
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(4))
    x[2, 5] = float("nan")
    top, mean, m2, first = torch.empty(4), torch.empty(4), torch.empty(4), torch.empty(1)
    kernels.custom_reductions[(1,)](x, top, mean, m2, first, R=4, C=32)
    torch.testing.assert_close(top, x.amax(1), equal_nan=True)
    assert torch.isnan(first).all()
    torch.testing.assert_close(mean, x.mean(1), equal_nan=True)
    torch.testing.assert_close(m2, x.var(1, correction=0) * 32, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_plain_reductions(kernels, dtype):
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(5)).to(dtype)
    x[1] = float("nan")
    x[2, 0] = float("nan")
    total, top = torch.empty(4, dtype=dtype), torch.empty(4, dtype=dtype)
    kernels.plain_reductions[(1,)](x, total, top, R=4, C=32)
    torch.testing.assert_close(total, x.sum(1), equal_nan=True)
    expected = x.nan_to_num(nan=-float("inf")).amax(1)
    expected[1] = float("nan")
    torch.testing.assert_close(top, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, BF16])
def test_dot_of_halves(kernels, dtype):
    a = torch.randn(16, 16, generator=torch.Generator().manual_seed(6)).to(dtype)
    b = torch.randn(16, 16, generator=torch.Generator().manual_seed(7)).to(dtype)
    c = torch.empty(16, 16)
    kernels.matmul[(1,)](a, b, c, N=16)
    torch.testing.assert_close(c, a.float() @ b.float())


def test_run_time_loop_bounds(kernels):
    x, y = torch.ones(300), torch.empty(1)
    kernels.looped_sum[(1,)](x, y, 300, BLOCK=128)
    assert y.item() == 300


def test_device_assert_is_live(kernels):
    kernels.asserting[(1,)](torch.ones(1))
    with pytest.raises(Exception, match="not positive"):
        kernels.asserting[(1,)](-torch.ones(1))


def test_int1_wraps_around(kernels):
    y = torch.empty(8, dtype=torch.int32)
    kernels.int1_arithmetic[(1,)](torch.ones(8), y, BLOCK=8)
    assert y.tolist() == [0] * 8
