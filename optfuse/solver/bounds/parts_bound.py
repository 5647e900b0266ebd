"""A lower bound for blocks connected by small values only, such as an optimizer's step over many parameters.

Some producers make values of a few bytes that everything else reads. Without those edges the block falls into parts. A
kernel with ops of two parts holds such an edge, hence a producer of a small value, so there are at most as many such
kernels as producers. Every other kernel lies in one part, and every part has one unless it lies whole in kernels of the
first kind, which hold a limited number of ops. This bounds the launches; the parts by themselves, without launches,
arithmetic and small values, bound the memory traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from optfuse.problem.instance import Instance, Offer, Op, Rules, Work
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.reduce.blocks import LARGE_OPS, Shape, cut_out, find_blocks
from optfuse.solver.reduce.size_limits import without_launches

#: The share of a launch that no access to a small value takes, and how many ops take one that ties a block together.
SMALL_SHARE = 1000
MANY_USERS = 8


@dataclass(frozen=True, slots=True)
class Loosened:
    """A block without the edges that carry small values, and the number of their producers."""

    problem: Instance
    producers: int
    parts: tuple[tuple[int, ...], ...]


def loosened(problem: Instance, small_share: int = SMALL_SHARE, many_users: int = MANY_USERS) -> Loosened | None:
    """The block without its small values' edges; None where it stays connected, or little would be proven.

    Args:
        problem: The block.
        small_share: A value is small when no access to it takes this share of a launch.
        many_users: The least number of ops that read a value which connects a block.
    """
    rules = problem.rules
    if problem.variants or rules.fuse or rules.single_kernel or not problem.limits.connected:
        return None
    small = _small_and_shared(problem, small_share, many_users)
    producers = {edge.src for edge in problem.edges if edge.buffer in small}
    worthwhile = len(problem.ops) <= LARGE_OPS or len(producers) * problem.limits.max_ops < len(problem.ops)
    if not producers or not worthwhile:
        return None
    loose = replace(
        without_launches(problem),
        ops=tuple(_loose_op(op, small) for op in problem.ops),
        edges=tuple(edge for edge in problem.edges if edge.buffer not in small),
        rules=Rules(),
    )
    parts = tuple(find_blocks(loose))
    return Loosened(loose, len(producers), parts) if len(parts) > 1 else None


def parts_bound(problem: Instance, loose: Loosened, least: Callable[[Shape], int]) -> int:
    """A lower bound on the cost of the block. ``least`` bounds the cost of a part from below."""
    known: dict[Shape, int] = {}
    total = 0
    for part in loose.parts:
        shape = cut_out(loose.problem, part).shape
        if shape not in known:
            known[shape] = least(shape)
        total += known[shape]
    launch = min(device.launch_ps for device in problem.devices)
    return total + launch * fewest_across(loose, problem.limits.max_ops)


def fewest_across(loose: Loosened, most: int) -> int:
    """The least number of kernels, with at most one kernel across parts for each producer of a small value."""
    filled = list(accumulate(sorted(map(len, loose.parts))))

    def absorbed(across: int) -> int:
        return sum(size <= across * most for size in filled)

    return min(len(loose.parts) - absorbed(across) + across for across in range(loose.producers + 1))


def small_buffers(problem: Instance, share: int = SMALL_SHARE) -> set[int]:
    """The buffers of which every read and write is negligible beside a launch."""
    limit = min(device.launch_ps for device in problem.devices) // share
    prices = pricer(problem)
    dearest: dict[int, int] = {}
    for terms in prices.terms:
        for term in terms.values():
            for (buffer, _), first, later, _ in term.reads:
                dearest[buffer] = max(dearest.get(buffer, 0), first, later)
            for buffer, price, _ in term.writes:
                dearest[buffer] = max(dearest.get(buffer, 0), price)
    return {buffer for buffer in range(len(problem.buffers)) if dearest.get(buffer, 0) <= limit}


def _small_and_shared(problem: Instance, small_share: int, many_users: int) -> set[int]:
    """The small buffers that many ops of the block read from another."""
    users = Counter(edge.buffer for edge in problem.edges if edge.buffer is not None)
    return {buffer for buffer in small_buffers(problem, small_share) if users[buffer] >= many_users}


def _loose_op(op: Op, small: set[int]) -> Op:
    """The op without arithmetic, its accesses to small buffers free."""

    def kept(offer: Offer) -> Offer:
        return replace(
            offer,
            reads=tuple(replace(read, bytes=0) if read.buffer in small else read for read in offer.reads),
            writes=tuple(replace(write, bytes=0) if write.buffer in small else write for write in offer.writes),
        )

    return replace(op, offers=tuple(map(kept, op.offers)), work=Work())
