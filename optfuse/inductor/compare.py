"""Inductor's partition of a graph, our greedy's and the solver's, under one cost model in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from optfuse.compiler.extract.extraction import Extraction
from optfuse.errors import InductorError
from optfuse.inductor.agreement import Agreement, agreement
from optfuse.inductor.groups import Groups
from optfuse.inductor.legalize import Legalized, legalize
from optfuse.inductor.mapping import Mapped, map_groups, sets_to_price
from optfuse.problem.checker import check
from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's figures: kernels (with library calls), predicted picoseconds, and bytes read and written."""

    name: str
    kernels: int
    objective: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far Inductor's kernels could be mapped to our ops.

    Attributes:
        launches: Kernels and library calls that Inductor itself makes.
        unmapped: Ops of ours that no launch of Inductor's computes; ``unmapped_reasons`` counts why, ``unmapped_ops``
            names them.
        split: Kernels of Inductor's that are not one kernel here; ``split_reasons`` counts why.
        repeated: Ops that Inductor computes in several kernels.
        loops_there, library_there: Library calls of ours for which Inductor generates loops, and loop ops for which it
            calls a library.
        two_stages: Reductions that Inductor splits in two kernels and we do not.
        strangers, redundant: Kernels of Inductor's that compute no op of ours, or only ops that other kernels
            recompute.
    """

    launches: int
    unmapped: int
    unmapped_reasons: Mapping[str, int]
    unmapped_ops: tuple[str, ...]
    split: int
    split_reasons: Mapping[str, int]
    repeated: int
    loops_there: int
    library_there: int
    two_stages: int
    strangers: int
    redundant: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A graph's partitions, "inductor" first, and how far greedy agrees with Inductor.

    Attributes:
        ops, fusible: All ops, and those over which agreement is measured: loop ops that Inductor's generated kernels
            compute.
        agreement: Inductor's kernels, unchanged, against our greedy's.
        agreement_once: The same over the ops that Inductor computes once, which leaves out what its lowering inlined
            into several kernels before the scheduler ran.
        agreement_legal: Inductor's kernels after illegal ones were split, against our greedy's.
    """

    graph: str
    ops: int
    fusible: int
    partitions: tuple[Partition, ...]
    agreement: Agreement
    agreement_once: Agreement
    agreement_legal: Agreement
    fidelity: Fidelity
    torch: str
    device: str

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        shares = {
            "agreement": self.agreement.jaccard,
            "agreement_once": self.agreement_once.jaccard,
            "agreement_legal": self.agreement_legal.jaccard,
            "rand_index": self.agreement.rand,
        }
        counts = {
            f"{prefix}_{side}": count
            for prefix, found in (("pairs", self.agreement), ("once_pairs", self.agreement_once))
            for side, count in (("both", found.both), ("inductor", found.first), ("greedy", found.second))
        }
        return {
            "graph": self.graph,
            "ops": self.ops,
            "fusible": self.fusible,
            "partitions": [asdict(partition) for partition in self.partitions],
            **shares,
            **counts,
            **asdict(self.fidelity),
            "torch": self.torch,
            "device": self.device,
        }


@dataclass(frozen=True, slots=True)
class InductorAnswer:
    """Inductor's launches as sets of our ops, and as a schedule of ours."""

    groups: Groups
    mapped: Mapped
    legalized: Legalized

    @property
    def solution(self) -> Solution:
        """The schedule, judged by the checker."""
        return self.legalized.solution


def inductor_answer(extraction: Extraction, groups: Groups) -> InductorAnswer:
    """Map Inductor's kernels to our ops, and make a schedule of them.

    Where the problem has alternatives, two are made, of the first ones and of the last ones; the cheaper is returned.

    Raises:
        InductorError: If the schedule breaks a condition of ours.
    """
    instance = extraction.instance
    made: list[tuple[Mapped, Legalized]] = []
    for without in dict.fromkeys(_without(instance, chosen) for chosen in (0, -1)):
        mapped = map_groups(extraction.graph, groups, without)
        made.append((mapped, legalize(instance, sets_to_price(instance, mapped))))
    mapped, legalized = min(made, key=lambda one: one[1].solution.objective)
    violations = [found for found in check(instance, legalized.solution) if found.code != "peak_cap"]
    if violations:
        raise InductorError(f"{instance.name}: Inductor's kernels make no schedule here: {violations[0].message}")
    return InductorAnswer(groups, mapped, legalized)


def _without(instance: Instance, chosen: int) -> frozenset[int]:
    """The ops of alternatives that do not run if each variant's alternative at index ``chosen`` runs.

    A library call that is a first alternative runs in any case.
    """
    every: set[int] = set()
    running: set[int] = set()
    for variant in instance.variants:
        first = variant.alternatives[0]
        called = any(instance.ops[op].kind != "loop" for op in first)
        running.update(first if called else variant.alternatives[chosen])
        every.update(op for option in variant.alternatives for op in option)
    return frozenset(every - running)


def compare(
    extraction: Extraction, answer: InductorAnswer, greedy: Solution, others: Mapping[str, Solution]
) -> Comparison:
    """Return the figures of Inductor's partition, greedy's and other solvers' side by side."""
    instance, mapped = extraction.instance, answer.mapped
    among = mapped.placed
    ours = [kernel.ops for kernel in greedy.kernels]
    solutions = {"inductor": answer.solution, "greedy": greedy, **others}
    return Comparison(
        graph=instance.name,
        ops=len(instance.ops),
        fusible=len(among),
        partitions=tuple(partition(instance, name, solution) for name, solution in solutions.items()),
        agreement=agreement(mapped.kernels, ours, among),
        agreement_once=agreement(mapped.kernels, ours, among - mapped.repeated),
        agreement_legal=agreement([kernel.ops for kernel in answer.solution.kernels], ours, among),
        fidelity=_fidelity(instance, answer),
        torch=answer.groups.torch,
        device=answer.groups.device,
    )


def partition(instance: Instance, name: str, solution: Solution) -> Partition:
    """A schedule's row of the table."""
    prices = [kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes) for kernel in solution.kernels]
    moved = sum(price.read_bytes + price.write_bytes for price in prices)
    return Partition(name, len(prices), solution.objective, moved)


def _fidelity(instance: Instance, answer: InductorAnswer) -> Fidelity:
    mapped = answer.mapped
    launches, splits = answer.groups.launches, answer.legalized.splits
    codes = ("mix_order" if launches[place].kind == "mix_order" else code for place, code, _ in splits)
    return Fidelity(
        launches=len(launches),
        unmapped=len(mapped.unmapped),
        unmapped_reasons=dict(Counter(reason for _, reason in mapped.unmapped)),
        unmapped_ops=tuple(instance.ops[op].name for op, _ in mapped.unmapped),
        split=len(splits),
        split_reasons=dict(Counter(codes)),
        repeated=len(mapped.repeated),
        loops_there=len(mapped.loops_there),
        library_there=len(mapped.library_there),
        two_stages=len(mapped.two_stages),
        strangers=mapped.strangers,
        redundant=len(answer.legalized.redundant),
    )
