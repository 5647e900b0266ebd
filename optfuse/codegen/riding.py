"""Sums that ride on rows: a program adds up what it sees of the rows that fall to it, and leaves one row of sums.

Each has an accumulator of the tile's shape that a loop over blocks of rows carries; lanes are added up behind the loop,
so that no thread waits for another inside of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from optfuse.codegen.expressions import BITS, Value, triton_type
from optfuse.codegen.indexing import Axis
from optfuse.codegen.members import MemberWriter
from optfuse.codegen.names import identifier
from optfuse.codegen.passes import stored
from optfuse.codegen.reductions import TILE
from optfuse.ir.nodes import Buffer, LoopNest

ROW = frozenset({"r"})


class RunningSums:
    """The sums of a kernel's members, while it is written: ``add`` inside the loop over rows, ``store`` behind it."""

    def __init__(self, members: MemberWriter, buffers: Mapping[str, Buffer], rows: Axis) -> None:
        self.members = members
        self.buffers = buffers
        self.rows = rows
        self.names: dict[str, str] = {}

    def add(self, k: int, nest: LoopNest) -> None:
        """Take a block of rows into a member's sums."""
        writer = self.members.writer
        self.members.begin(k, stored(nest))
        for store in nest.stores:
            value = self.members.value(store.value)
            name = writer.new_name(f"{identifier(store.buffer)}_total", writer.outer)
            dtype = triton_type(value.dtype)
            writer.define_outer(name, f"tl.zeros((XBLOCK, RBLOCK), {dtype})", TILE, BITS[value.dtype])
            self.names[store.buffer] = name
            text = f"tl.where({self.rows.mask}, {value.text}, 0)" if self.rows.masked else value.text
            writer.statement(f"{name} += {text}", TILE)

    def store(self, k: int, nest: LoopNest) -> None:
        """Write a member's row of sums to the program's place."""
        writer = self.members.writer
        self.members.begin(k, ())
        for store in nest.stores:
            buffer = self.buffers[store.buffer]
            total = Value(f"tl.sum({self.names[store.buffer]}, 0, keep_dims=True)", store.value.dtype, ROW)
            start = f"{int(buffer.stride[0])} * tl.program_id(0)"
            self.members.store(store, writer.name(total, identifier(store.buffer)), start=start)
