"""Rules that cannot all be obeyed: the smallest set of them that conflict.

A smallest set is found by hitting sets: whatever conflicts holds a rule of each *correction* (rules whose removal, from
all of them, leaves no conflict). So a smallest set that hits all corrections known either conflicts, and is the answer,
or is obeyed, and grows into a largest set that is obeyed, whose complement is a new correction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from optfuse.errors import IllegalKernelError, RuleConflictError
from optfuse.problem.instance import Instance, Rules
from optfuse.problem.rules import Rule, joined, meaning, restricted, with_rules
from optfuse.problem.validate import validate
from optfuse.solve.seeds import Status, quick_seeds, rules_status

#: Seconds to look for the smallest conflict, at most.
CONFLICT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Conflict:
    """Positions of rules that conflict. ``smallest``: no smaller set does, as far as every set tried was decided."""

    rules: tuple[int, ...]
    smallest: bool


def under_rules(instance: Instance, rules: Sequence[Rule]) -> Instance:
    """The instance under these rules too, once it is known that they can be obeyed; itself when there are none.

    Raises:
        InvalidInstanceError: When the instance breaks its own format.
        RuleError: When a rule matches no op.
        RuleConflictError: When no schedule obeys all rules: names the smallest set that conflicts.
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
    """The error that names the smallest conflict among rules that cannot all be obeyed."""
    rules = tuple(dict.fromkeys(rules))
    free = replace(instance, rules=Rules())
    meanings = [meaning(free, rule) for rule in rules]
    found = find_conflict(free, meanings, time.monotonic() + CONFLICT_SECONDS)
    named = "; ".join(str(rules[k]) for k in found.rules)
    reason = _reason(replace(free, rules=joined(meanings[k] for k in found.rules)))
    if len(found.rules) == 1:
        return RuleConflictError(f"no schedule of {instance.name!r} obeys {named}: {reason}; drop or change it")
    size = "" if found.smallest else " (perhaps not the smallest such set: time ran out)"
    return RuleConflictError(
        f"rules conflict{size}: no schedule of {instance.name!r} obeys these {len(found.rules)} together: {named} "
        f"({reason}); drop or change one of them"
    )


def _reason(instance: Instance) -> str:
    try:
        quick_seeds(instance)
    except IllegalKernelError as error:
        return str(error)
    return "the kernels they ask for cannot all be"


def find_conflict(instance: Instance, rules: Sequence[Rules], deadline: float) -> Conflict:
    """A smallest set of rules that cannot be obeyed together; all of them together cannot.

    Parameters
    ----------
    instance
        Without rules of its own.
    deadline
        A ``time.monotonic`` value, after which the smallest set known to conflict is returned.
    """
    everything = frozenset(range(len(rules)))
    undecided = False

    def obeyed(chosen: frozenset[int]) -> bool:
        nonlocal undecided
        status: Status = rules_status(replace(instance, rules=joined(rules[k] for k in sorted(chosen))), deadline)
        undecided = undecided or status == "undecided"
        return status != "impossible"

    instance, rules = _where_it_matters(instance, rules)
    core = _shrunk(everything, obeyed)
    corrections: list[frozenset[int]] = []
    while time.monotonic() < deadline:
        chosen = _smallest_hitting(corrections, len(core))
        if chosen is None:
            return Conflict(tuple(sorted(core)), not undecided)
        if not obeyed(chosen):
            return Conflict(tuple(sorted(chosen)), not undecided)
        for rule in sorted(everything - chosen):
            if obeyed(chosen | {rule}):
                chosen |= {rule}
        corrections.append(everything - chosen)
    return Conflict(tuple(sorted(core)), smallest=False)


def _where_it_matters(instance: Instance, rules: Sequence[Rules]) -> tuple[Instance, Sequence[Rules]]:
    """The part of an instance in which rules can conflict, and the rules in its ids."""
    from optfuse.solve.cpsat.feasible import ruled_part

    everything = joined(rules)
    part = ruled_part(replace(instance, rules=Rules(fuse=everything.fuse, single_kernel=everything.single_kernel)))
    local = {op: i for i, op in enumerate(part.ops)}
    return replace(part.shape.problem, rules=Rules()), [restricted(rule, local) for rule in rules]


def _shrunk(rules: frozenset[int], obeyed: Callable[[frozenset[int]], bool]) -> frozenset[int]:
    """A conflict of which every rule is needed: whatever can go, goes, first halves, then quarters, and so on."""
    size = (len(rules) + 1) // 2
    while size:
        ordered = sorted(rules)
        for low, high in pairwise([*range(0, len(ordered), size), len(ordered)]):
            rest = rules - frozenset(ordered[low:high])
            if not obeyed(rest):
                rules = rest
        size = size // 2
    return rules


def _smallest_hitting(sets: Sequence[frozenset[int]], below: int) -> frozenset[int] | None:
    """A smallest set with an element of each of some sets; None when it would not be below a size."""

    def extend(chosen: frozenset[int], room: int) -> frozenset[int] | None:
        missed = next((one for one in sets if not one & chosen), None)
        if missed is None:
            return chosen
        if not room:
            return None
        tries = (extend(chosen | {rule}, room - 1) for rule in sorted(missed))
        return next((found for found in tries if found is not None), None)

    tries = (extend(frozenset(), size) for size in range(below))
    return next((found for found in tries if found is not None), None)
