"""Packing problems with known answers: memories cut to pieces without a gap, and small ones to try in every order."""

from __future__ import annotations

import random
from itertools import permutations

from optfuse.problem.packing import Lifetime


def perfect(seed: int, pieces: int, capacity: int = 1024, duration: int = 200) -> list[Lifetime]:
    """Buffers that fill ``capacity`` at every time: guillotine cuts of the whole, shuffled. All fit, with no room."""
    rng = random.Random(seed)
    blocks = [(0, duration, capacity)]
    while len(blocks) < pieces:
        rng.shuffle(blocks)
        lower, upper, size = blocks.pop()
        across_time = rng.random() < 0.6
        if across_time and upper - lower > 3:
            cut = rng.randint(lower + 1, upper - 1)
            blocks += [(lower, cut, size), (cut, upper, size)]
        elif size > 7:
            cut = rng.randint(size // 8 + 1, size - 1 - size // 8)
            blocks += [(lower, upper, cut), (lower, upper, size - cut)]
        else:
            blocks.append((lower, upper, size))
    rng.shuffle(blocks)
    return [Lifetime(f"b{number}", *block) for number, block in enumerate(blocks)]


def random_lifetimes(seed: int, count: int, alignments: tuple[int, ...] = (1,)) -> list[Lifetime]:
    """A few buffers of any size, twins among them."""
    rng = random.Random(seed)
    found: list[Lifetime] = []
    while len(found) < count:
        if found and rng.random() < 0.15:
            twin = rng.choice(found)
            found.append(Lifetime(f"b{len(found)}", twin.lower, twin.upper, twin.size, twin.alignment))
            continue
        lower = rng.randint(0, 5)
        size, alignment = rng.choice([1, 2, 3, 4, 5, 7, 8]), rng.choice(alignments)
        found.append(Lifetime(f"b{len(found)}", lower, lower + rng.randint(1, 4), size, alignment))
    return found


def least_height(buffers: list[Lifetime]) -> int:
    """The least height of all packings, the plain way: every sequence, each buffer at the lowest offset left."""
    return min(_stacked(sequence) for sequence in permutations(buffers))


def _stacked(sequence: tuple[Lifetime, ...]) -> int:
    placed: list[tuple[Lifetime, int]] = []
    for buffer in sequence:
        others = [(o, at) for o, at in placed if o.lower < buffer.upper and buffer.lower < o.upper]
        offset = 0
        while any(at < offset + buffer.size and offset < at + o.size for o, at in others):
            offset += buffer.alignment
        placed.append((buffer, offset))
    return max((at + o.size for o, at in placed), default=0)
