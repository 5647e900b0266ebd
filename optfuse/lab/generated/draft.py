"""An instance under construction: values that ops compute, with the schemes, reads and edges that follow from them.

Values live in *spaces* of rows by columns. A full value has an element a point, a statistic one a row. Point ops run
flat or row by row, reductions row by row, ops on statistics on their own or as the outer part of a kernel by rows,
library calls alone. Values pass in registers in whatever scheme both ends offer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from optfuse.problem.instance import (
    ALONE,
    Buffer,
    BufferKind,
    Device,
    Edge,
    Instance,
    Limits,
    Offer,
    Op,
    Read,
    Scheme,
    Work,
    Write,
)

#: Rates of the order of an H200's. They are part of the generated files, and so do not follow later measurements.
DEVICE = Device(
    name="generated",
    launch_ps=2_000_000,
    dram_ps_per_mib=243_855,
    l2_ps_per_mib=150_000,
    l2_bytes=50 << 20,
    fp32_ps_per_gop=35_791_394,
    special_ps_per_gop=298_261_617,
    tensor_ps_per_gop=1_359_166,
    atomic_ps_per_gop=10_737_418_240,
    saturating_programs=264,
    persistent_elements=8192,
)

ELEMENT_BYTES = 4
#: Points of a flat kernel that one program walks.
TILE = 2048


@dataclass(frozen=True, slots=True)
class Space:
    """Rows by columns, and the numbers of its schemes."""

    rows: int
    columns: int
    flat: int
    by_rows: int
    statistics: int

    @property
    def points(self) -> int:
        """Elements of a full value."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Value:
    """A buffer, the space it lives in, whether it is a statistic, and the op that makes it, if any."""

    buffer: int
    space: Space
    statistic: bool = False
    maker: int | None = None


@dataclass(slots=True)
class Draft:
    """Lists that grow; ``finish`` makes an instance of them."""

    rng: random.Random
    schemes: list[Scheme] = field(default_factory=lambda: [Scheme("alone", 1)])
    buffers: list[Buffer] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def space(self, rows: int, columns: int) -> Space:
        """A new space, with schemes of its own."""
        first = len(self.schemes)
        points = rows * columns
        self.schemes += [
            Scheme(f"flat {first}", points, parallel=-(-points // TILE)),
            Scheme(f"rows {first}", rows, columns, parallel=rows),
            Scheme(f"statistics {first}", rows, parallel=-(-rows // TILE)),
        ]
        return Space(rows, columns, first, first + 1, first + 2)

    def input(self, space: Space, statistic: bool = False) -> Value:
        """Add an input."""
        return Value(self._buffer(space, statistic, "input"), space, statistic)

    def point(self, *sources: Value, special: bool = False) -> Value:
        """An op on every point, in the space of its first source."""
        space = sources[0].space
        work = Work(special=space.points) if special else Work(fp32=space.points)
        return self._op("point", sources, space, (space.flat, space.by_rows), work)

    def reduce(self, *sources: Value) -> Value:
        """A sum over each row."""
        space = sources[0].space
        return self._op("reduce", sources, space, (space.by_rows,), Work(fp32=space.points), statistic=True)

    def outer(self, *sources: Value) -> Value:
        """An op on statistics."""
        space = sources[0].space
        schemes = (space.by_rows, space.statistics)
        return self._op("outer", sources, space, schemes, Work(fp32=space.rows), statistic=True)

    def library(self, *sources: Value) -> Value:
        """A matrix product, which runs alone."""
        space = sources[0].space
        return self._op("library", sources, space, (ALONE,), Work(tensor=2 * space.points * space.columns))

    def order(self, before: Value, after: Value) -> None:
        """Add an edge without a buffer: one op runs after another."""
        if before.maker is None or after.maker is None:
            raise ValueError("an order is between ops, and inputs have none")
        self.edges.append(Edge(before.maker, after.maker))

    def keep(self, *values: Value) -> None:
        """Mark values as outputs."""
        for value in values:
            self.buffers[value.buffer] = replace(self.buffers[value.buffer], output=True)

    def finish(self, name: str, limits: Limits) -> Instance:
        """Return the instance. Values without a consumer become outputs."""
        used = {edge.buffer for edge in self.edges}
        unused = [n for n, b in enumerate(self.buffers) if b.kind == "temporary" and n not in used]
        for number in unused:
            self.buffers[number] = replace(self.buffers[number], output=True)
        return Instance(
            name, (DEVICE,), tuple(self.schemes), tuple(self.buffers), tuple(self.ops), tuple(self.edges), limits=limits
        )

    def _buffer(self, space: Space, statistic: bool, kind: BufferKind = "temporary") -> int:
        points = space.rows if statistic else space.points
        self.buffers.append(Buffer(f"b{len(self.buffers)}", ELEMENT_BYTES * points, kind))
        return len(self.buffers) - 1

    def _op(
        self,
        kind: str,
        sources: Sequence[Value],
        space: Space,
        schemes: tuple[int, ...],
        work: Work,
        statistic: bool = False,
    ) -> Value:
        sources = tuple(dict.fromkeys(sources))
        number = len(self.ops)
        target = self._buffer(space, statistic)
        write = Write(target, self.buffers[target].bytes)
        offers = tuple(
            Offer(
                scheme,
                tuple(self._read(source, space, statistic) for source in sources),
                (write,),
                full=kind != "outer" or scheme == space.statistics,
                reduces=kind == "reduce",
            )
            for scheme in schemes
        )
        self.ops.append(
            Op(f"{kind}{number}", "library" if kind == "library" else "loop", offers, work, weight=len(sources) + 1)
        )
        for source in sources:
            if source.maker is not None:
                theirs = {offer.scheme for offer in self.ops[source.maker].offers}
                common = tuple(sorted(theirs & set(schemes) - {ALONE}))
                self.edges.append(Edge(source.maker, number, source.buffer, common))
        return Value(target, space, statistic, number)

    def _read(self, source: Value, space: Space, statistic: bool) -> Read:
        spread = source.statistic and not statistic
        size = self.buffers[source.buffer].bytes
        if source.space != space:
            return Read(source.buffer, size, "gather", footprint=1)
        return Read(source.buffer, size, "broadcast" if spread else "contiguous")
