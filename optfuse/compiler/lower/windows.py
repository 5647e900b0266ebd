"""Windows of images, as pooling reads them: the elements of a window, and the windows that hold an element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import sympy

from optfuse.compiler.ir.dtypes import FLOATING
from optfuse.compiler.ir.nodes import Expr, Guard, Iota, View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, const
from optfuse.compiler.lower.registry import Declined, Uniform
from optfuse.compiler.lower.strided_layout import Index
from optfuse.compiler.ops.max_pool import LARGEST_WINDOW, per_dimension

Tensor = View | Uniform


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along the last dimensions: element k of window o is at ``o * stride - padding + k * dilation``.

    Each field has a number for each dimension of a window: two or three.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls,
        rank: int,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
        *,
        are_read: bool = True,
    ) -> Windows:
        """The windows of ATen's arguments: one number is for all dimensions, and the stride defaults to the kernel.

        ``rank``: the number of dimensions of a window.
        ``are_read``: a window's elements are read by its output, and not outputs by the elements of their windows.

        Raises:
            Declined: If too many values are read.
        """
        made = cls(*(per_dimension(given, rank) for given in (kernel, stride or kernel, padding, dilation)))
        apart = (1,) * rank if are_read else made.stride
        if prod(-(-n // step) for n, step in zip(made.kernel, apart, strict=True)) > LARGEST_WINDOW:
            raise Declined("windows of many elements")
        return made

    @property
    def rank(self) -> int:
        """The number of dimensions of a window."""
        return len(self.kernel)

    def elements(self, index: Index) -> Iterator[tuple[int, Index]]:
        """(offset in the window, position in the image) of each element of the window at ``index``."""
        for offset, at in enumerate(product(*map(range, self.kernel))):
            yield offset, tuple(self.start(index, d) + k * self.dilation[d] for d, k in enumerate(at))

    def start(self, index: Index, d: int) -> sympy.Expr:
        """Where the window at ``index`` starts along one of its dimensions: below 0 in the padding."""
        return index[d - self.rank] * self.stride[d] - self.padding[d]

    def first(self, index: Index) -> Expr:
        """The offset of the window's first element inside the image."""
        return row_major_offset([self._skipped(index, d) for d in range(self.rank)], self.kernel)

    def _skipped(self, index: Index, d: int) -> Expr:
        if not self.padding[d]:
            return const(0, "int32")
        before = Iota(-self.start(index, d), "int32")
        steps = before
        if self.dilation[d] > 1:
            rounded = call("add", before, const(self.dilation[d] - 1, "int32"))
            steps = call("floordiv", rounded, const(self.dilation[d], "int32"))
        return call("maximum", steps, const(0, "int32"))

    def covering(self, index: Index) -> Iterator[tuple[Index, Index]]:
        """(window, position within it) of each window that may hold the element at ``index``. No dilation."""
        each = [range(-(-kernel // stride)) for kernel, stride in zip(self.kernel, self.stride, strict=True)]
        for back in product(*each):
            windows: list[sympy.Expr] = []
            within: list[sympy.Expr] = []
            for d in range(self.rank):
                shifted = index[d - self.rank] + self.padding[d]
                last, phase = (
                    (sympy.floor(shifted / self.stride[d]), sympy.Mod(shifted, self.stride[d]))
                    if self.stride[d] > 1
                    else (shifted, sympy.S.Zero)
                )
                windows.append(last - back[d])
                within.append(phase + back[d] * self.stride[d])
            yield tuple(windows), tuple(within)


def pooled_dimensions(builder: Builder) -> int:
    """The number of dimensions of the windows of ATen's operator that is being lowered: 3 of ``avg_pool3d``."""
    return 3 if "pool3d" in str(builder.node.target) else 2


def row_major_offset(position: Sequence[Expr], sizes: Sequence[int]) -> Expr:
    """The row-major offset of a position in a box of ``sizes``, in the dtype of the position."""
    total = position[0]
    for at, size in zip(position[1:], sizes[1:], strict=True):
        total = call("add", call("mul", total, const(size, at.dtype)), at)
    return total


@dataclass(frozen=True, slots=True)
class Held:
    """A window that holds an element at the position ``within``; ``where`` it is read, under ``guards``."""

    window: Index
    within: Index
    where: Index
    guards: tuple[Guard, ...]


def image(x: Tensor, index: Index, position: Index) -> tuple[Index, tuple[Guard, ...]]:
    """The index of a position in an image, and the guards that keep it inside."""
    rank = len(position)
    guards = tuple(Guard(p, 0, n) for p, n in zip(position, x.shape[-rank:], strict=True))
    return (*index[:-rank], *position), guards


def holding(x: Tensor, windows: Windows, index: Index) -> Iterator[Held]:
    """The windows, outputs of ``x``, that may hold the element at ``index``; guards say which do."""
    for window, within in windows.covering(index):
        where, guards = image(x, index, window)
        reached = zip(within, windows.kernel, windows.stride, strict=True)
        yield Held(window, within, where, (*guards, *(Guard(k, 0, n) for k, n, step in reached if n % step)))


def floating(builder: Builder, *values: Tensor) -> None:
    """Refuse windows of integers."""
    if not {builder.dtype(value) for value in values} <= FLOATING:
        raise Declined("windows of integers")
