"""Rules that cannot all be obeyed: a set of them that conflict, each of which is needed for that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError, RuleConflictError
from optfuse.problem.instance import Instance, Rules
from optfuse.problem.rules import Rule, joined, meaning, restricted, with_rules
from optfuse.problem.validate import validate
from optfuse.solver.rules.groups import quick_groups, rules_status

#: Seconds to look for rules that a conflict does not need, at most.
CONFLICT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Conflict:
    """Positions of rules that conflict. ``minimal``: without any one of them there would be no conflict."""

    rules: tuple[int, ...]
    minimal: bool


def under_rules(instance: Instance, rules: Sequence[Rule]) -> Instance:
    """The instance under these rules too, once it is known that they can be obeyed; itself when there are none.

    Raises:
        InvalidInstanceError: When the instance breaks its own format.
        RuleError: When a rule matches no op.
        RuleConflictError: When no schedule obeys all rules: names a set that conflicts, no part of which does.
    """
    if not rules:
        return instance
    validate(replace(instance, rules=Rules(peak_memory=instance.rules.peak_memory)))
    ruled = with_rules(instance, rules)
    if rules_status(ruled) == "impossible":
        raise conflict_error(instance, (*as_written(instance), *rules))
    return ruled


def as_written(instance: Instance) -> tuple[Rule, ...]:
    """The rules that an instance holds itself, by op names."""
    names = [op.name for op in instance.ops]
    rules = instance.rules
    return (
        *(Rule("fuse", (names[a], names[b])) for a, b in rules.fuse),
        *(Rule("no_fuse", (names[a], names[b])) for a, b in rules.no_fuse),
        *(Rule("single_kernel", tuple(names[op] for op in group)) for group in rules.single_kernel),
        *(Rule("barrier", (names[op],)) for op in rules.barrier),
    )


def conflict_error(instance: Instance, rules: Sequence[Rule]) -> RuleConflictError:
    """The error that names rules that cannot all be obeyed, as few as a deletion filter leaves."""
    rules = tuple(dict.fromkeys(rules))
    free = replace(instance, rules=Rules())
    meanings = [meaning(free, rule) for rule in rules]
    found = find_conflict(free, meanings, time.monotonic() + CONFLICT_SECONDS)
    named = "; ".join(str(rules[k]) for k in found.rules)
    reason = _reason(replace(free, rules=joined(meanings[k] for k in found.rules)))
    if len(found.rules) == 1:
        return RuleConflictError(f"no schedule of {instance.name!r} obeys {named}: {reason}; drop or change it")
    rest = "" if found.minimal else " (perhaps not all of them are needed: time ran out)"
    return RuleConflictError(
        f"rules conflict{rest}: no schedule of {instance.name!r} obeys these {len(found.rules)} together: {named} "
        f"({reason}); drop or change one of them"
    )


def _reason(instance: Instance) -> str:
    try:
        quick_groups(instance)
    except IllegalKernelError as error:
        return str(error)
    return "the kernels they ask for cannot all be"


def find_conflict(instance: Instance, rules: Sequence[Rules], deadline: float) -> Conflict:
    """Rules that cannot be obeyed together and of which every one is needed; all of them together cannot be.

    A deletion filter: whatever can go without ending the conflict goes, first halves of the rules, then quarters, and
    so on. Another such set may be smaller.

    Args:
        instance: Without rules of its own.
        deadline: A ``time.monotonic`` value, after which what is left then is returned.
    """
    instance, rules = _where_it_matters(instance, rules)
    undecided = False

    def obeyed(chosen: Sequence[int]) -> bool:
        nonlocal undecided
        status = rules_status(replace(instance, rules=joined(rules[k] for k in chosen)), deadline)
        undecided = undecided or status == "undecided"
        return status != "impossible"

    left = tuple(range(len(rules)))
    size = (len(left) + 1) // 2
    while size:
        before = left
        for low in range(0, len(before), size):
            rest = tuple(rule for rule in left if rule not in before[low : low + size])
            if not obeyed(rest):
                left = rest
        size //= 2
    return Conflict(left, not undecided)


def _where_it_matters(instance: Instance, rules: Sequence[Rules]) -> tuple[Instance, Sequence[Rules]]:
    """The part of an instance in which rules can conflict, and the rules in its ids."""
    from optfuse.solver.rules.feasible import ruled_part

    everything = joined(rules)
    part = ruled_part(replace(instance, rules=Rules(fuse=everything.fuse, single_kernel=everything.single_kernel)))
    local = {op: i for i, op in enumerate(part.ops)}
    return replace(part.shape.problem, rules=Rules()), [restricted(rule, local) for rule in rules]
