"""The text of memory accesses: pointers to the lanes of a tile, masks of the lanes inside, and guards of indices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import sympy

from optfuse.compiler.codegen.addresses import Addresses
from optfuse.compiler.codegen.index_arithmetic import INT32_END, Linear, linearize
from optfuse.compiler.codegen.triton_expressions import BIT_AND, COMPARISON, SUM, Value, constant, tensor
from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.nodes import Buffer, Guard
from optfuse.compiler.ir.sizes import never_less


class Accesses:
    """Writes the pointers and masks of a kernel's loads and stores; an offset in ``repeated`` gets a name."""

    def __init__(
        self,
        addresses: Addresses,
        buffers: Mapping[str, Buffer],
        pointers: Mapping[str, str],
        repeated: frozenset[str],
    ) -> None:
        self.writer = addresses.writer
        self.addresses = addresses
        self.buffers = buffers
        self.pointers = pointers
        self.repeated = repeated
        #: how often each offset was written
        self.offsets: Counter[str] = Counter()

    def pointer(self, buffer: str, offset: Value, axes: frozenset[str]) -> str:
        """``pointer + offset``, with a zero term for each of the ``axes`` along which the offset does not vary."""
        missing = [
            next(axis for axis in self.addresses.axes if axis.name == name) for name in sorted(axes - offset.axes)
        ]
        extra = [axis.index if axis.size == 1 else f"0 * {axis.index}" for axis in missing]
        if offset.literal:
            parts = [offset.text] if offset.text != "0" else []
        else:
            self.offsets[offset.text] += 1
            if offset.text in self.repeated:
                offset = self.writer.name(offset, "offset")
            parts = [offset.text]
        return " + ".join([self.pointers[buffer], *parts, *extra])

    def wide(self, form: Linear, buffer: str) -> bool:
        """Whether an offset may need 64 bits."""
        exceeds = self.addresses.exceeds_int32(form)
        return self.needs_wide_offsets(buffer) if exceeds is None else exceeds

    def needs_wide_offsets(self, buffer: str) -> bool:
        """Whether a buffer has elements that offsets of 32 bits do not reach."""
        return extent(self.buffers[buffer].shape, self.buffers[buffer].stride) > INT32_END

    def mask(self, axes: frozenset[str], guards: Sequence[Value]) -> Value | None:
        """The mask of the lanes that may access memory; None when all may."""
        shape = axes.union(*(guard.axes for guard in guards))
        parts = [
            Value(axis.mask, "bool", frozenset({axis.name}))
            for axis in self.addresses.axes
            if axis.masked and axis.name in shape
        ]
        parts += guards
        if not parts:
            return None
        every = frozenset[str]().union(*(part.axes for part in parts))
        if len(parts) == 1:
            return parts[0] if parts[0].simple else self.writer.name(parts[0], "inside")
        text = " & ".join(part.within(BIT_AND + 1) for part in parts)
        return self.writer.name(Value(text, "bool", every, BIT_AND), "inside" if guards else "mask")

    def guard(self, guard: Guard, env: Mapping[sympy.Symbol, Linear]) -> list[Value]:
        """The comparisons of a guard that are not always true."""
        form = linearize(guard.expr, env, self.addresses.division)
        ends = form.bounds(self.addresses.sizes)
        above = ends is not None and never_less(ends[0], guard.lower)
        below = ends is not None and never_less(guard.upper, ends[1] + 1)
        found = []
        for symbol, limit, always in ((">=", guard.lower, above), ("<", guard.upper, below)):
            if not always:
                left = tensor(self.addresses.index(form))
                text = f"{left.within(SUM)} {symbol} {constant(limit, 'int32').within(SUM)}"
                found.append(Value(text, "bool", left.axes, COMPARISON))
        return found
