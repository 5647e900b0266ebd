"""Average pooling and its gradient as loops: sums over windows, or over the windows that hold an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from optfuse.compiler.ir.nodes import Expr, Iota, View
from optfuse.compiler.lower.builder import Builder
from optfuse.compiler.lower.expressions import call, cast, const
from optfuse.compiler.lower.movement import guarded
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index
from optfuse.compiler.lower.windows import Windows, floating, holding, image, pooled_dimensions

Tensor = View | Uniform


@dataclass(frozen=True, slots=True)
class _Averages:
    """Windows over an image of ``size`` with ``count`` outputs along each dimension; what their sums are divided by.

    ATen's window ends at the image's padding, also where ``ceil_mode`` lets it begin so late that it reaches further.
    """

    windows: Windows
    size: tuple[int, ...]
    count: tuple[int, ...]
    ceil_mode: bool
    with_padding: bool
    divisor: int | None

    def __post_init__(self) -> None:
        sizes = (*self.size, *self.count)
        if not self._are_whole and not all(isinstance(n, int) for n in sizes):
            raise Declined("windows that reach over the edge of an image of a changing size")

    def divided(self, total: Expr, at: Index) -> Expr:
        """A sum over the output ``at``, or its gradient, by the number of elements."""
        if self.divisor is not None:
            return call("div", total, const(self.divisor, total.dtype))
        if self._are_whole:
            return call("div", total, const(prod(self.windows.kernel), total.dtype))
        inside: Expr = reduce(lambda a, b: call("mul", a, b), [self._elements(at, d) for d in range(len(at))])
        elements = call("maximum", inside, const(1, "int32"))  # of no window, where none is read
        return call("div", total, cast(elements, total.dtype))

    @property
    def _are_whole(self) -> bool:
        """Whether all windows have as many elements as the kernel."""
        return all(self._is_whole(d) for d in range(self.windows.rank))

    def _is_whole(self, d: int) -> bool:
        """Whether all windows have as many elements along a dimension as the kernel."""
        windows, padding = self.windows, self.windows.padding[d]
        if self.divisor is not None or (not self.ceil_mode and (not padding or self.with_padding)):
            return True
        last = (self.count[d] - 1) * windows.stride[d] - padding + windows.kernel[d]
        return bool(self.with_padding or not padding) and last <= self.size[d] + padding

    def _elements(self, at: Index, d: int) -> Expr:
        """Elements of the window ``at`` along a dimension."""
        windows, around = self.windows, self.windows.padding[d] if self.with_padding else 0
        if self._is_whole(d):
            return const(windows.kernel[d], "int32")
        start = Iota(windows.start(at, d), "int32")
        end = call("add", start, const(windows.kernel[d], "int32"))
        inside = call("minimum", end, const(self.size[d] + windows.padding[d], "int32"))
        inside = call("minimum", inside, const(self.size[d] + around, "int32"))
        return call("sub", inside, call("maximum", start, const(-around, "int32")))


@lowers("aten.avg_pool2d.default", "aten.avg_pool3d.default")
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
    rank = pooled_dimensions(builder)
    made = Windows.of(rank, kernel, stride, padding)
    sizes = x.shape[-rank:], builder.spec.shape[-rank:]
    averages = _Averages(made, *sizes, ceil_mode, with_padding, divisor)

    def at(index: Index) -> Expr:
        total: Expr | None = None
        for _, position in averages.windows.elements(index):
            value = guarded(builder, x, *image(x, index, position), 0)
            total = value if total is None else call("add", total, value)
        assert total is not None, "a window has elements"
        return averages.divided(total, index[-rank:])

    return builder.pointwise(at)


@lowers("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
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
    rank = pooled_dimensions(builder)
    made = Windows.of(rank, kernel, stride, padding, are_read=False)
    sizes = x.shape[-rank:], grad.shape[-rank:]
    averages = _Averages(made, *sizes, ceil_mode, with_padding, divisor)

    def at(index: Index) -> Expr:
        total: Expr | None = None
        for held in holding(grad, averages.windows, index):
            value = averages.divided(guarded(builder, grad, held.where, held.guards, 0), held.window)
            total = value if total is None else call("add", total, value)
        assert total is not None, "an element is looked for in at least one window"
        return total

    return builder.pointwise(at)
