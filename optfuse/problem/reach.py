"""Which ops lie before and after which others, along paths that are there whichever alternatives are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optfuse.problem.instance import Instance
from optfuse.problem.op_masks import bits, common, mask_of, union


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Strict ancestors and descendants of each op of ``active``, as bitmasks, along paths that are certain to be there.

    A path may pass ops of ``active``, and variants of which each alternative leads on to its end.
    """

    active: int
    ancestors: tuple[int, ...]
    descendants: tuple[int, ...]
    onward: tuple[int, ...]  # the descendants of every op, those of alternatives included

    @classmethod
    def of(cls, instance: Instance, active: int | None = None) -> Reach:
        """Close the edges transitively.

        ``active`` are the ops that run in any case (default: all). Of a variant some of whose ops are active, those
        alternatives are possible that hold all of these.
        """
        count = len(instance.ops)
        active = (1 << count) - 1 if active is None else active
        variants = _Undecided.of(instance, active)
        successors: list[list[int]] = [[] for _ in range(count)]
        for edge in instance.edges:
            successors[edge.src].append(edge.dst)
        onward = [0] * count
        for op in reversed(range(count)):
            mask = 0
            for after in successors[op]:
                if active >> after & 1:
                    mask |= onward[after] | 1 << after
            through = variants.through(op, successors[op], onward)
            onward[op] = mask | through
            successors[op] = [after for after in successors[op] if active >> after & 1]
            successors[op] += first_of(through & ~mask, onward)
        running = [active >> op & 1 for op in range(count)]
        ancestors = [0] * count
        for op in range(count):
            if running[op]:
                before = ancestors[op] | 1 << op
                for after in successors[op]:
                    ancestors[after] |= before
        descendants = tuple(mask if runs else 0 for mask, runs in zip(onward, running, strict=True))
        return cls(active, tuple(ancestors), descendants, tuple(onward))

    def between(self, mask: int) -> int:
        """The ops outside ``mask`` that lie on a path between two of its members."""
        above = below = 0
        for op in bits(mask):
            above |= self.ancestors[op]
            below |= self.descendants[op]
        return above & below & ~mask

    def is_convex(self, mask: int) -> bool:
        """Whether no path leaves the set and returns."""
        return not self.between(mask)


def first_of(mask: int, descendants: Sequence[int]) -> list[int]:
    """The ops of a bitmask that are no descendants of others in it."""
    found: list[int] = []
    while mask:
        op = (mask & -mask).bit_length() - 1
        found.append(op)
        mask &= ~(descendants[op] | 1 << op)
    return found


@dataclass(frozen=True, slots=True)
class _Undecided:
    """The variants of which several alternatives, as bitmasks, are possible, and the variants of each op."""

    options: tuple[tuple[int, ...], ...]
    variant_of: Mapping[int, int]

    @classmethod
    def of(cls, instance: Instance, active: int) -> _Undecided:
        options: list[tuple[int, ...]] = []
        variant_of: dict[int, int] = {}
        for variant in instance.variants:
            masks = tuple(map(mask_of, variant.alternatives))
            whole = union(masks)
            possible = tuple(mask for mask in masks if not active & whole & ~mask)
            variant_of.update(dict.fromkeys(bits(union(possible) & ~active), len(options)))
            options.append(possible)
        return cls(tuple(options), variant_of)

    def through(self, op: int, users: Sequence[int], onward: Sequence[int]) -> int:
        """The ops that are reached from an op whose users are alternatives' ops, whichever alternatives run."""
        read: dict[int, list[int]] = {}
        for user in users:
            if user in self.variant_of:
                read.setdefault(self.variant_of[user], []).append(user)
        found = 0
        for variant, its in read.items():
            mine = self.variant_of.get(op) == variant
            possible = [option for option in self.options[variant] if not mine or option >> op & 1]
            found |= common(union(onward[user] for user in its if option >> user & 1) for option in possible)
        return found
