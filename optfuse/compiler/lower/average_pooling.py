"""Average pooling and its gradient as loops: sums over windows, or over the windows that hold an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from optfuse.compiler.ir.nodes import Expr, Iota, View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, const
from optfuse.compiler.lower.movement import guarded
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index
from optfuse.compiler.lower.windows import Windows, floating, holding, image

Tensor = View | Uniform


@dataclass(frozen=True, slots=True)
class _Averages:
    """Windows over an image of ``size`` with ``count`` outputs along each dimension; what their sums are divided by.

    ATen's window ends at the image's padding, also where ``ceil_mode`` lets it begin so late that it reaches further.
    """

    windows: Windows
    size: tuple[int, int]
    count: tuple[int, int]
    ceil_mode: bool
    with_padding: bool
    divisor: int | None

    def __post_init__(self) -> None:
        sizes = (*self.size, *self.count)
        if not all(self._is_whole(d) for d in (0, 1)) and not all(isinstance(n, int) for n in sizes):
            raise Declined("windows that reach over the edge of an image of a changing size")

    def divided(self, total: Expr, at: tuple[sympy.Expr, sympy.Expr]) -> Expr:
        """A sum over the output ``at``, or its gradient, by the number of elements."""
        if self.divisor is not None:
            return call("div", total, const(self.divisor, total.dtype))
        if all(self._is_whole(d) for d in (0, 1)):
            return call("div", total, const(self.windows.kernel[0] * self.windows.kernel[1], total.dtype))
        rows, columns = (self._elements(d, at[d]) for d in (0, 1))
        elements = call("maximum", call("mul", rows, columns), const(1, "int32"))  # of no window, where none is read
        return call("div", total, cast(elements, total.dtype))

    def _is_whole(self, d: int) -> bool:
        """Whether all windows have as many elements along a dimension as the kernel."""
        windows, padding = self.windows, self.windows.padding[d]
        if self.divisor is not None or (not self.ceil_mode and (not padding or self.with_padding)):
            return True
        last = (self.count[d] - 1) * windows.stride[d] - padding + windows.kernel[d]
        return bool(self.with_padding or not padding) and last <= self.size[d] + padding

    def _elements(self, d: int, at: sympy.Expr) -> Expr:
        """Elements of a window along a dimension."""
        windows, around = self.windows, self.windows.padding[d] if self.with_padding else 0
        if self._is_whole(d):
            return const(windows.kernel[d], "int32")
        start = Iota(at * windows.stride[d] - windows.padding[d], "int32")
        end = call("add", start, const(windows.kernel[d], "int32"))
        inside = call("minimum", end, const(self.size[d] + windows.padding[d], "int32"))
        inside = call("minimum", inside, const(self.size[d] + around, "int32"))
        return call("sub", inside, call("maximum", start, const(-around, "int32")))


def _last_two(shape: Sequence[int]) -> tuple[int, int]:
    return shape[-2], shape[-1]


@lowers("aten.avg_pool2d.default")
def lower_average_pool(
    builder: Builder,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    with_padding: bool = True,
    divisor: int | None = None,
) -> Value:
    """The mean of each window."""
    floating(builder, x)
    made = Windows.of(kernel, stride, padding)
    sizes = _last_two(x.shape), _last_two(builder.spec.shape)
    averages = _Averages(made, *sizes, ceil_mode, with_padding, divisor)

    def at(index: Index) -> Expr:
        total: Expr | None = None
        for _, position in averages.windows.elements(index):
            value = guarded(builder, x, *image(x, index, position), 0)
            total = value if total is None else call("add", total, value)
        assert total is not None, "a window has elements"
        return averages.divided(total, (index[-2], index[-1]))

    return builder.pointwise(at)


@lowers("aten.avg_pool2d_backward.default")
def lower_average_pool_backward(
    builder: Builder,
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    with_padding: bool,
    divisor: int | None,
) -> Value:
    """At each element: the sum of the gradients of the windows that hold it, each divided by its elements."""
    floating(builder, grad)
    made = Windows.of(kernel, stride, padding, are_read=False)
    sizes = _last_two(x.shape), _last_two(grad.shape)
    averages = _Averages(made, *sizes, ceil_mode, with_padding, divisor)

    def at(index: Index) -> Expr:
        total: Expr | None = None
        for held in holding(grad, averages.windows, index):
            value = averages.divided(guarded(builder, grad, held.where, held.guards, 0), held.window)
            total = value if total is None else call("add", total, value)
        assert total is not None, "an element is looked for in at least one window"
        return total

    return builder.pointwise(at)
