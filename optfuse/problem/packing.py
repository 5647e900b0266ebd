"""The packing problem: offsets in one memory for buffers of known lifetimes and sizes; and its checker."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.errors import InvalidPackingError
from optfuse.problem.checker_case import Violation

#: No size, alignment or time is larger: sums and differences of two stay within 64 bits.
LARGEST = 1 << 56


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer that needs ``size`` bytes at times ``lower <= t < upper``, at a multiple of ``alignment``.

    Raises:
        InvalidPackingError: When the times are not in order, the size is negative, the alignment is below 1, or any of
            them is beyond ``LARGEST``.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1

    def __post_init__(self) -> None:
        """Refuse sizes, times and alignments out of range."""
        if self.lower >= self.upper:
            raise InvalidPackingError(
                f"buffer {self.id!r}: upper {self.upper} must be above lower {self.lower} (upper is exclusive)"
            )
        if self.size < 0:
            raise InvalidPackingError(f"buffer {self.id!r}: size {self.size} is negative")
        if self.alignment < 1:
            raise InvalidPackingError(f"buffer {self.id!r}: alignment {self.alignment} is below 1")
        for name in ("lower", "upper", "size", "alignment"):
            if abs(getattr(self, name)) > LARGEST:
                raise InvalidPackingError(f"buffer {self.id!r}: {name} {getattr(self, name)} is beyond 2**56")


def check_packing(
    buffers: Sequence[Lifetime], offsets: Sequence[int], capacity: int | None = None
) -> tuple[Violation, ...]:
    """The violations of offsets given in the order of ``buffers``; empty if there are none.

    Shares no code with the solvers. Every pair of buffers is compared only once a sweep over time has found an overlap.
    """
    found: list[Violation] = []
    if len(offsets) != len(buffers):
        return (Violation("placement", f"{len(offsets)} offsets for {len(buffers)} buffers"),)
    for buffer, offset in zip(buffers, offsets, strict=True):
        if offset < 0 or (capacity is not None and offset + buffer.size > capacity):
            found.append(Violation("arena", f"buffer {buffer.id!r} at {offset} is not within 0 and {capacity} bytes"))
        if offset % buffer.alignment:
            found.append(Violation("alignment", f"buffer {buffer.id!r} at {offset}: no multiple of its alignment"))
    if _overlaps(buffers, offsets):
        found += _overlapping_pairs(buffers, offsets)
    return tuple(found)


def _overlaps(buffers: Sequence[Lifetime], offsets: Sequence[int]) -> bool:
    """Whether any two buffers overlap in time and space.

    Sweeps over time with the live intervals of memory in order: as long as none overlap, a new one can only meet the
    interval below it or the one above.
    """
    events: list[tuple[int, bool, int]] = []
    for number, buffer in enumerate(buffers):
        if buffer.size:
            events += [(buffer.lower, True, number), (buffer.upper, False, number)]
    live: list[tuple[int, int]] = []  # (offset, end) by offset
    for _, starts, number in sorted(events):  # at one time, ends come before starts
        interval = offsets[number], offsets[number] + buffers[number].size
        place = bisect_left(live, interval)
        if not starts:
            del live[place]
            continue
        if place and live[place - 1][1] > interval[0]:
            return True
        if place < len(live) and live[place][0] < interval[1]:
            return True
        live.insert(place, interval)
    return False


def _overlapping_pairs(buffers: Sequence[Lifetime], offsets: Sequence[int]) -> list[Violation]:
    """A violation for each pair of buffers that overlaps, by comparing every buffer with every other."""
    found: list[Violation] = []
    for i, one in enumerate(buffers):
        for j in range(i):
            other = buffers[j]
            in_time = one.lower < other.upper and other.lower < one.upper
            in_space = offsets[i] < offsets[j] + other.size and offsets[j] < offsets[i] + one.size
            if in_time and in_space and one.size and other.size:
                found.append(Violation("overlap", f"buffers {other.id!r} and {one.id!r} overlap in time and space"))
    return found
