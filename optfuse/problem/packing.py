"""The packing problem: buffers with known lifetimes and sizes, to be given offsets in one memory; and its checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.errors import InvalidPackingError
from optfuse.problem.case import Violation


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer that needs ``size`` bytes at times ``lower <= t < upper``, at a multiple of ``alignment``.

    Raises:
        InvalidPackingError: When the times are not in order, the size is negative, or the alignment is below 1.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1

    def __post_init__(self) -> None:
        """Refuse what no memory could hold."""
        if self.lower >= self.upper:
            raise InvalidPackingError(
                f"buffer {self.id!r}: upper {self.upper} must be above lower {self.lower} (upper is exclusive)"
            )
        if self.size < 0:
            raise InvalidPackingError(f"buffer {self.id!r}: size {self.size} is negative")
        if self.alignment < 1:
            raise InvalidPackingError(f"buffer {self.id!r}: alignment {self.alignment} is below 1")


def check_packing(
    buffers: Sequence[Lifetime], offsets: Sequence[int], capacity: int | None = None
) -> tuple[Violation, ...]:
    """What is wrong with offsets given in the order of ``buffers``; empty when nothing is.

    Compares every buffer with every other on purpose, and shares no code with the solvers.
    """
    found: list[Violation] = []
    if len(offsets) != len(buffers):
        return (Violation("placement", f"{len(offsets)} offsets for {len(buffers)} buffers"),)
    for buffer, offset in zip(buffers, offsets, strict=True):
        if offset < 0 or (capacity is not None and offset + buffer.size > capacity):
            found.append(Violation("arena", f"buffer {buffer.id!r} at {offset} is not within 0 and {capacity} bytes"))
        if offset % buffer.alignment:
            found.append(Violation("alignment", f"buffer {buffer.id!r} at {offset}: no multiple of its alignment"))
    for i, one in enumerate(buffers):
        for j in range(i):
            other = buffers[j]
            in_time = one.lower < other.upper and other.lower < one.upper
            in_space = offsets[i] < offsets[j] + other.size and offsets[j] < offsets[i] + one.size
            if in_time and in_space and one.size and other.size:
                found.append(Violation("overlap", f"buffers {other.id!r} and {one.id!r} overlap in time and space"))
    return tuple(found)
