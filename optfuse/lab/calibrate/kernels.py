"""The Triton kernels that a calibration times: what generated kernels do, one thing at a time.

Import this on a machine with a GPU only, or after ``optfuse.runtime.environment.prepare``.
"""

# pyright: basic
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def nothing(x):
    """A launch."""


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    """Contiguous reads and writes."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def turned(x, y, rows, columns, BLOCK: tl.constexpr):
    """Contiguous writes of a transposed matrix: neighbours in the result are a row apart in memory."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < rows * columns
    tl.store(y + i, tl.load(x + (i % rows) * columns + i // rows, mask=mask), mask=mask)


@triton.jit
def gather(x, index, y, columns, n, BLOCK: tl.constexpr):
    """Rows of a table by number."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index + i // columns, mask=i < n, other=0)
    tl.store(y + i, tl.load(x + row * columns + i % columns, mask=i < n), mask=i < n)


@triton.jit
def row_sums(x, y, columns, BLOCK: tl.constexpr):
    """One program a row, in a loop over the row."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        j = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + j, mask=j < columns, other=0.0).to(tl.float32)
    tl.store(y + row, tl.sum(total, 0))


@triton.jit
def column_sums(x, y, rows, columns, X: tl.constexpr, R: tl.constexpr):
    """One program for some columns, in a loop over the rows."""
    j = tl.program_id(0) * X + tl.arange(0, X)[None, :]
    total = tl.zeros((R, X), tl.float32)
    for start in range(0, rows, R):
        i = (start + tl.arange(0, R)[:, None]).to(tl.int64)
        total += tl.load(x + i * columns + j, mask=(i < rows) & (j < columns), other=0.0).to(tl.float32)
    tl.store(y + j, tl.sum(total, 0)[None, :], mask=j < columns)


@triton.jit
def atomics(index, y, n, BLOCK: tl.constexpr):
    """Additions at places that an index tells."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(index + i, mask=i < n, other=0)
    tl.atomic_add(y + place, tl.full((BLOCK,), 1.0, tl.float32), mask=i < n)


@triton.jit
def arithmetic(y, F: tl.constexpr, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    """A function again and again on values in registers; F 0 is multiply-add, the others as ``FUNCTIONS`` lists."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = i.to(tl.float32) * 1e-9 + 0.5
    for _ in tl.static_range(TIMES):
        if F == 0:
            value = value * 0.999 + 0.001
        elif F == 1:
            value = tl.exp(value * -0.5)
        elif F == 2:
            value = libdevice.erf(value) + 0.1
        elif F == 3:
            value = libdevice.tanh(value) + 0.1
        elif F == 4:
            value = tl.rsqrt(value + 0.5)
        elif F == 5:
            value = tl.log(value + 1.5)
        elif F == 6:
            value = tl.sin(value) + 0.1
        else:
            value = 1.0 / (value + 0.5)
    tl.store(y + i, value, mask=value > 1e9)


#: Functions by number.
FUNCTIONS = {1: "exp", 2: "erf", 3: "tanh", 4: "rsqrt", 5: "log", 6: "sin", 7: "reciprocal"}
