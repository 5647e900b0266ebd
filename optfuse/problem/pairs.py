"""May two ops share a kernel? Asked of ``legality``, scheme by scheme, with what would have to come along."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from optfuse.problem.cost import topology
from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import Refusal, bits, legal_index, refusal


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a scheme does not take two ops together; ``path`` leads from one to the other by way of the ops to blame."""

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
    """What the legality of kernels says about two different ops."""
    index = legal_index(instance)
    needed = tuple(bits(_needed(instance, 1 << left | 1 << right)))
    # What runs alone blocks every scheme, and is said first.
    blocking = next(((op,) for op in needed if runs_alone(instance, op)), ())
    mine, yours = index.footprints[left].keys(), index.footprints[right].keys()
    allowed: list[int] = []
    refused: list[Refused] = []
    for scheme in sorted((mine | yours) - {ALONE}, key=lambda s: (s not in mine or s not in yours, s)):
        # The pair itself first: what it violates is nearer to the question than what comes along violates.
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
    """Whether an op never shares a kernel, whatever the others are."""
    return all(offer.scheme == ALONE for offer in instance.ops[op].offers)


def _needed(instance: Instance, mask: int) -> int:
    """Close a set of ops: what lies on paths between them, and what rules tie to them."""
    index = legal_index(instance)
    while True:
        grown = mask | index.reach(mask).between(mask)
        for op in bits(grown):
            grown |= index.together[op] | index.exact[op]
        if grown == mask:
            return mask
        mask = grown


def _path_through(instance: Instance, left: int, right: int, culprits: Iterable[int]) -> tuple[int, ...]:
    """A shortest path between two ops that visits the culprits beside them; empty when there is none."""
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
