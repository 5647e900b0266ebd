"""Matmuls into a contiguous result whose rows are not aligned to 16 bytes, without a padded copy.

An output of the graph has the strides of eager execution: logits over a vocabulary of 50257 have contiguous rows, and
cuBLAS has no fast kernel that writes them (11.5 ms on an H200). Written with padding and copied, they take 0.86 and
0.43 ms and twice the memory. But every eighth row has the same alignment, so the rows fall into eight matmuls that each
write whole vectors, except for a few columns at both ends: 0.96 ms, and no further memory. In float32 with TF32, of
four elements a vector, a product of 2048 x 768 and 50257 takes 1.35 ms in one matmul, 1.60 padded and copied, and 0.60
in four (H100).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from optfuse.compiler.ir.nodes import Buffer, LibraryCall, View
from optfuse.compiler.ir.sizes import hint

#: Elements in 16 bytes, by type.
VECTORS = {"bfloat16": 8, "float16": 8, "float32": 4}
#: The least multiply-adds for which it is faster than one call.
LEAST_WORK = 1 << 30
#: The fewest rows of each of the matmuls.
LEAST_ROWS = 128

NAME = "matmul_by_rows"

DEFINITION = '''\
def matmul_by_rows(a, b, out, bias=None):
    """a @ b (+ bias) into a contiguous result whose rows do not start on whole vectors of 16 bytes.

    Every few rows start at the same place of a vector. A matmul of those alone writes whole vectors, but for a few
    columns at both ends, which are written before. In float32 without TF32 one matmul is as fast.
    """

    if out.dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32":
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
    vector = 16 // out.element_size()

    def with_term(x, values):  # and zeros: rows of whole 64 bytes are read faster
        return torch.cat([x, torch.nn.functional.pad(values[:, None], (0, 4 * vector - 1))], 1)

    columns = out.shape[1]
    ends = torch.cat([b[:, :vector], b[:, -vector:]], 1)
    added = None if bias is None else torch.cat([bias[:vector], bias[-vector:]])
    sides = torch.mm(a, ends) if added is None else torch.addmm(added, a, ends)
    out[:, :vector] = sides[:, :vector]
    out[:, -vector:] = sides[:, vector:]
    if bias is not None:  # as one more term of each sum: cuBLAS itself adds a bias to contiguous results only
        a, b = with_term(a, a.new_ones(a.shape[0])), with_term(b.t(), bias).t()
    period = next(period for period in (1, 2, 4, 8) if period * columns % vector == 0)
    for first in range(period):
        left = -first * columns % vector
        right = left + (columns - left) // vector * vector
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
    vector = VECTORS.get(out.dtype)
    if vector is None:
        return None
    gapless = out.stride == (columns, 1) and columns % vector != 0 and columns >= 2 * vector
    work = rows * columns * a.shape[1]
    large = hint(work) >= LEAST_WORK and hint(rows) * gcd(columns, vector) >= LEAST_ROWS * vector
    plain = bias is None or (len(bias.shape) == 1 and tuple(bias.stride) == (1,))
    if not (gapless and large and plain):
        return None
    whole = _whole_vectors(a, vector) and _whole_vectors(
        View(b.buffer, b.shape[::-1], b.stride[::-1], b.offset), vector
    )
    return ByRows(a, b, bias) if whole else None


def _whole_vectors(view: View, vector: int) -> bool:
    """Whether every row is contiguous and consists of whole aligned vectors."""
    along = view.stride[1] == 1 and view.shape[1] % vector == 0
    return along and view.stride[0] % vector == 0 and view.offset % vector == 0
