"""Triton functions that emitted kernels call: those that Triton lacks, or defines differently than ATen."""

from __future__ import annotations

import re

#: The text of the functions; an emitted module includes those that its kernels use.
PRELUDE = '''\
@triton.jit
def maximum(a, b):
    """The larger one; nan if either is nan, as in ATen."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """The smaller one; nan if either is nan, as in ATen."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def argmax(a, i, b, j):
    """The larger value and its position: the first one among equals; nan counts as the largest."""
    tie = (a == b) | ((a != a) & (b != b))
    keep = (a > b) | ((a != a) & (b == b)) | (tie & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def argmin(a, i, b, j):
    """The smaller value and its position: the first one among equals; nan counts as the smallest."""
    tie = (a == b) | ((a != a) & (b != b))
    keep = (a < b) | ((a != a) & (b == b)) | (tie & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def welford(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Mean, sum of squared deviations and count of two sets together; either may be empty."""
    count = count_a + count_b
    share = tl.where(count == 0, 0.0, count_b / count)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share, count


@triton.jit
def add_exponential(total, largest, x):
    """A sum of exp(y - largest) over some y, and with x among them, relative to the larger of largest and x."""
    change = tl.where(x == largest, 1.0, libdevice.exp(-tl.abs(x - largest)))
    return tl.where(x > largest, total * change + 1.0, total + change)


@triton.jit
def add_exponentials(total, largest, x):
    """The same for eight neighbours of a row at a time, in float32, and the larger of largest and them.

    The largest term of all is 1, so that the error of fast_expf, which grows with a term's distance from it, is lost.
    """
    eights = tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8))
    top = maximum(largest, tl.reduce(eights, 2, maximum))
    level = tl.where(top == float("-inf"), 0.0, top)
    terms = tl.sum(libdevice.fast_expf(eights - level[:, :, None]), 2)
    return total * libdevice.fast_expf(largest - level) + terms, top


@triton.jit
def last_of(rows):
    """The last element of each row."""
    last = tl.arange(0, rows.shape[1])[None, :] == rows.shape[1] - 1
    return tl.sum(tl.where(last, rows, 0), 1, keep_dims=True)


@triton.jit
def divide(a, b):
    """a / b, correctly rounded in float32 (Triton's own is not)."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    return a / b


@triton.jit
def square_root(x):
    """Correctly rounded in float32 (Triton's own is not)."""
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    return tl.sqrt(x)


@triton.jit
def sigmoid(x):
    return divide(tl.full((), 1.0, x.dtype), 1.0 + libdevice.exp(-x))


@triton.jit
def fast_sigmoid(x):
    """Within a few units in float32's last place."""
    return libdevice.fast_dividef(tl.full((), 1.0, tl.float32), 1.0 + libdevice.fast_expf(-x))


@triton.jit
def fast_tanh(x):
    """Within 1e-5 of the value, relatively."""
    small = x * (1.0 - 0.33333334 * x * x)
    decay = libdevice.fast_expf(-2.0 * tl.abs(x))
    ratio = libdevice.fast_dividef(1.0 - decay, 1.0 + decay)
    return tl.where(tl.abs(x) < 0.05, small, tl.where(x < 0, -ratio, ratio))


@triton.jit
def fast_erf(x):
    """Within 4e-5 of the value, relatively: 1 - exp(-t * P(t)) for t = abs(x), with P fitted on 0 to 4."""
    t = minimum(tl.abs(x), 4.0)
    p = 0.0020767751 * t - 0.020654001
    p = p * t + 0.10323533
    p = p * t + 0.636570
    p = p * t + 1.1283800
    value = tl.where(t < 0.01, 1.1283792 * t, 1.0 - libdevice.fast_expf(-t * p))
    return tl.where(x < 0, -value, value)


@triton.jit
def uniform_number(seed, position):
    """In [0, 1): four neighbours share a counter of Philox, each has one of its words."""
    a, b, c, d = tl.rand4x(seed, position >> 2)
    word = position & 3
    return tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))


@triton.jit
def uniform_numbers(seed, counter):
    """The numbers of four neighbours for each counter, beside each other along the last dimension."""
    a, b, c, d = tl.rand4x(seed, counter)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def uniform_numbers_down(seed, counter):
    """The same, of counters and along the first of two dimensions."""
    return tl.trans(uniform_numbers(seed, tl.trans(counter)))


@triton.jit
def relu(x):
    """max(x, 0), nan kept."""
    return tl.where(x < 0, tl.zeros_like(x), x)


@triton.jit
def sign(x):
    """-1, 0 or 1; 0 for nan."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def floor_quotient(a, b):
    """Integer division that rounds down."""
    remainder = a % b
    return a // b - ((remainder != 0) & ((remainder < 0) != (b < 0))).to(remainder.dtype)


@triton.jit
def floor_remainder(a, b):
    """The integer remainder with the sign of the divisor."""
    remainder = a % b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), remainder + b, remainder)


@triton.jit
def float_remainder(a, b):
    """The remainder with the sign of the divisor."""
    remainder = libdevice.fmod(a, b)
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), remainder + b, remainder)


@triton.jit
def float_floor_quotient(a, b):
    """The floor of the exact quotient, as ATen computes it."""
    remainder = libdevice.fmod(a, b)
    quotient = divide(a - remainder, b)
    quotient = tl.where((remainder != 0) & ((b < 0) != (remainder < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    zero = libdevice.copysign(tl.zeros_like(quotient), divide(a, b))
    return tl.where(b == 0, divide(a, b), tl.where(quotient != 0, whole, zero))


@triton.jit
def integer_power(base, exponent):
    """base ** exponent with wraparound; negative exponents give what rounds to zero from a fraction."""
    result = tl.zeros_like(base + exponent) + 1  # of the shape of both, as the loop leaves it
    square = base + tl.zeros_like(exponent)
    rest = exponent + tl.zeros_like(base)
    for _ in range(64):
        result = tl.where((rest & 1) != 0, result * square, result)
        square = square * square
        rest = rest >> 1
    odd = (exponent & 1) != 0
    inverse = tl.where(base == 1, 1, tl.where(base + 1 == 0, tl.where(odd, -1, 1), 0)).to(base.dtype)
    return tl.where(exponent < 0, inverse, result)


@triton.jit
def to_float8_e4m3fn(x):
    """Rounded to the nearest; what is beyond the largest number is that number, or nan where torch says so."""
    bits = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    if not FLOAT8_SATURATES:
        sign = (x.to(tl.uint32, bitcast=True) >> 24).to(tl.uint8) & 128
        bits = tl.where(tl.abs(x) <= 464.0, bits, sign | 127)
    return bits.to(tl.float8e4nv, bitcast=True)


# torch 2.11 makes nan of what is beyond the largest number, torch 2.13 that number, as a GPU does
FLOAT8_SATURATES = tl.constexpr(not torch.full((1,), 1000.0).to(torch.float8_e4m3fn).float().isnan().item())


@triton.jit
def to_float8_e5m2(x):
    """Rounded to the nearest; infinite beyond the largest number, as in torch (the GPU's conversion stays at it)."""
    sign = (x.to(tl.uint32, bitcast=True) >> 24).to(tl.uint8) & 128
    bits = tl.where(tl.abs(x) >= 61440.0, sign | 124, x.to(tl.float8e5).to(tl.uint8, bitcast=True))
    return bits.to(tl.float8e5, bitcast=True)


@triton.jit
def tensor_at(place, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    """The tensor whose address is in a table; its address is a multiple of 16 if all there are."""
    pointer = tl.load(place).to(tl.pointer_type(dtype))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def shift_left(a, b, BITS: tl.constexpr):
    """a << b; 0 where b is negative or no smaller than the width."""
    inside = (b >= 0) & (b < BITS)
    return tl.where(inside, a << tl.where(inside, b, 0).to(b.dtype), tl.zeros_like(a))


@triton.jit
def shift_right(a, b, BITS: tl.constexpr):
    """a >> b; only the sign is left where b is negative or no smaller than the width."""
    inside = (b >= 0) & (b < BITS)
    return a >> tl.where(inside, b, BITS - 1).to(b.dtype)
'''

#: The names of the functions.
PRELUDE_NAMES: frozenset[str] = frozenset(re.findall(r"^def (\w+)", PRELUDE, flags=re.MULTILINE))
