"""A bound for blocks that hang together by small values only, such as an optimizer's step over many parameters.

A few ops make values of a few bytes, and everything else takes them. Without those edges the block falls into parts. A
kernel with ops of two parts holds such an edge, hence one of the few ops that make the small values, and there are no
more such kernels than such ops. All other kernels lie in one part each: every part has one, unless it went whole into
kernels of the first kind, which have room for only so many ops. So many launches there are at least; what crosses
memory beside them is at least what the parts need by themselves, launches, arithmetic and small values left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from optfuse.problem.instance import Instance, Offer, Op, Rules, Work
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.reduce.blocks import LARGE_OPS, Shape, cut_out, find_blocks
from optfuse.solver.reduce.limits import without_launches

#: The share of a launch that no access to a small value takes, and how many ops take one that ties a block together.
SMALL_SHARE = 1000
MANY_USERS = 8


@dataclass(frozen=True, slots=True)
class Loosened:
    """A block without the edges that carry small values, and how many ops make these."""

    problem: Instance
    makers: int
    parts: tuple[tuple[int, ...], ...]


def loosened(problem: Instance, small_share: int = SMALL_SHARE, many_users: int = MANY_USERS) -> Loosened | None:
    """The block taken apart at its small values; None where that leaves it whole, or would prove nothing.

    Args:
        problem: The block.
        small_share: A value is small when no access to it takes this share of a launch.
        many_users: So many ops take a value that ties a block together, at least.
    """
    rules = problem.rules
    if problem.variants or rules.fuse or rules.single_kernel or not problem.limits.connected:
        return None
    small = _taken_by_many(problem, small_share, many_users)
    makers = {edge.src for edge in problem.edges if edge.buffer in small}
    few = len(makers) * problem.limits.max_ops < len(problem.ops)
    if not makers or (len(problem.ops) > LARGE_OPS and not few):  # little is proven then, and a large block takes long
        return None
    loose = replace(
        without_launches(problem),
        ops=tuple(_loose_op(op, small) for op in problem.ops),
        edges=tuple(edge for edge in problem.edges if edge.buffer not in small),
        rules=Rules(),
    )
    parts = tuple(find_blocks(loose))
    return Loosened(loose, len(makers), parts) if len(parts) > 1 else None


def parts_bound(problem: Instance, loose: Loosened, least: Callable[[Shape], int]) -> int:
    """A bound on the block. ``least`` bounds the cost of a part from below."""
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
    """How many kernels there are at least, if those across parts number from none to one a maker of small values."""
    filled = list(accumulate(sorted(map(len, loose.parts))))

    def absorbed(across: int) -> int:
        return sum(size <= across * most for size in filled)

    return min(len(loose.parts) - absorbed(across) + across for across in range(loose.makers + 1))


def small_buffers(problem: Instance, share: int = SMALL_SHARE) -> set[int]:
    """The buffers of which no read and no write takes long beside a launch."""
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


def _taken_by_many(problem: Instance, small_share: int, many_users: int) -> set[int]:
    """The small buffers that many ops of the block take from another."""
    users = Counter(edge.buffer for edge in problem.edges if edge.buffer is not None)
    return {buffer for buffer in small_buffers(problem, small_share) if users[buffer] >= many_users}


def _loose_op(op: Op, small: set[int]) -> Op:
    """The op without arithmetic, and with small values for nothing."""

    def kept(offer: Offer) -> Offer:
        return replace(
            offer,
            reads=tuple(replace(read, bytes=0) if read.buffer in small else read for read in offer.reads),
            writes=tuple(replace(write, bytes=0) if write.buffer in small else write for write in offer.writes),
        )

    return replace(op, offers=tuple(map(kept, op.offers)), work=Work())
