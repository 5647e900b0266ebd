"""Matmuls into a contiguous result whose rows are not aligned to 16 bytes, without a padded copy.

An output of the graph has the strides of eager execution: logits over a vocabulary of 50257 have contiguous rows, and
cuBLAS has no fast kernel that writes them (11.5 ms on an H200). Written with padding and copied, they take 0.86 and
0.43 ms and twice the memory. But every eighth row has the same alignment, so the rows fall into eight matmuls that each
write whole vectors, except for a few columns at both ends: 0.96 ms, and no further memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from optfuse.compiler.ir.nodes import Buffer, LibraryCall, View
from optfuse.compiler.ir.sizes import hint

#: Elements of a half type in 16 bytes.
VECTOR = 8
#: The least multiply-adds for which it is faster than one call.
LEAST_WORK = 1 << 30
#: The fewest rows of each of the matmuls.
LEAST_ROWS = 128

NAME = "matmul_by_rows"

DEFINITION = '''\
def matmul_by_rows(a, b, out, bias=None):
    """a @ b (+ bias) into a contiguous result whose rows do not start on whole vectors of eight elements.

    Every few rows start at the same place of a vector. A matmul of those alone writes whole vectors, but for a few
    columns at both ends, which are written before.
    """

    def with_term(x, values):
        return torch.cat([x, torch.nn.functional.pad(values[:, None], (0, 7))], 1)

    columns = out.shape[1]
    ends = torch.cat([b[:, :8], b[:, -8:]], 1)
    sides = torch.mm(a, ends) if bias is None else torch.addmm(torch.cat([bias[:8], bias[-8:]]), a, ends)
    out[:, :8] = sides[:, :8]
    out[:, -8:] = sides[:, 8:]
    if bias is not None:  # as one more term of each sum: cuBLAS itself adds a bias to contiguous results only
        a, b = with_term(a, a.new_ones(a.shape[0])), with_term(b.t(), bias).t()
    period = next(period for period in (1, 2, 4, 8) if period * columns % 8 == 0)
    for first in range(period):
        left = -first * columns % 8
        right = left + (columns - left) // 8 * 8
        torch.mm(a[first::period], b[:, left:right], out=out[first::period, left:right])
'''


@dataclass(frozen=True, slots=True)
class ByRows:
    """The operands of such a matmul."""

    a: View
    b: View
    bias: View | None


def by_rows(call: LibraryCall, buffers: Mapping[str, Buffer]) -> ByRows | None:
    """The operands of a matmul that is best computed by rows of equal alignment; None for other calls."""
    count = {"aten.mm.default": 2, "aten.addmm.default": 3}.get(call.target)
    if count != len(call.args) or call.kwargs or call.outputs[0] is None:
        return None
    *added, a, b = call.args
    bias = added[0] if added else None
    if not (isinstance(a, View) and isinstance(b, View) and isinstance(bias, View | None)):
        return None
    out = buffers[call.outputs[0]]
    rows, columns = out.shape
    gapless = out.stride == (columns, 1) and columns % VECTOR != 0 and columns >= 2 * VECTOR
    work = rows * columns * a.shape[1]
    large = hint(work) >= LEAST_WORK and hint(rows) * gcd(columns, VECTOR) >= LEAST_ROWS * VECTOR
    plain = bias is None or (len(bias.shape) == 1 and tuple(bias.stride) == (1,))
    if out.dtype not in ("bfloat16", "float16") or not (gapless and large and plain):
        return None
    whole = _whole_vectors(a) and _whole_vectors(View(b.buffer, b.shape[::-1], b.stride[::-1], b.offset))
    return ByRows(a, b, bias) if whole else None


def _whole_vectors(view: View) -> bool:
    """Whether every row is contiguous and consists of whole aligned vectors."""
    along = view.stride[1] == 1 and view.shape[1] % VECTOR == 0
    return along and view.stride[0] % VECTOR == 0 and view.offset % VECTOR == 0
