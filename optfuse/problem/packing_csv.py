"""Packing problems as CSV: the MiniMalloc format, ``id,lower,upper,size`` with a heading, in any order of columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.errors import InvalidPackingError
from optfuse.problem.packing import Lifetime

#: Other names of columns that are in use. A lifetime's ``end`` is its last moment, its ``upper`` the one after.
SYNONYMS = {"buffer": "id", "buffer_id": "id", "start": "lower", "begin": "lower"}
REQUIRED = ("id", "lower", "upper", "size")


@dataclass(frozen=True, slots=True)
class PackingTable:
    """A packing problem as read: its buffers, and the heading and cells of the file, to be written back unchanged."""

    buffers: tuple[Lifetime, ...]
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def parse_packing(text: str, name: str = "packing") -> PackingTable:
    """Read a CSV text. Columns beyond the four (but for ``alignment``) are carried along; a ``hint`` is not heeded.

    Raises:
        InvalidPackingError: With ``name``, the line, and what is wrong there.
    """
    lines = [(number, row) for number, row in _rows(text, name) if any(cell for cell in row)]
    if not lines:
        raise InvalidPackingError(f"{name}: empty; the first line must name the columns {','.join(REQUIRED)}")
    heading = lines[0][1]
    columns = _columns(heading, name)
    buffers: list[Lifetime] = []
    seen: dict[str, int] = {}
    for number, row in lines[1:]:
        where = f"{name}, line {number}"
        if len(row) != len(heading):
            raise InvalidPackingError(f"{where}: {len(row)} cells under {len(heading)} columns")
        buffer = _buffer(row, columns, where)
        if buffer.id in seen:
            raise InvalidPackingError(f"{where}: id {buffer.id!r} was used in line {seen[buffer.id]} already")
        seen[buffer.id] = number
        buffers.append(buffer)
    return PackingTable(tuple(buffers), tuple(heading), tuple(tuple(row) for _, row in lines[1:]))


def format_packing(table: PackingTable, offsets: Sequence[int]) -> str:
    """The table with a column ``offset`` at its end; an offset column that it came with is replaced."""
    keep = [place for place, column in enumerate(table.heading) if column.lower() != "offset"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(table.heading[place] for place in keep), "offset"])
    for row, offset in zip(table.rows, offsets, strict=True):
        writer.writerow([*(row[place] for place in keep), offset])
    return out.getvalue()


def _rows(text: str, name: str) -> list[tuple[int, list[str]]]:
    """Stripped cells, with the number of the line that they are on."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), skipinitialspace=True, strict=True)
    try:
        return [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise InvalidPackingError(f"{name}, line {reader.line_num}: not CSV ({error})") from error


def _columns(heading: Sequence[str], name: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    for place, cell in enumerate(heading):
        column = SYNONYMS.get(cell.lower(), cell.lower())
        if column in columns:
            raise InvalidPackingError(f"{name}, line 1: two columns give {column!r}")
        columns[column] = place
    missing = [c for c in REQUIRED if c not in columns and not (c == "upper" and "end" in columns)]
    if missing:
        raise InvalidPackingError(
            f"{name}, line 1: no column {missing[0]!r} among {','.join(heading)}; the first line must name the "
            f"columns {','.join(REQUIRED)}"
        )
    if "upper" in columns and "end" in columns:
        raise InvalidPackingError(f"{name}, line 1: both 'upper' (exclusive) and 'end' (inclusive); leave one out")
    return columns


def _buffer(row: Sequence[str], columns: dict[str, int], where: str) -> Lifetime:
    def whole(column: str) -> int:
        cell = row[columns[column]]
        try:
            return int(cell)
        except ValueError as error:
            raise InvalidPackingError(f"{where}: {column} must be a whole number, not {cell!r}") from error

    if "gaps" in columns and row[columns["gaps"]]:
        raise InvalidPackingError(f"{where}: gaps in lifetimes are not supported; split the buffer or drop the column")
    upper = whole("upper") if "upper" in columns else whole("end") + 1
    alignment = whole("alignment") if "alignment" in columns and row[columns["alignment"]] else 1
    try:
        return Lifetime(row[columns["id"]], whole("lower"), upper, whole("size"), alignment)
    except InvalidPackingError as error:
        raise InvalidPackingError(f"{where}: {error}") from error
