"""Measured kernels with what the price is made of: a bench's document and its plans, as data for the refinement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from optfuse.compiler.analysis.op_work import LibraryKind, done_operations, library_operations
from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.ir.graph_json import graph_from_json
from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.errors import OptfuseError, PlanError
from optfuse.problem.cost import kernel_accesses
from optfuse.problem.instance import AccessClass, Instance, Work
from optfuse.problem.serialize import load_instance, load_solution
from optfuse.problem.solution import Kernel
from optfuse.schedule.prepared import read_json


@dataclass(frozen=True, slots=True)
class Traffic:
    """One access of a kernel: bytes, how they lie, and the size of its buffer if that is a temporary (else 0).

    ``again``: how many later passes of a looped kernel read it once more.
    """

    way: Literal["read", "write"]
    bytes: int
    access: AccessClass
    temporary: int
    again: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A kernel that ran ``count`` times in ``measured_us``: the median duration, and the gap to the next kernel.

    ``programs`` is 0 for a kernel that does not reduce. A library call has its kind and the operations its tiles do;
    the work is a generated kernel's.
    """

    measured_us: float
    count: int
    traffic: tuple[Traffic, ...]
    programs: int
    work: Work
    library: LibraryKind | None = None
    operations: int = 0


def read_samples(document: Mapping[str, Any], plans: Path) -> list[Sample]:
    """The kernels of a bench's document, whose plans are in a folder; equal kernels are one sample.

    Raises:
        PlanError: A plan is missing or is not the one that was measured.
    """
    gap = float(document.get("yardstick", {}).get("gap_us", 0.0))
    problems: dict[str, _Problem] = {}
    found: dict[Sample, list[float]] = defaultdict(list)
    for record in document["kernels"]:
        if record["measured_us"] <= 0:
            continue
        graph = record["graph"]
        if graph not in problems:
            problems[graph] = _Problem.load(plans / graph)
        sample = problems[graph].sample(record["position"])
        found[sample].append(record["measured_us"] + gap)
    return [replace(sample, measured_us=median(times), count=len(times)) for sample, times in found.items()]


@dataclass(frozen=True, slots=True)
class _Problem:
    instance: Instance
    kernels: Sequence[Kernel]
    calls: Mapping[str, tuple[LibraryKind, int]]

    @staticmethod
    def load(folder: Path) -> _Problem:
        try:
            graph = graph_from_json(read_json(folder / "graph.json"))
            saved = load_instance(folder / "instance.json")
            solution = load_solution(folder / "solution.json")
        except (OptfuseError, OSError) as error:
            raise PlanError(f"{folder}: the plan that was measured is needed: {error}") from error
        # stated again, so that a changed price can be fitted to what was measured before
        instance = extract(graph, saved.devices[0], allocates=lambda call: not takes_out(call)).instance
        if [scheme.name for scheme in instance.schemes] != [scheme.name for scheme in saved.schemes]:
            raise PlanError(f"{folder}: graph.json has other schemes today; run the bench again")
        buffers = {buffer.name: buffer for buffer in graph.buffers}
        calls: dict[str, tuple[LibraryKind, int]] = {}
        for op in graph.ops:
            if isinstance(op, LibraryCall):
                kind, needed = library_operations(op, buffers)
                calls[op.name] = kind, done_operations(op, kind, needed, buffers, saved.devices[0])
        return _Problem(instance, solution.kernels, calls)

    def sample(self, position: int) -> Sample:
        if position >= len(self.kernels):
            raise PlanError(
                f"{self.instance.name}: has no kernel {position}; the plan is not the one that was measured"
            )
        kernel = self.kernels[position]
        scheme = self.instance.schemes[kernel.scheme]
        reads, writes, reduces = kernel_accesses(self.instance, kernel.ops, kernel.scheme, kernel.writes)
        traffic = [
            Traffic("read", read.bytes, read.access, self._temporary(read.buffer), again) for read, again in reads
        ] + [Traffic("write", write.bytes, write.access, self._temporary(write.buffer)) for write in writes]
        first = self.instance.ops[kernel.ops[0]]
        kind, operations = self.calls.get(first.name, (None, 0))
        return Sample(
            0.0, 0, tuple(sorted(traffic, key=repr)), max(1, scheme.parallel) if reduces else 0,
            Work() if kind else _sum(self.instance.ops[op].work for op in kernel.ops), kind, operations,
        )  # fmt: skip

    def _temporary(self, buffer: int) -> int:
        target = self.instance.buffers[buffer]
        return target.bytes if target.kind == "temporary" else 0


def _sum(works: Iterable[Work]) -> Work:
    total = Work()
    for work in works:
        total = Work(
            total.fp32 + work.fp32, total.special + work.special, total.tensor + work.tensor, total.atomic + work.atomic
        )
    return total
