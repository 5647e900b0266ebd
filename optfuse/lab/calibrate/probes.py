"""The probes of a calibration: calls to time, each with the bytes it moves or the operations it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

#: Bytes that copies move, reads and writes together: 64 KiB to 2 GiB, two sizes an octave.
SIZES = tuple(int(2 ** (16 + k / 2)) // 4096 * 4096 for k in range(31))
BLOCK = 1024

#: Rows, inner and outer size of the matrix products of the measured models.
MATMULS = (
    (8192, 768, 2304), (8192, 768, 768), (8192, 768, 3072), (8192, 3072, 768), (8192, 768, 50257), (16384, 768, 768),
    (16384, 768, 3072), (16384, 3072, 768), (8192, 2048, 2048), (8192, 2048, 8192), (8192, 8192, 2048),
    (12608, 768, 3072), (50176, 384, 1536), (200704, 96, 384), (768, 8192, 3072), (3072, 16384, 768),
    (4096, 4096, 4096),
)  # fmt: skip
#: Batch, heads, length, head size, whether causal.
ATTENTIONS = ((8, 12, 1024, 64, True), (32, 12, 512, 64, False), (4, 32, 2048, 64, True), (64, 12, 197, 64, False))
#: Images, channels, side, filters, window, stride, groups.
CONVOLUTIONS = (
    (128, 64, 56, 64, 1, 1, 1), (128, 64, 56, 64, 3, 1, 1), (128, 128, 28, 128, 3, 1, 1), (128, 256, 14, 1024, 1, 1, 1),
    (128, 512, 7, 512, 3, 1, 1), (128, 3, 224, 64, 7, 2, 1), (64, 96, 56, 96, 7, 1, 96), (128, 144, 56, 144, 3, 1, 144),
)  # fmt: skip
#: Programs that share a fixed number of bytes, to see when they saturate the memory.
PROGRAMS = (8, 16, 33, 66, 99, 132, 198, 264, 528, 1056)
#: Numbers of addresses that atomic additions share: from a large table's to a few.
PLACES = (1 << 24, 1 << 20, 1 << 14, 1 << 8, 8)


@dataclass(frozen=True, slots=True)
class Probe:
    """A call to time. ``family`` and ``key`` name it; ``amount`` is bytes or operations, by family."""

    family: str
    key: tuple[Any, ...]
    amount: int
    call: Callable[[], Any]


def all_families(device: torch.device) -> dict[str, Callable[[], list[Probe]]]:
    """Makers of probes by family. Tensors are made when a maker is called: one family's are alive at a time."""
    return {
        "copy": lambda: copies(device),
        "turned": lambda: turned(device),
        "gather": lambda: gathers(device),
        "reduction": lambda: reductions(device),
        "programs": lambda: programs(device),
        "arithmetic": lambda: arithmetic(device),
        "atomics": lambda: atomics(device),
        "matmul": lambda: matmuls(device, torch.bfloat16),
        "matmul fp32": lambda: matmuls(device, torch.float32)[:6],
        "attention": lambda: attentions(device),
        "convolution": lambda: convolutions(device),
    }


def start(kernel: Any, programs: int, *args: Any, **constants: Any) -> None:
    """Launch a Triton function."""
    kernel[(programs,)](*args, **constants)


