"""Write products of matrices: a loop over blocks of the sum, whose tiles tensor cores multiply and add up in float32.

The kernel's axes are (y, x): rows of the left factor and columns of the right one. What is computed from the product's
elements follows the loop, on the same tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.kernel_writer import Line, Writer
from optfuse.compiler.codegen.product_tiles import DotTile
from optfuse.compiler.codegen.triton_expressions import SUM, Value
from optfuse.compiler.ir.nodes import Dot

#: Blocks of terms that are loaded ahead into shared memory.
STAGES = 3
TILE = frozenset({"x", "y"})


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor's pointer to its first term in each row or column, the step from term to term, and the lanes' mask."""

    pointer: str
    offset: Value
    step: int
    mask: str
    buffer: str


def dot_axes(axes: tuple[Axis, ...], tile: DotTile) -> tuple[Axis, ...]:
    """The axes (y, x) with the blocks of a product's tile."""
    y, x = axes
    return replace(y, block=tile.rows), replace(x, block=tile.columns)


def write_dot(writer: Writer, name: str, dot: Dot, factors: Sequence[Factor], block: int) -> Value:
    """The elements of a product on the tile, under a name like ``name``. Appends the loop to the outer scope."""
    scope = writer.outer
    total, start, term = (writer.new_name(text, scope) for text in (f"{name}_dot", "term_start", "term"))
    writer.define_outer(total, "tl.zeros((YBLOCK, XBLOCK), tl.float32)", TILE, 32)
    lines = [f"for {start} in tl.range(0, {dot.terms}, {block}, num_stages={STAGES}):"]
    lines.append(f"{term} = {start} + tl.arange(0, {block})")
    held: list[str] = []
    for factor, along in zip(factors, ("[None, :]", "[:, None]"), strict=True):
        masks = [factor.mask] if factor.mask else []
        if dot.terms % block:
            masks.append(f"({term}{along} < {dot.terms})")
        step = "" if factor.step == 1 else f"{factor.step} * "
        mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
        offset = "" if factor.offset.literal and factor.offset.text == "0" else f" + {factor.offset.within(SUM)}"
        held.append(writer.new_name(f"{factor.buffer}_tile", scope))
        lines.append(f"{held[-1]} = tl.load({factor.pointer}{offset} + {step}{term}{along}{mask})")
    lines.append(f"{total} = tl.dot({', '.join(held)}, {total})")
    head, *body = lines
    scope.lines.append(Line(head, note=writer.note))
    scope.lines += [Line(text, note=writer.note, indent=scope.indent + 1) for text in body]
    return Value(total, dot.dtype, TILE)
