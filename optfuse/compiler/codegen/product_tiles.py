"""The tile of a product of matrices in a kernel of our own, which its price and its code share."""

from __future__ import annotations

from dataclasses import dataclass

from optfuse.compiler.ir.sizes import hint

#: Sums of at least so many terms are bound by the tensor cores: their tiles are large.
LONG_SUM, LONGEST_SUM = 384, 2048


@dataclass(frozen=True, slots=True)
class DotTile:
    """Rows, columns and terms of a tile, and its warps."""

    rows: int
    columns: int
    terms: int
    warps: int


def dot_tile(rows: int, columns: int, terms: int) -> DotTile:
    """The tile of a product, of measurements on an H200 over the shapes of the benchmark's models.

    Of rows whose number changes, the tile is chosen at the hint.
    """
    if terms >= LONGEST_SUM and columns >= 512 and hint(rows) * columns >= 128 * 256 * 132:
        return DotTile(128, 256, 64, 8)
    if terms >= LONG_SUM and columns > 64:
        return DotTile(128, 128, 64, 8)
    block = 64 if terms % 64 == 0 else 32 if terms > 16 else 16
    if columns <= 16 or terms <= 16:
        return DotTile(256 if terms <= 16 else 128, 16 if columns <= 16 else 32, min(block, 32), 4)
    if columns <= 32:
        return DotTile(128, 32, block, 4)
    return DotTile(128, 64, block, 4)
