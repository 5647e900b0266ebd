"""Seeded families of fusion problems, from the plain to the adversarial.

An instance is a function of its family, size and seed alone: the same on every machine and every run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from optfuse.errors import InvalidOptionError
from optfuse.lab.generated.draft import Draft, Space, Value
from optfuse.problem.instance import Instance, Limits
from optfuse.problem.validate import validate

MAX_SIZE = 100_000


def generate(family: str, size: int, seed: int) -> Instance:
    """An instance of a family with about ``size`` ops, named ``family-size-seed.generated``.

    Raises:
        InvalidOptionError: When the family is unknown, or size or seed out of range.
    """
    if family not in FAMILIES:
        raise InvalidOptionError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    if not 2 <= size <= MAX_SIZE:
        raise InvalidOptionError(f"size must be from 2 to {MAX_SIZE} ops, not {size}")
    if not 0 <= seed < 1 << 31:
        raise InvalidOptionError(f"seed must be from 0 to 2**31 - 1, not {seed}")
    draft = Draft(random.Random(f"{family} {size} {seed}"))
    limits = FAMILIES[family](draft, size)
    instance = draft.finish(f"{family}-{size}-{seed}.generated", limits)
    validate(instance)
    return instance


def chain(draft: Draft, size: int) -> Limits:
    """One value after the other: point ops, norms by rows, now and then a matrix product; some values are saved."""
    rng = draft.rng
    space = _space(draft)
    value = draft.input(space)
    recent = [value]
    while len(draft.ops) < size:
        kind = rng.random()
        if kind < 0.1:
            value = draft.library(value, draft.input(space))
        elif kind < 0.3:
            statistic = draft.reduce(value)
            if rng.random() < 0.5:
                statistic = draft.outer(statistic)
            value = draft.point(value, statistic)
        else:
            beside = [rng.choice(recent)] if rng.random() < 0.3 else []
            beside += [draft.input(space)] if rng.random() < 0.2 else []
            value = draft.point(value, *beside, special=rng.random() < 0.2)
        recent = [*recent[-4:], value]
        if rng.random() < 0.15:
            draft.keep(value)
    draft.keep(value)
    return Limits()


def tree(draft: Draft, size: int) -> Limits:
    """Inputs joined two by two into one value, which then spreads again; some joints are sums over rows."""
    rng = draft.rng
    space = _space(draft)
    pool = [draft.input(space) for _ in range(size // 2 + 1)]
    while len(pool) > 1:
        rng.shuffle(pool)
        left, right = pool.pop(), pool.pop()
        joined = draft.point(left, right, special=rng.random() < 0.2)
        if rng.random() < 0.1:
            draft.keep(joined)
        pool.append(joined)
    while len(draft.ops) < size:
        source = pool.pop(rng.randrange(len(pool)))
        for _ in range(2):
            step = rng.random()
            if step < 0.1:
                pool.append(draft.library(source, draft.input(space)))
            elif step < 0.3:
                pool.append(draft.point(source, draft.reduce(source)))
            else:
                pool.append(draft.point(source, special=rng.random() < 0.2))
    return Limits()


def grid(draft: Draft, size: int) -> Limits:
    """Each op takes what its upper and its left neighbour make; a tenth of them are library calls."""
    rng = draft.rng
    space = _space(draft)
    width = math.isqrt(size)
    above = [draft.input(space) for _ in range(width)]
    while len(draft.ops) < size:
        left = draft.input(space)
        for column in range(width):
            make = draft.library if rng.random() < 0.1 else draft.point
            left = above[column] = make(above[column], left)
            if rng.random() < 0.1:
                draft.keep(left)
    return Limits()


def layers(draft: Draft, size: int) -> Limits:
    """A block with a norm, branches that share their reads, a join and a residual, the same again and again."""
    rng = draft.rng
    space = _space(draft)
    branches = rng.randrange(3, 7)
    lengths = [rng.randrange(1, 4) for _ in range(branches)]
    mask = draft.input(space)
    value = draft.input(space)
    while len(draft.ops) < size:
        statistic = draft.outer(draft.reduce(value), draft.input(space, statistic=True))
        normed = draft.point(value, statistic)
        ends: list[Value] = []
        for number, length in enumerate(lengths):
            branch = normed if number % 2 else draft.library(normed, draft.input(space))
            for step in range(length):
                branch = draft.point(branch, *([mask] if step == 0 else [normed]), special=step == 1)
            ends.append(branch)
        joined = ends[0]
        for end in ends[1:]:
            joined = draft.point(joined, end)
        value = draft.point(value, draft.library(joined, draft.input(space)))
        draft.keep(normed)
    return Limits()


def convex(draft: Draft, size: int) -> Limits:
    """Long chains side by side that share reads: convex sets without number, and a limit on a kernel's size."""
    rng = draft.rng
    space = _space(draft)
    width = max(2, min(6, size // 6))
    shared = [draft.input(space) for _ in range(width)]
    heads = [draft.point(shared[0], shared[number]) for number in range(width)]
    while len(draft.ops) < size:
        number = rng.randrange(width)
        beside = [rng.choice(shared)] if rng.random() < 0.7 else [rng.choice(heads)]
        heads[number] = draft.point(heads[number], *beside, special=rng.random() < 0.3)
        if rng.random() < 0.25:
            draft.keep(heads[number])
    return Limits(max_ops=rng.randrange(6, 13))


def cycles(draft: Draft, size: int) -> Limits:
    """Pairs that would each save a read, in blocks of their own, whose kernels form cycles if all fuse."""
    rng = draft.rng
    pairs = max(2, size // 2)
    spaces = [draft.space(1024 * rng.randrange(1, 9), 256 + number) for number in range(pairs)]
    shared = [draft.input(space) for space in spaces]
    early = [draft.point(value) for value in shared]
    late = [draft.point(value, draft.input(value.space)) for value in shared]
    for number in range(pairs):
        for other in {rng.randrange(pairs) for _ in range(rng.randrange(1, 4))} - {number}:
            draft.order(early[number], late[other])
    return Limits()


def _space(draft: Draft) -> Space:
    rng = draft.rng
    return draft.space(1024 * rng.choice((1, 4, 16)), rng.choice((512, 1024, 4096)))


#: Each adds about so many ops to a draft, and says which limits hold for a kernel.
FAMILIES: Mapping[str, Callable[[Draft, int], Limits]] = MappingProxyType(
    {"chain": chain, "tree": tree, "grid": grid, "layers": layers, "convex": convex, "cycles": cycles}
)
