"""Tiny kernels, one for each mend of the interpreter. Import this only after ``prepare``."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def copy_as(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value.to(y.dtype.element_ty), mask=i < n)


@triton.jit
def arithmetic(x, y, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(z + i, a * b + a - b)


@triton.jit
def order(x, y, low, high, less, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(low + i, tl.minimum(a, b))
    tl.store(high + i, tl.maximum(a, b))
    tl.store(less + i, (a < b).to(tl.float32))


@triton.jit
def clamp_and_fill(x, y, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(y + i, tl.clamp(a, -0.5, 0.5))
    tl.store(z + i, tl.full((BLOCK,), 1.0039, tl.bfloat16))


@triton.jit
def functions(x, t, e, g, p, s, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(t + i, libdevice.tanh(a))
    tl.store(e + i, tl.erf(a))
    tl.store(g + i, libdevice.log1p(tl.abs(a)))
    tl.store(p + i, libdevice.pow(tl.abs(a), 1.5))
    tl.store(s + i, libdevice.signbit(a))


@triton.jit
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def welford(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    share = count_b / count
    return mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share, count


@triton.jit
def custom_reductions(x, top, mean, m2, first, R: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, R)[:, None]
    j = tl.arange(0, C)[None, :]
    a = tl.load(x + i * C + j)
    row = tl.arange(0, R)
    tl.store(top + row, tl.reduce(a, 1, nan_max))
    mu, s, _ = tl.reduce((a, tl.zeros_like(a), tl.full((R, C), 1.0, tl.float32)), 1, welford)
    tl.store(mean + row, mu)
    tl.store(m2 + row, s)
    tl.store(first, tl.reduce(tl.reshape(a, (R * C,)), 0, nan_max))


@triton.jit
def plain_reductions(x, total, top, R: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, R)[:, None]
    j = tl.arange(0, C)[None, :]
    a = tl.load(x + i * C + j)
    row = tl.arange(0, R)
    tl.store(total + row, tl.sum(a, 1))
    tl.store(top + row, tl.max(a, 1))


@triton.jit
def matmul(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)[:, None]
    j = tl.arange(0, N)[None, :]
    tl.store(c + i * N + j, tl.dot(tl.load(a + i * N + j), tl.load(b + i * N + j)))


@triton.jit
def looped_sum(x, y, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y, tl.sum(total, 0))


@triton.jit
def asserting(x):
    tl.device_assert(tl.load(x) > 0, "not positive")


@triton.jit
def int1_arithmetic(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    positive = tl.load(x + i) > 0
    tl.store(y + i, (positive + positive).to(tl.int32))


@triton.jit
def library(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(y + i, tl.sigmoid(a) + a.sum(0) + tl.softmax(a) + tl.rand(7, i))
