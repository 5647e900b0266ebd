"""The user's rules, and their meaning for the ops of an instance.

    fuse(a, b)           what a and b name is in one kernel
    no_fuse(a, b)        no op that a names shares a kernel with one that b names
    single_kernel(ops)   the ops are a kernel, with nothing else in it
    barrier(a)           every op that a names stays alone

Ops are given by the patterns of ``optfuse.problem.op_patterns``. In ``fuse`` and ``single_kernel`` the wildcards of
module paths match the same text in all patterns of a rule, with a kernel for each text that they match:
``fuse("h.*.ln_1", "h.*.attn")`` fuses within each layer. ``no_fuse`` and ``barrier`` hold for all ops that match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, assert_never, get_args

from optfuse.errors import RuleError
from optfuse.problem.instance import ALONE, Instance, Rules
from optfuse.problem.op_patterns import Parts, find_ops, nearest, no_match

Kind = Literal["fuse", "no_fuse", "single_kernel", "barrier"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: The most pairs of one ``no_fuse``; for more of them a barrier is simpler.
MAX_PAIRS = 1_000_000


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as written. ``ops`` are patterns."""

    kind: Kind
    ops: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse malformed rules.

        Raises:
            RuleError: On an unknown kind, a wrong number of patterns, or a pattern that is no name.
        """
        if self.kind not in KINDS:
            raise RuleError(f"unknown rule {self.kind!r}; did you mean {nearest(KINDS, str(self.kind))[0]!r}?")
        bad = [pattern for pattern in self.ops if not isinstance(pattern, str) or not pattern]
        if bad:
            raise RuleError(f"rule {self.kind}: {bad[0]!r} does not name an op; write a name, a module path or a glob")
        wanted = {"fuse": 2, "no_fuse": 2, "barrier": 1}.get(self.kind)
        if not self.ops or (wanted is not None and len(self.ops) != wanted):
            count = "one name or more" if wanted is None else "two names" if wanted == 2 else "one name"
            raise RuleError(f"rule {self.kind} takes {count}, not {len(self.ops)}")

    def __str__(self) -> str:
        """The rule as it is written in Python."""
        names = ", ".join(f'"{name}"' for name in self.ops)
        return f"single_kernel([{names}])" if self.kind == "single_kernel" else f"{self.kind}({names})"


def fuse(a: str, b: str) -> Rule:
    """The ops of ``a`` and ``b`` are in one kernel: no kernel holds one without the other."""
    return Rule("fuse", (a, b))


def no_fuse(a: str, b: str) -> Rule:
    """No op that ``a`` names shares a kernel with another one that ``b`` names."""
    return Rule("no_fuse", (a, b))


def single_kernel(ops: Iterable[str]) -> Rule:
    """The ops are one kernel, and nothing else is in it."""
    return Rule("single_kernel", (ops,) if isinstance(ops, str) else tuple(ops))


def barrier(a: str) -> Rule:
    """Every op that ``a`` names is a kernel of its own."""
    return Rule("barrier", (a,))


def rules_from_plain(data: object) -> tuple[Rule, ...]:
    """The rules of a mapping, such as that of a TOML file: ``{"fuse": [[a, b], ...], "barrier": [a, ...], ...}``.

    Raises:
        RuleError: On an unknown kind, or something that is no list of names.
    """
    if not isinstance(data, Mapping):
        raise RuleError(f"rules are a table of {', '.join(KINDS)}, not {type(data).__name__}")
    found: list[Rule] = []
    for kind, entries in data.items():
        if kind not in KINDS:
            raise RuleError(f"unknown rule {kind!r}; did you mean {nearest(KINDS, str(kind))[0]!r}?")
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise RuleError(f"{kind} is a list with an entry a rule, not {entries!r}")
        for entry in entries:
            names: Any = [entry] if kind == "barrier" and isinstance(entry, str) else entry
            if not isinstance(names, Sequence) or isinstance(names, str):
                raise RuleError(f"{kind}: {entry!r} is no list of names")
            found.append(Rule(kind, tuple(names)))
    return tuple(found)


def meaning(instance: Instance, rule: Rule) -> Rules:
    """The rule in terms of the ops of an instance.

    Raises:
        RuleError: When a pattern matches no op, or the rule says nothing about those that match.
    """
    found = [find_ops(instance, pattern) for pattern in rule.ops]
    for pattern, ops in zip(rule.ops, found, strict=True):
        if not ops:
            raise RuleError(f"rule {rule}: {no_match(instance, pattern)}")
    match rule.kind:
        case "barrier":
            return Rules(barrier=tuple(_with_rivals(instance, found[0])))
        case "no_fuse":
            left, right = (_with_rivals(instance, ops) for ops in found)
            return Rules(no_fuse=_pairs_apart(instance, rule, left, right))
        case "fuse":
            groups = [group for group in _per_parts(rule, found) if len(group) > 1]
            if not groups:
                raise RuleError(f"rule {rule} names one op only; name two")
            return Rules(fuse=tuple(pair for group in groups for pair in pairwise(group)))
        case "single_kernel":
            return Rules(single_kernel=tuple(_per_parts(rule, found)))
        case _:
            assert_never(rule.kind)


def _with_rivals(instance: Instance, ops: Mapping[int, Parts]) -> dict[int, Parts]:
    """The ops, and those of other alternatives that compute the same node."""
    found = dict(ops)
    for variant in instance.variants:
        members = [op for alternative in variant.alternatives for op in alternative]
        named = {_node(instance, op): ops[op] for op in members if op in ops}
        found |= {op: named[node] for op in members if (node := _node(instance, op)) in named}
    return found


def _node(instance: Instance, op: int) -> str:
    return instance.ops[op].node or instance.ops[op].name


def _per_parts(rule: Rule, found: Sequence[Mapping[int, Parts]]) -> list[tuple[int, ...]]:
    """The ops of all patterns together, for each text that the wildcards match in every pattern."""
    by_parts: list[dict[Parts, set[int]]] = []
    for matches in found:
        groups: dict[Parts, set[int]] = {}
        for op, parts in matches.items():
            groups.setdefault(parts, set()).add(op)
        by_parts.append(groups)
    fixed = {op for groups in by_parts for op in groups.get((), ())}
    varying = [groups for groups in by_parts if () not in groups]
    if not varying:
        return [tuple(sorted(fixed))]
    common = [parts for parts in varying[0] if all(parts in groups for groups in varying)]
    if not common:
        raise RuleError(f"rule {rule}: the wildcards of its module paths never stand for the same; name the ops")
    return [tuple(sorted(fixed.union(*(groups[parts] for groups in varying)))) for parts in common]


def _pairs_apart(
    instance: Instance, rule: Rule, left: Mapping[int, Parts], right: Mapping[int, Parts]
) -> tuple[tuple[int, int], ...]:
    if set(left) == set(right) and len({_node(instance, op) for op in left}) == 1:
        raise RuleError(f"rule {rule} names one op only; name two")
    if len(left) * len(right) > MAX_PAIRS:
        raise RuleError(f"rule {rule} means {len(left) * len(right):,} pairs of ops; narrow its names, or use barrier")
    offered = [frozenset(offer.scheme for offer in op.offers) - {ALONE} for op in instance.ops]
    pairs = {(min(a, b), max(a, b)) for a in left for b in right if a != b and offered[a] & offered[b]}
    return tuple(sorted(pairs))


def joined(parts: Iterable[Rules]) -> Rules:
    """Several rules as one record, without repeats. The least memory cap counts."""
    parts = tuple(parts)
    caps = [part.peak_memory for part in parts if part.peak_memory is not None]
    groups = {frozenset(group): group for part in parts for group in part.single_kernel}
    return Rules(
        fuse=tuple(dict.fromkeys(pair for part in parts for pair in part.fuse)),
        no_fuse=tuple(dict.fromkeys(pair for part in parts for pair in part.no_fuse)),
        single_kernel=tuple(groups.values()),
        barrier=tuple(dict.fromkeys(op for part in parts for op in part.barrier)),
        peak_memory=min(caps, default=None),
    )


def restricted(rules: Rules, local: Mapping[int, int]) -> Rules:
    """The rules restricted to some of the ops, in new ids, without the memory cap."""

    def inside(groups: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(local[op] for op in group) for group in groups if all(op in local for op in group))

    return Rules(
        fuse=tuple((a, b) for a, b in inside(rules.fuse)),
        no_fuse=tuple((a, b) for a, b in inside(rules.no_fuse)),
        single_kernel=inside(rules.single_kernel),
        barrier=tuple(local[op] for op in rules.barrier if op in local),
    )


def with_rules(instance: Instance, rules: Sequence[Rule]) -> Instance:
    """The instance with these rules added to its own.

    Raises:
        RuleError: When a rule matches no op.
    """
    if not rules:
        return instance
    return replace(instance, rules=joined((instance.rules, *(meaning(instance, rule) for rule in rules))))


def matching(instances: Sequence[Instance], rules: Sequence[Rule]) -> list[tuple[Rule, ...]]:
    """By instance of a model (forward, backward): the rules that match ops of it.

    Raises:
        RuleError: When a rule means nothing in any of them; the message is that of the first.
    """
    kept: list[list[Rule]] = [[] for _ in instances]
    for rule in rules:
        refusal: RuleError | None = None
        placed = False
        for own, instance in zip(kept, instances, strict=True):
            try:
                meaning(instance, rule)
            except RuleError as error:
                refusal = refusal or error
            else:
                own.append(rule)
                placed = True
        if refusal is not None and not placed:
            raise refusal
    return [tuple(own) for own in kept]
