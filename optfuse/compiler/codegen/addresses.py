"""Print index arithmetic: linear forms over the positions of a tile, with named quotients and remainders."""

from __future__ import annotations

from dataclasses import replace

from optfuse.compiler.codegen.index_arithmetic import INT32_END, Axis, Linear, Named, Run, runs, starts
from optfuse.compiler.codegen.kernel_writer import Writer
from optfuse.compiler.codegen.triton_expressions import ATOM, PRODUCT, SUM, Value, cast, constant, triton_type
from optfuse.compiler.ir.sizes import Size


class Addresses:
    """Writes index arithmetic into a kernel over ``axes``; each quotient and remainder gets one name in a scope."""

    def __init__(self, writer: Writer, axes: tuple[Axis, ...]) -> None:
        self.writer = writer
        self.axes = axes
        self.starts = starts(axes)
        self.sizes = {symbol: size for axis in axes for symbol, size in axis.digits}
        #: whether an index has been written that needs 64 bits
        self.wide = any(axis.wide for axis in axes)

    def index(self, form: Linear, wide: bool | None = None) -> Value:
        """An index as text; ``wide``: computed in 64 bits; by default where its bounds need them."""
        wide = bool(self.exceeds_int32(form)) if wide is None else wide
        terms = [(self.run(run), run.coefficient) for run in runs(form, self.axes)]
        for atom, coefficient in form.terms.items():
            if isinstance(atom, Named):
                terms.append((Value(atom.text, "int64" if atom.wide else "int32", atom.axes), coefficient))
        return self.total(terms, form.constant, wide)

    def total(self, terms: list[tuple[Value, int]], rest: int, wide: bool) -> Value:
        """The sum of the terms (value, coefficient) and the constant ``rest``."""
        if not terms:
            return constant(rest, "int64" if wide else "int32")
        if wide:
            self.wide = True
            terms = [(cast(value, "int64"), coefficient) for value, coefficient in terms]
        dtype = "int64" if any(value.dtype == "int64" for value, _ in terms) else "int32"
        axes = frozenset[str]().union(*(value.axes for value, _ in terms))
        text = ""
        for value, coefficient in sorted(terms, key=_order):
            size = abs(coefficient)
            sign = (" - " if coefficient < 0 else " + ") if text else ("-" if coefficient < 0 else "")
            text += sign + (value.text if size == 1 else f"{size} * {value.text}")
        if rest:
            text += f" {'-' if rest < 0 else '+'} {abs(rest)}"
        if len(terms) > 1 or rest or text.startswith("-"):
            return Value(text, dtype, axes, SUM)
        return Value(text, dtype, axes, ATOM if terms[0][1] == 1 else PRODUCT)

    def exceeds_int32(self, form: Linear) -> bool | None:
        """Whether an index, or a partial sum of it, may need 64 bits; None when nothing bounds it."""
        bounds = form.bounds(self.sizes)
        if bounds is None:
            return None
        ends = (*bounds, bounds[0] - form.constant, bounds[1] - form.constant)
        return any(end >= INT32_END or end <= -INT32_END for end in ends)  # no comparison of ends: each is a guard

    def division(self, kind: str, inner: Linear, divisor: int) -> Linear:
        """A quotient ("floor") or remainder ("mod") by floor division, as a named value."""
        bounds = inner.bounds(self.sizes)
        if bounds is None:
            whole = self.index(inner)
            name = "floor_quotient" if kind == "floor" else "floor_remainder"
            text = f"{name}({whole.text}, tl.full((), {divisor}, {triton_type(whole.dtype)}))"
            value = self.named(Value(text, whole.dtype, whole.axes))
            return _atom(value, None if kind == "floor" else (0, divisor - 1))
        # hardware division rounds toward zero: make the numerator nonnegative
        lift = max(0, -(bounds[0] // divisor))
        lifted = inner.plus(Linear(constant=lift * divisor))
        whole = self.index(lifted)
        text = f"{whole.within(PRODUCT)} {'//' if kind == 'floor' else '%'} {divisor}"
        value = self.named(Value(text, whole.dtype, whole.axes, PRODUCT))
        if kind == "mod":
            return _atom(value, (0, divisor - 1))
        return _atom(value, (bounds[0] // divisor + lift, bounds[1] // divisor + lift), -lift)

    def run(self, run: Run) -> Value:
        """The text of a run of digits."""
        axis, dtype = run.axis, "int64" if run.axis.wide else "int32"
        if run.uniform:  # one number for all lanes: what it addresses is loaded once
            return self.named(Value(run.of(self.starts[axis.name]), dtype, frozenset(), PRODUCT), axis.name)
        text = run.of(axis.index)
        value = Value(text, dtype, frozenset({axis.name}), PRODUCT)
        return replace(value, tightness=ATOM) if text == axis.index else self.named(value)

    def named(self, value: Value, prefix: str = "") -> Value:
        """The value under a name x0, x1, ... (r0, ... if it varies along r)."""
        prefix = prefix or ("r" if "r" in value.axes else min(value.axes, default="x"))
        number = 0
        while f"{prefix}{number}" in self.writer.taken:
            number += 1
        return self.writer.name(value, f"{prefix}{number}")


def _order(term: tuple[Value, int]) -> tuple[int, str]:
    """Terms with sizes first, then from the largest number to the smallest: the same at every size."""
    coefficient = term[1]
    return (-INT32_END, str(coefficient)) if isinstance(coefficient, Size) else (-coefficient, "")


def _atom(value: Value, bounds: tuple[int, int] | None, constant: int = 0) -> Linear:
    return Linear({Named(value.text, value.axes, bounds, value.dtype == "int64"): 1}, constant)
