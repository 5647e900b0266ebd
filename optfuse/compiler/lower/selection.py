"""Lower ``topk``, ``kthvalue`` and ``median`` where they take few elements of short rows: rounds of extrema.

Each round is a reduction that finds the greatest (or smallest) element that no earlier round took. Rounds share the
walk of other reductions of the same rows, so that a softmax and the choice of its largest elements are one kernel. nan
is the greatest element, as in ATen; among equal elements the first comes first, where ATen promises no order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.dtypes import FLOATING, integer_range
from optfuse.compiler.ir.nodes import Expr, Iota, LoopNest, Reduction, Store, View
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.lower.builder import Builder, Spec
from optfuse.compiler.lower.collapse import collapse
from optfuse.compiler.lower.expressions import call, cast, compute_dtype, const, like
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.scans import held_in
from optfuse.compiler.lower.sorting import ranked
from optfuse.compiler.lower.strided_layout import Index, loop_variables, memory_order, strided_index

Tensor = View | Uniform

#: The most rounds. Each costs about as much as a maximum with its position.
MOST_ROUNDS = 8
#: The longest row that rounds search: a program holds it in registers. Libraries take 10 to 17 us for 16 of them.
LONGEST_ROW = 1024


@lowers("aten.topk.default")
def lower_topk(builder: Builder, x: Tensor, k: int, dim: int = -1, largest: bool = True, _sorted: bool = True) -> Value:
    """The k greatest (or smallest) elements of each row and their positions, in order."""
    if not isinstance(k, Size) and k > MOST_ROUNDS:
        return ranked(builder, x, dim, descending=largest)
    rounds = _Rounds(builder, x, dim, largest=largest, count=k)
    return rounds.last(builder.specs) if k == 1 else rounds.stacked([rounds.next(j) for j in range(k)])


@lowers("aten.kthvalue.default")
def lower_kthvalue(builder: Builder, x: Tensor, k: int, dim: int = -1, _keepdim: bool = False) -> Value:
    """The k-th smallest element of each row and its position, by rounds from the nearer end."""
    size = x.shape[dim] if x.shape else 1
    from_above = not isinstance(k, Size) and not isinstance(size, Size) and size + 1 - k < k
    count = size + 1 - k if from_above else k
    rounds = _Rounds(builder, x, dim, largest=from_above, count=count)
    for j in range(count - 1):
        rounds.next(j)
    return rounds.last(builder.specs)


@lowers("aten.median.dim")
def lower_median(builder: Builder, x: Tensor, dim: int, _keepdim: bool = False) -> Value:
    """The lower median of each row and its position; of a row with nan, nan and its first position."""
    count = (x.shape[dim] + 1) // 2 if x.shape else 1
    rounds = _Rounds(builder, x, dim, largest=False, count=count)
    for j in range(count - 1):
        rounds.next(j)
    return rounds.last(builder.specs, nan_first=True)


class _Rounds:
    """The rounds of the current node over the rows of ``x`` along ``dim``, and what the rounds so far have taken.

    Raises Declined, before anything is emitted, where a library does better.
    """

    def __init__(self, builder: Builder, x: Tensor, dim: int, *, largest: bool, count: int) -> None:
        if not x.shape or isinstance(x.shape[dim], Size) or isinstance(count, Size):
            raise Declined("a choice from a number, or of a number of elements that changes")
        self.size = x.shape[dim]
        if not 1 <= count <= MOST_ROUNDS or self.size > LONGEST_ROW:
            raise Declined(f"a choice of {count} elements of {self.size}")
        self.builder, self.x, self.dim, self.largest = builder, x, dim % len(x.shape), largest
        self.dtype = held_in(builder.dtype(x))
        builder.require_loops(builder.specs[0].device)
        if self.dtype in FLOATING:
            self.worst = const(-math.inf if largest else math.inf, self.dtype)
        else:
            self.worst = const(integer_range(self.dtype)[0 if largest else 1], self.dtype)
        self.taken: list[View] = []

    def next(self, number: int) -> tuple[View, ...]:
        """Emit a round that keeps its dimension, and return the value that it takes of each row, and the position."""
        values, places = self.builder.specs
        shape = tuple(1 if d == self.dim else n for d, n in enumerate(self.x.shape))
        specs = tuple(Spec(shape, row_major(shape), spec.dtype, spec.device) for spec in (values, places))
        return self.last(specs, name=f"{self.builder.node.name}_round{number}")

    def last(self, specs: Sequence[Spec], *, name: str | None = None, nan_first: bool = False) -> tuple[View, ...]:
        """Emit a round into tensors of ``specs``. ``nan_first``: any nan wins."""
        stride = self.x.stride if isinstance(self.x, View) else row_major(self.x.shape)

        def finish(results: tuple[Expr, ...], _: Index) -> tuple[Expr, ...]:
            value, at = self._taken_of(results, nan_first=nan_first)
            return cast(value, compute_dtype(specs[0].dtype)), at

        outs = self.builder.reduction(
            self.x.shape,
            stride,
            (self.dim,),
            lambda index: self._fold(index, nan_first=nan_first),
            finish,
            ordered=True,
            specs=specs,
            name=name,
        )
        self.taken.append(outs[1])
        return outs

    def stacked(self, rounds: Sequence[tuple[View, ...]]) -> tuple[View, ...]:
        """The values and the positions of the rounds, side by side in the node's outputs: one nest stores both."""
        outs = self.builder.allocate_outputs(self.builder.specs)
        if 0 in outs[0].shape:
            return outs
        order = memory_order(range(len(outs[0].shape)), outs[0].stride)
        index, sizes, _ = loop_variables(outs[0].shape, order)
        place = Iota(index[self.dim], "int32")

        def chosen(which: int, out: View) -> Store:
            dtype = compute_dtype(self.builder.dtype(out))
            *first, value = (cast(self.builder.load(found[which], index), dtype) for found in rounds)
            for j in reversed(range(len(first))):
                value = call("where", call("eq", place, like(j, place)), first[j], value)
            return Store(out.buffer, strided_index(out.shape, out.stride, out.offset, index), value)

        stores = tuple(chosen(which, out) for which, out in enumerate(outs))
        name = self.builder.node.name
        self.builder.emit(collapse(LoopNest(name, sizes, (), (), stores, self.builder.origin)))
        return outs

    def _fold(self, index: Index, *, nan_first: bool) -> tuple[Reduction, ...]:
        """The best key, its position, and the first position that is left: what remains may be as bad as what is taken.

        For the smallest elements a nan is as bad as what is taken, and its position is counted behind all others.
        """
        element = cast(self.builder.load(self.x, index), self.dtype)
        here = index[self.dim]
        nan = call("isnan", element) if self.dtype in FLOATING else None
        behind = nan if not self.largest else None
        left: Expr = Iota(here, "int32")
        out = None if behind is None else behind
        if behind is not None:
            left = call("where", behind, Iota(here + self.size, "int32"), left)
        for place in self.taken:
            hit = call("eq", Iota(here, "int64"), self.builder.load(place, index))
            left = call("where", hit, like(2 * self.size, left), left)
            out = hit if out is None else call("bitwise_or", out, hit)
        key = element if out is None else call("where", out, self.worst, element)
        best, position = ("max", "argmax") if self.largest else ("min", "argmin")
        folds = [Reduction(best, key), Reduction(position, key)]
        if out is not None:
            folds.append(Reduction("min", left))
        if nan_first and nan is not None:
            first = call("where", nan, Iota(here, "int32"), const(self.size, "int32"))
            folds.append(Reduction("min", first))
        return tuple(folds)

    def _taken_of(self, results: tuple[Expr, ...], *, nan_first: bool) -> tuple[Expr, Expr]:
        """The value and the position that a round takes."""
        value, at, *more = results
        size = const(self.size, "int32")
        worst = call("eq", value, self.worst)
        if self._nan_is_behind:
            left = more.pop(0)
            nan = call("ge", left, size)
            place = call("where", nan, call("sub", left, size), left)
            at = call("where", worst, cast(place, "int64"), at)
            value = call("where", call("bitwise_and", worst, nan), like(math.nan, value), value)
        elif self.taken:
            at = call("where", worst, cast(more.pop(0), "int64"), at)
        if more and nan_first:
            some = call("lt", more[0], size)
            value = call("where", some, like(math.nan, value), value)
            at = call("where", some, cast(more[0], "int64"), at)
        return value, at

    @property
    def _nan_is_behind(self) -> bool:
        return not self.largest and self.dtype in FLOATING
