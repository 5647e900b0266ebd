"""Explain why two ops may not share a kernel, by op name, with the path from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from optfuse.problem.instance import ALONE, Instance
from optfuse.problem.legality import RefusalCode, legal_index, listed
from optfuse.problem.pair_legality import Pairing, Refused, runs_alone, shortest_path

ReasonCode = RefusalCode | Literal["cycle"]

KIND_WORDS = {"library": "a library call", "collective": "a collective", "wait": "a wait", "copy": "a copy"}


class Details(Protocol):
    """Explanations from the compiler, beyond the instance. Both methods return one line, or None if there is none."""

    def edge(self, source: int, target: int, scheme: int) -> str | None:
        """Why a scheme does not pass a value from one op to another in registers."""
        ...

    def no_scheme(self, left: int, right: int) -> str | None:
        """Why two ops have no scheme in common."""
        ...


@dataclass(frozen=True, slots=True)
class Reason:
    """Why two ops may not share a kernel in some schemes (by name). ``path``: op by op from one to the other.

    The code is legality's; "cycle" where what lies between the two is to blame.
    """

    code: ReasonCode
    text: str
    schemes: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


def illegal_reasons(
    instance: Instance, left: int, right: int, found: Pairing, details: Details | None = None
) -> tuple[Reason, ...]:
    """Why no scheme takes two ops, the nearest reason first; schemes with the same reason share a line."""
    index = legal_index(instance)
    name = _Names(instance)
    if index.rivals[left] >> right & 1:
        variant = next(v for v in instance.variants if any(left in a for a in v.alternatives))
        return (Reason("variant", f"they are alternatives of variant {variant.name!r}, of which one runs"),)
    if instance.ops[left].device != instance.ops[right].device:
        devices = [instance.devices[instance.ops[op].device].name for op in (left, right)]
        return (Reason("device", f"{name(left)} runs on {devices[0]}, {name(right)} on {devices[1]}"),)
    for op in (left, right):
        if runs_alone(instance, op):
            return (Reason("scheme", f"{name.what(op)} always runs alone"),)
    common = index.footprints[left].keys() & index.footprints[right].keys() - {ALONE}
    if not common:
        offered = " and ".join(f"{name(op)} in {_schemes(instance, op)}" for op in (left, right))
        detail = details.no_scheme(left, right) if details is not None else None
        text = f"they have no scheme in common: {offered} can run" + (f"; {detail}" if detail else "")
        return (Reason("scheme", text, path=name.all(shortest_path(instance, min(left, right), max(left, right)))),)
    merged: dict[tuple[ReasonCode, str, tuple[str, ...]], list[str]] = {}
    for refused in found.refused:
        if refused.scheme in common:
            code, text = _in_words(instance, left, right, refused, details)
            key = (code, text, name.all(refused.path))
            merged.setdefault(key, []).append(instance.schemes[refused.scheme].name)
    return tuple(Reason(code, text, tuple(schemes), path) for (code, text, path), schemes in merged.items())


class _Names:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def __call__(self, op: int) -> str:
        return self.instance.ops[op].name

    def all(self, ops: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(self, ops))

    def what(self, op: int) -> str:
        kind = KIND_WORDS.get(self.instance.ops[op].kind)
        return f"{self(op)}, {kind}," if kind else self(op)


def _schemes(instance: Instance, op: int) -> str:
    names = [instance.schemes[offer.scheme].name for offer in instance.ops[op].offers]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _in_words(
    instance: Instance, left: int, right: int, refused: Refused, details: Details | None
) -> tuple[ReasonCode, str]:
    """What one scheme refuses, in terms of the two ops asked about."""
    name = _Names(instance)
    refusal = refused.refusal
    cycle = "one kernel of both would wait for it, and it for them, in a cycle"
    match refusal.code:
        case "scheme":
            (op,) = refusal.ops
            why = "always runs alone" if runs_alone(instance, op) else "does not offer the scheme"
            return "cycle", f"{name.what(op)} lies between them and {why}: {cycle}"
        case "index":
            source, target = refusal.ops
            detail = details.edge(source, target, refused.scheme) if details is not None else None
            what = detail or f"the value of {name(source)} cannot pass to {name(target)} in registers"
            if {source, target} == {left, right}:
                return "index", what
            between = [name(op) for op in refusal.ops if op not in (left, right)]
            lies = f"{' and '.join(between)} {'lie' if len(between) > 1 else 'lies'} between them"
            return "cycle", f"{lies}, and cannot come along: from {name(source)} to {name(target)}, {what}"
        case "path":
            return "cycle", f"a path leaves the kernel and comes back through {listed(instance, refusal.ops)}"
        case "connection":
            return "connection", "nothing links them: no value passes between them, nor do they read alike"
        case _:
            return refusal.code, f"{refusal.reason}: {listed(instance, refusal.ops)}"
