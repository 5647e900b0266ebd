"""Assign a kernel's members to passes over r, and find the values that pass between members in registers.

A looped kernel goes over r once for each level of reductions (layer norm: the moments, then the normalized values).
Between two passes it holds only outer values, so each pass recomputes the full values that it needs. A sum with a
shortcut (``sum_shortcuts``) runs in the pass of its maximum, or in none. A scan is a full value; in each pass that
needs it, it starts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from optfuse.compiler.codegen.sum_shortcuts import Shortcuts
from optfuse.compiler.ir.kernel_spec import KernelSpec, Member
from optfuse.compiler.ir.nodes import Expr, LoopNest
from optfuse.compiler.ir.traversal import loads, loads_under, operands, stored

Role = Literal["full", "outer", "reduces"]


@dataclass(frozen=True, slots=True)
class Passes:
    """The order of computation. Members are given by position.

    Attributes:
        roles: "full": computed at every (x, r); "outer": at every x; "reduces": reduces over r, its results are outer.
        producers: By member: the register buffers that it reads, and their producers.
        level: The pass in which a full member can first be computed, or in which a reduction runs.
        ready: The pass before which an outer value is there (for a reduction: its results).
        needed: For each pass, the full members and reductions that it computes, ascending.
        store_pass: The pass in which a full member's stores to memory happen: the last one that computes the value
            anyway, and always the very last one for a buffer that is also read.
        hazards: Buffers that are both read from memory and written, and those that lie in the place of one that is
            read: they are written after every read.
        shortcuts: Sums that are taken in another way.
    """

    roles: tuple[Role, ...]
    producers: tuple[Mapping[str, int], ...]
    level: tuple[int, ...]
    ready: tuple[int, ...]
    needed: tuple[tuple[int, ...], ...]
    store_pass: Mapping[int, int]
    hazards: frozenset[str]
    shortcuts: Shortcuts

    @property
    def count(self) -> int:
        """The number of passes over r."""
        return len(self.needed)


def order_passes(spec: KernelSpec, shortcuts: Shortcuts | None = None) -> Passes:
    """The passes of a kernel."""
    shortcuts = Shortcuts() if shortcuts is None else shortcuts
    roles: tuple[Role, ...] = tuple(_role(member, any(size > 1 for size in spec.space.r)) for member in spec.members)
    producers = _producers(spec)
    level, ready = _levels(spec, roles, producers, shortcuts)
    inner = [k for k, role in enumerate(roles) if role != "outer" and k not in shortcuts.single]
    count = 1 + max((level[k] for k in inner), default=0)
    hazards = _hazards(spec, producers)
    uses: list[set[int]] = [set() for _ in roles]
    store_pass: dict[int, int] = {}
    for k in reversed(inner):
        nest = spec.members[k].nest
        roots = computed(nest)
        if roles[k] == "reduces":
            # an online sum reduces the operand of its maximum
            uses[k], roots = {level[k]}, [] if k in shortcuts.online else operands(nest)
        elif written := {store.buffer for store in nest.stores} & set(spec.stores):
            store_pass[k] = count - 1 if written & hazards else max(uses[k], default=level[k])
            uses[k].add(store_pass[k])
        for load in loads_under(roots):
            source = producers[k].get(load.buffer)
            if source is not None and roles[source] == "full":
                uses[source] |= uses[k]
    needed = tuple(tuple(k for k in inner if p in uses[k]) for p in range(count))
    return Passes(roles, producers, level, ready, needed, store_pass, hazards, shortcuts)


def _role(member: Member, has_r: bool) -> Role:
    if member.nest.reductions and has_r:  # what a scan has at a point is a value of that point
        return "reduces"
    return "full" if member.full and has_r else "outer"


def computed(nest: LoopNest) -> list[Expr]:
    """All expressions that a pointwise nest or a scan computes at a point."""
    return (operands(nest) if nest.scan else []) + stored(nest)


def _producers(spec: KernelSpec) -> tuple[Mapping[str, int], ...]:
    made: dict[str, int] = {}
    found: list[Mapping[str, int]] = []
    for k, member in enumerate(spec.members):
        found.append({load.buffer: made[load.buffer] for load in loads(member.nest) if load.buffer in made})
        made.update({store.buffer: k for store in member.nest.stores if store.buffer in spec.registers})
    return tuple(found)


def _levels(
    spec: KernelSpec, roles: tuple[Role, ...], producers: tuple[Mapping[str, int], ...], shortcuts: Shortcuts
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    level: list[int] = []
    ready: list[int] = []

    def earliest(k: int, roots: Iterable[Expr]) -> int:
        sources = {producers[k][load.buffer] for load in loads_under(roots) if load.buffer in producers[k]}
        return max((level[s] if roles[s] == "full" else ready[s] for s in sources), default=0)

    for k, member in enumerate(spec.members):
        if k in shortcuts.online:
            first = level[shortcuts.online[k]]
        elif k in shortcuts.single:
            parts = (shortcuts.single[k].value, shortcuts.single[k].position)
            first = max(earliest(part.member, [part.expr]) for part in parts)
        else:
            first = earliest(k, operands(member.nest) if roles[k] == "reduces" else computed(member.nest))
        passes = int(roles[k] == "reduces" and k not in shortcuts.single)
        level.append(first)
        ready.append(max(first + passes, earliest(k, stored(member.nest))))
    return tuple(level), tuple(ready)


def _hazards(spec: KernelSpec, producers: tuple[Mapping[str, int], ...]) -> frozenset[str]:
    read = {
        load.buffer
        for k, member in enumerate(spec.members)
        for load in loads(member.nest)
        if load.buffer not in producers[k]
    }
    return frozenset((read | spec.inplace) & set(spec.stores))
