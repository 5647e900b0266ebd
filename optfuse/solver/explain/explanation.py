"""What an explanation holds, and its words. Times are picoseconds under the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from optfuse.problem.refusal_reasons import Reason

Verdict = Literal["same_op", "illegal", "required", "over_cap", "dearer", "tie", "cheaper", "undecided"]

US = 1_000_000
SHOWN_OPS = 12
SHOWN_REASONS = 4
WIDTH = 100


@dataclass(frozen=True, slots=True)
class OpFacts:
    """An op in the words of the model. ``kernels``: positions of those that compute it; none when it does not run."""

    name: str
    kind: str
    node: str
    module: str
    source: str
    kernels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """A tensor that both ops touch: a value that one makes and the other uses, or one that both read."""

    buffer: str
    bytes: int
    how: Literal["value", "read"]


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """A schedule's cost, a bound on every schedule of its kind (picoseconds under the model), and its peak memory."""

    objective: int
    bound: int
    peak_bytes: int

    @property
    def proven(self) -> bool:
        """Whether no schedule of its kind is cheaper."""
        return self.bound == self.objective


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why two ops share a kernel in a schedule, or do not.

    Attributes:
        together: Whether some kernel computes both.
        one_launch: Whether kernels that compute them share a launch.
        verdict: What keeps it from being the other way: it would be "illegal", a rule has "required" it so, it would be
            "over_cap" in memory, "dearer", a "tie"; "cheaper", when the schedule was not optimal; "undecided", when no
            answer came in time; "same_op" for an op and itself.
        reasons: Of an illegal kernel, the nearest first; else empty.
        shared: Tensors that both touch.
        link: Where they share none, a shortest path from one to the other, by name; empty when there is none.
        kernels: Ops by name of each kernel that holds one of the two, by position in the schedule.
        plan: The schedule; its bound is on every schedule of the instance.
        other: The best schedule found with the opposite forced; its bound is on every such schedule. None when there is
            none.
        other_kernel: The ops of that schedule's kernel with both, when they were forced together.
        cap: The peak-memory cap in bytes, if there is one.
        notes: What was given up on, or needs saying.
    """

    instance: str
    a: OpFacts
    b: OpFacts
    together: bool
    verdict: Verdict
    plan: PlanFigures
    reasons: tuple[Reason, ...] = ()
    shared: tuple[SharedTensor, ...] = ()
    one_launch: bool = False
    link: tuple[str, ...] = ()
    kernels: tuple[tuple[int, tuple[str, ...]], ...] = ()
    other: PlanFigures | None = None
    other_kernel: tuple[str, ...] = ()
    cap: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> int | None:
        """Picoseconds by which the best other schedule found is dearer than this one."""
        return None if self.other is None else self.other.objective - self.plan.objective

    def __str__(self) -> str:
        """The explanation in words."""
        return "\n".join(_lines(self))

    def to_plain(self) -> dict[str, Any]:
        """Plain data for JSON: the fields under their own names, and ``difference``."""
        return {**asdict(self), "difference": self.difference}


def _lines(found: Explanation) -> Iterator[str]:
    a, b = found.a.name, found.b.name
    if found.verdict == "same_op":
        yield f"{a} is one op: it is always with itself."
        yield from _op(found.a, found.kernels)
        return
    apart = "in two kernels of one launch" if found.one_launch else "apart"
    yield f"{a} and {b} are {'together in one kernel' if found.together else apart}."
    yield from _op(found.a, found.kernels)
    yield from _op(found.b, () if found.together and found.a.kernels == found.b.kernels else found.kernels)
    yield from _shared(found)
    yield from _why(found)
    for note in found.notes:
        yield f"Note: {note}."


def _op(op: OpFacts, kernels: Sequence[tuple[int, tuple[str, ...]]]) -> Iterator[str]:
    what = [f"{op.kind} op"]
    if op.node != op.name:
        what.append(f"node {op.node}")
    if op.module:
        what.append(f"module {op.module}")
    yield f"  {op.name}: {', '.join(what)}"
    if op.source:
        yield f"    {_cut(op.source)}"
    by_position = dict(kernels)
    if len(op.kernels) > 1:
        yield f"    computed in {len(op.kernels)} kernels"
    for position in op.kernels:
        ops = _names(by_position[position]) if position in by_position else "the same"
        yield f"    kernel {position}: {ops}"
    if not op.kernels:
        yield "    does not run in this schedule"


def _shared(found: Explanation) -> Iterator[str]:
    for tensor in found.shared:
        how = "passes from one to the other" if tensor.how == "value" else "is read by both"
        yield f"Tensor {tensor.buffer}, {tensor.bytes:,} bytes, {how}."
    if not found.shared:
        path = (
            f"; the shortest path: {_path(found.link)}" if found.link else ", and no path leads from one to the other"
        )
        yield f"They share no tensor{path}."


def _why(found: Explanation) -> Iterator[str]:
    match found.verdict:
        case "illegal":
            yield "Illegal: no kernel may hold both."
        case "required":
            yield "Required: no schedule keeps them apart."
        case "undecided":
            yield "Undecided: no schedule with the opposite was found."
        case "over_cap":
            yield from _over_cap(found)
        case _:
            yield from _compared(found)
    for reason in found.reasons[:SHOWN_REASONS]:
        schemes = f" [{', '.join(reason.schemes[:2])}{', ...' if len(reason.schemes) > 2 else ''}]"
        yield f"  {reason.code}{schemes if reason.schemes else ''}: {reason.text}"
        if len(reason.path) > 1:
            yield f"    path: {_path(reason.path)}"
    if len(found.reasons) > SHOWN_REASONS:
        yield f"  and {len(found.reasons) - SHOWN_REASONS} more reasons in other schemes"


def _over_cap(found: Explanation) -> Iterator[str]:
    assert found.other is not None, "an answer without the cap was found"
    way = "apart" if found.together else "together"
    yield f"Over the memory cap of {found.cap:,} bytes: no schedule with them {way} was found within it."
    yield (
        f"  Without the cap, the best found with them {way} takes {_us(found.other.objective)} and needs "
        f"{found.other.peak_bytes:,} bytes; this schedule needs {found.plan.peak_bytes:,}."
    )


def _compared(found: Explanation) -> Iterator[str]:
    other, plan, difference = found.other, found.plan, found.difference
    assert other is not None, "the opposite was solved"
    assert difference is not None, "the opposite was solved"
    way = "apart" if found.together else "together"
    best = f"the best schedule with them {way}" if other.proven else f"the best schedule found with them {way}"
    share = f" ({difference / plan.objective:+.3%})" if plan.objective else ""
    match found.verdict:
        case "tie":
            yield f"A tie: {best} takes {_us(other.objective)}, as this one does."
        case "cheaper":
            yield (
                f"Not optimal: {best} takes {_us(other.objective)}, {_us(-difference)} less{share} than this one; "
                "solve again with more time."
            )
        case _:
            saved = f"Together saves {_us(difference)}" if found.together else f"Legal, but dearer by {_us(difference)}"
            yield f"{saved}{share}: {best} takes {_us(other.objective)}, this one {_us(plan.objective)}."
    if found.other_kernel:
        yield f"  Its kernel with both: {_names(found.other_kernel)}"
    if other.proven and plan.proven:
        yield "  Both are proven optimal under the stated model."
        return
    yield (
        f"  Bounds: none with them {way} takes less than {_us(other.bound)}, no schedule at all less than "
        f"{_us(plan.bound)}."
    )


def _us(picoseconds: int) -> str:
    return f"{picoseconds / US:,.3f} us"


def _path(names: Sequence[str]) -> str:
    if len(names) > SHOWN_OPS:
        half = SHOWN_OPS // 2
        names = [*names[:half], f"({len(names) - 2 * half} more)", *names[-half:]]
    return " -> ".join(names)


def _names(names: Sequence[str]) -> str:
    more = f" + {len(names) - SHOWN_OPS} more" if len(names) > SHOWN_OPS else ""
    return " ".join(names[:SHOWN_OPS]) + more


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
