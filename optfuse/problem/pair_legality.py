"""Whether two ops may share a kernel: legality by scheme, with the ops that such a kernel must also hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from optfuse.problem.cost import topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import Refusal, legal_index, refusal
from optfuse.problem.op_masks import bits


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a scheme refuses two ops together; ``path`` leads from one to the other through the ops to blame."""

    scheme: int
    refusal: Refusal
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pairing:
    """``needed``: ops that every kernel with both holds. ``allowed``: schemes in which these are a legal kernel.

    ``refused``: the other schemes that one of the two offers, those that both offer first.
    """

    needed: tuple[int, ...]
    allowed: tuple[int, ...]
    refused: tuple[Refused, ...]


def pairing(instance: Instance, left: int, right: int) -> Pairing:
    """The schemes that allow two different ops in one kernel, and the refusals of the others."""
    index = legal_index(instance)
    needed = tuple(bits(_needed(instance, 1 << left | 1 << right)))
    # an op that runs alone blocks every scheme, and is reported first
    blocking = next(((op,) for op in needed if runs_alone(instance, op)), ())
    mine, yours = index.footprints[left].keys(), index.footprints[right].keys()
    allowed: list[int] = []
    refused: list[Refused] = []
    for scheme in sorted((mine | yours) - {ALONE}, key=lambda s: (s not in mine or s not in yours, s)):
        # the pair itself first: its violation is more relevant than those of further ops
        found = refusal(instance, (left, right), scheme)
        if found is None or found.code in ("path", "connection", "rule"):
            found = refusal(instance, blocking or needed, scheme)
        if found is None:
            allowed.append(scheme)
        else:
            on_path = found.code in ("scheme", "index", "path")
            path = _path_through(instance, left, right, found.ops) if on_path else ()
            refused.append(Refused(scheme, found, path))
    return Pairing(needed, tuple(allowed), tuple(refused))


def runs_alone(instance: Instance, op: int) -> bool:
    """Whether an op never shares a kernel with any other."""
    return all(offer.scheme == ALONE for offer in instance.ops[op].offers)


def _needed(instance: Instance, mask: int) -> int:
    """The closure of a set of ops: with those on paths between them, and those that rules fuse with them."""
    index = legal_index(instance)
    while True:
        grown = mask | index.reach(mask).between(mask)
        for op in bits(grown):
            grown |= index.together[op] | index.exact[op]
        if grown == mask:
            return mask
        mask = grown


def _path_through(instance: Instance, left: int, right: int, culprits: Iterable[int]) -> tuple[int, ...]:
    """A shortest path between two ops through the other ``culprits``; empty when there is none."""
    first, last = min(left, right), max(left, right)
    stops = [first, *sorted(set(culprits) - {first, last}), last]
    path = [first]
    for source, target in pairwise(stops):
        leg = shortest_path(instance, source, target)
        if not leg:
            return ()
        path.extend(leg[1:])
    return tuple(path)


def shortest_path(instance: Instance, source: int, target: int) -> tuple[int, ...]:
    """A path of fewest edges from one op to another, both included; empty when there is none."""
    users = topology(instance).users
    came: dict[int, int] = {source: source}
    queue = deque([source])
    while queue:
        op = queue.popleft()
        if op == target:
            path = [op]
            while path[-1] != source:
                path.append(came[path[-1]])
            return tuple(reversed(path))
        for user, _ in users[op]:
            if user not in came and user <= target:
                came[user] = op
                queue.append(user)
    return ()
