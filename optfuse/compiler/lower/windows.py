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
from optfuse.compiler.ops.max_pool import LARGEST_WINDOW

Tensor = View | Uniform


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along the last two dimensions: element k of window o is at ``o * stride - padding + k * dilation``."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(
        cls,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
        *,
        are_read: bool = True,
    ) -> Windows:
        """The windows of ATen's arguments: one number is for both dimensions, and the stride defaults to the kernel.

        ``are_read``: a window's elements are read by its output, and not outputs by the elements of their windows.

        Raises:
            Declined: If too many values are read.
        """
        made = cls(_pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation))
        apart = (1, 1) if are_read else made.stride
        if prod(-(-n // step) for n, step in zip(made.kernel, apart, strict=True)) > LARGEST_WINDOW:
            raise Declined("windows of many elements")
        return made

    def elements(self, index: Index) -> Iterator[tuple[int, tuple[sympy.Expr, sympy.Expr]]]:
        """(offset in the window, position in the image) of each element of the window at ``index``."""
        for offset, at in enumerate(product(range(self.kernel[0]), range(self.kernel[1]))):
            yield offset, (self._position(index, 0, at[0]), self._position(index, 1, at[1]))

    def _position(self, index: Index, d: int, k: int) -> sympy.Expr:
        return index[d - 2] * self.stride[d] - self.padding[d] + k * self.dilation[d]

    def first(self, index: Index) -> Expr:
        """The offset of the window's first element inside the image."""
        rows, columns = (self._skipped(index, d) for d in (0, 1))
        return call("add", call("mul", rows, const(self.kernel[1], "int32")), columns)

    def _skipped(self, index: Index, d: int) -> Expr:
        if not self.padding[d]:
            return const(0, "int32")
        before = Iota(self.padding[d] - index[d - 2] * self.stride[d], "int32")
        steps = before
        if self.dilation[d] > 1:
            rounded = call("add", before, const(self.dilation[d] - 1, "int32"))
            steps = call("floordiv", rounded, const(self.dilation[d], "int32"))
        return call("maximum", steps, const(0, "int32"))

    def covering(self, index: Index) -> Iterator[tuple[tuple[sympy.Expr, sympy.Expr], tuple[sympy.Expr, sympy.Expr]]]:
        """(window, position within it) of each window that may hold the element at ``index``. No dilation."""
        each = [range(-(-kernel // stride)) for kernel, stride in zip(self.kernel, self.stride, strict=True)]
        for back in product(*each):
            windows, within = [], []
            for d in (0, 1):
                shifted = index[d - 2] + self.padding[d]
                last, phase = (
                    (sympy.floor(shifted / self.stride[d]), sympy.Mod(shifted, self.stride[d]))
                    if self.stride[d] > 1
                    else (shifted, sympy.S.Zero)
                )
                windows.append(last - back[d])
                within.append(phase + back[d] * self.stride[d])
            yield (windows[0], windows[1]), (within[0], within[1])


def _pair(given: Sequence[int] | int) -> tuple[int, int]:
    values = [given] if isinstance(given, int) else [int(value) for value in given]
    return (values[0], values[-1])


@dataclass(frozen=True, slots=True)
class Held:
    """A window that holds an element at the position ``within``; ``where`` it is read, under ``guards``."""

    window: tuple[sympy.Expr, sympy.Expr]
    within: tuple[sympy.Expr, sympy.Expr]
    where: Index
    guards: tuple[Guard, ...]


def image(x: Tensor, index: Index, position: tuple[sympy.Expr, sympy.Expr]) -> tuple[Index, tuple[Guard, ...]]:
    """The index of a position in an image, and the guards that keep it inside."""
    guards = tuple(Guard(p, 0, n) for p, n in zip(position, x.shape[-2:], strict=True))
    return (*index[:-2], *position), guards


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