def copies(device: torch.device) -> list[Probe]:
    """Copies of all sizes that fit."""
    from optfuse.lab.calibrate import kernels

    source = torch.zeros(SIZES[-1] // 4, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)

    def probe(size: int) -> Probe:
        n = size // 4  # two bytes an element, read and written

        def call() -> None:
            start(kernels.copy, -(-n // BLOCK), source, target, n, BLOCK=BLOCK)

        return Probe("copy", (size,), size, call)

    return [probe(size) for size in SIZES]


def turned(device: torch.device) -> list[Probe]:
    """Transposed reads."""
    from optfuse.lab.calibrate import kernels

    def probe(rows: int, columns: int) -> Probe:
        x = torch.zeros(rows, columns, dtype=torch.bfloat16, device=device)
        y = torch.empty_like(x)

        def call() -> None:
            start(kernels.turned, -(-x.numel() // BLOCK), x, y, rows, columns, BLOCK=BLOCK)

        return Probe("turned", (rows, columns), 4 * x.numel(), call)

    return [probe(rows, columns) for rows, columns in ((4096, 768), (16384, 768), (64 * 56 * 56, 96), (8192, 8192))]


def gathers(device: torch.device) -> list[Probe]:
    """Rows of a table in random order."""
    from optfuse.lab.calibrate import kernels

    def probe(rows: int, columns: int, table: int) -> Probe:
        x = torch.zeros(table, columns, dtype=torch.bfloat16, device=device)
        index = torch.randint(0, table, (rows,), device=device)
        y = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)

        def call() -> None:
            start(kernels.gather, -(-y.numel() // BLOCK), x, index, y, columns, y.numel(), BLOCK=BLOCK)

        return Probe("gather", (rows, columns, table), 4 * y.numel(), call)

    return [probe(8192, 768, 50257), probe(65536, 768, 50257), probe(1 << 20, 64, 1 << 21), probe(1 << 23, 8, 1 << 24)]


def reductions(device: torch.device) -> list[Probe]:
    """Sums of rows and of columns."""
    from optfuse.lab.calibrate import kernels

    found: list[Probe] = []
    for rows, columns in ((8192, 768), (65536, 768), (16384, 4096), (200704, 96)):
        x = torch.zeros(rows, columns, dtype=torch.bfloat16, device=device)
        y = torch.empty(max(rows, columns), dtype=torch.float32, device=device)

        def by_row(x: torch.Tensor = x, y: torch.Tensor = y, rows: int = rows, columns: int = columns) -> None:
            start(kernels.row_sums, rows, x, y, columns, BLOCK=BLOCK)

        def by_column(x: torch.Tensor = x, y: torch.Tensor = y, rows: int = rows, columns: int = columns) -> None:
            start(kernels.column_sums, -(-columns // 32), x, y, rows, columns, X=32, R=64)

        found.append(Probe("reduction", ("rows", rows, columns), 2 * x.numel(), by_row))
        found.append(Probe("reduction", ("columns", rows, columns), 2 * x.numel(), by_column))
    return found


def programs(device: torch.device) -> list[Probe]:
    """The same bytes summed by few and by many programs."""
    from optfuse.lab.calibrate import kernels

    x = torch.zeros(1 << 27, dtype=torch.bfloat16, device=device)
    y = torch.empty(PROGRAMS[-1], dtype=torch.float32, device=device)

    def probe(count: int) -> Probe:
        columns = x.numel() // count // BLOCK * BLOCK

        def call() -> None:
            start(kernels.row_sums, count, x, y, columns, BLOCK=BLOCK * 4)

        return Probe("programs", (count,), 2 * count * columns, call)

    return [probe(count) for count in PROGRAMS]


def arithmetic(device: torch.device) -> list[Probe]:
    """Chains of functions in registers."""
    from optfuse.lab.calibrate import kernels

    n, times = 1 << 24, 32
    y = torch.empty(n, dtype=torch.float32, device=device)

    def probe(number: int) -> Probe:
        def call() -> None:
            start(kernels.arithmetic, n // BLOCK, y, F=number, TIMES=times, BLOCK=BLOCK)

        return Probe("arithmetic", (kernels.FUNCTIONS.get(number, "fma"),), n * times * (2 if number == 0 else 1), call)

    return [probe(number) for number in (0, *kernels.FUNCTIONS)]


def atomics(device: torch.device) -> list[Probe]:
    """Atomic additions of 2^24 numbers at random addresses; the fewer addresses, the more contention."""
    from optfuse.lab.calibrate import kernels

    n = 1 << 24
    y = torch.zeros(PLACES[0], dtype=torch.float32, device=device)

    def probe(places: int) -> Probe:
        index = torch.randint(0, places, (n,), device=device, dtype=torch.int32)

        def call() -> None:
            start(kernels.atomics, n // BLOCK, index, y, n, BLOCK=BLOCK)

        return Probe("atomics", (places,), n, call)

    return [probe(places) for places in PLACES]


def matmuls(device: torch.device, dtype: torch.dtype) -> list[Probe]:
    """Matrix products of the library."""

    def probe(m: int, k: int, n: int) -> Probe:
        a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
        out = torch.empty(m, n, device=device, dtype=dtype)
        name = "matmul" if dtype == torch.bfloat16 else "matmul fp32"
        return Probe(name, (m, k, n), 2 * m * k * n, lambda: torch.mm(a, b.t(), out=out))

    return [probe(*shape) for shape in MATMULS]


def attentions(device: torch.device) -> list[Probe]:
    """Attention of the library, forward, and backward with it (forward's time is taken off by the fit)."""
    found: list[Probe] = []
    for batch, heads, length, size, causal in ATTENTIONS:
        q, k, v = (
            torch.randn(batch, heads, length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        gradient = torch.randn_like(q)

        def forward(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Any:
            with torch.no_grad():
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        def both(q: Any = q, k: Any = k, v: Any = v, g: Any = gradient, causal: bool = causal) -> Any:
            return torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=causal), (q, k, v), g)

        key = (batch, heads, length, size, causal)
        products = 4 * batch * heads * length * length * size
        found.append(Probe("attention", ("forward", *key), products, forward))
        found.append(Probe("attention", ("both", *key), products + products * 10 // 4, both))
    return found


def convolutions(device: torch.device) -> list[Probe]:
    """Convolutions of the library, channels last."""

    def probe(count: int, channels: int, side: int, filters: int, window: int, stride: int, groups: int) -> Probe:
        last = torch.channels_last
        x = torch.randn(count, channels, side, side, device=device, dtype=torch.bfloat16).to(memory_format=last)
        w = torch.randn(filters, channels // groups, window, window, device=device, dtype=torch.bfloat16)
        w = w.to(memory_format=last)
        out = (side + 2 * (window // 2) - window) // stride + 1
        work = 2 * count * filters * out * out * (channels // groups) * window * window

        def call() -> Any:
            with torch.no_grad():
                return F.conv2d(x, w, None, stride, window // 2, 1, groups)

        return Probe("convolution", (count, channels, side, filters, window, stride, groups), work, call)

    return [probe(*shape) for shape in CONVOLUTIONS]
