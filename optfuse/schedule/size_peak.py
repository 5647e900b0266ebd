"""The peak memory of a schedule for a range of sizes: an expression of the sizes, and a cap on it as guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from optfuse.compiler.codegen.memory import itemsize
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.size_formula import evaluate
from optfuse.compiler.ir.sizes import Size, hint, never_less, same
from optfuse.problem.solution import Solution
from optfuse.schedule.library_buffers import library_buffers
from optfuse.solver.memory.footprint import Fits, separate_spans


@dataclass(frozen=True, slots=True)
class SizePeak:
    """Bytes that are live at once, inputs and constants included, each buffer by itself: the largest of ``terms``.

    A term is a step's sum, a formula of the sizes; left out are steps that need no more than another one at any size.
    """

    terms: tuple[int, ...]

    def __str__(self) -> str:
        """The expression in Python's own syntax."""
        texts = [str(term) for term in self.terms]
        return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"

    def at(self, sizes: Mapping[str, int]) -> int:
        """Bytes at given sizes."""
        return max(evaluate(term.formula, sizes) if isinstance(term, Size) else term for term in self.terms)

    def within(self, cap: int) -> bool:
        """Whether the peak keeps a cap at these sizes. Where the ranges do not tell, that becomes a guard."""
        return all(term <= cap for term in self.terms)


def buffer_bytes(extraction: Extraction) -> list[int]:
    """By buffer of the instance its bytes, formulas where sizes change."""
    buffers = {buffer.name: buffer for buffer in extraction.graph.buffers}
    found = [buffers[buffer.name] for buffer in extraction.instance.buffers]
    return [extent(buffer.shape, buffer.stride) * itemsize(buffer.dtype) for buffer in found]


def always_equal(sizes: Sequence[int]) -> Fits:
    """Whether two buffers of these bytes have the same ones at every size."""
    return lambda one, other: same((sizes[one],), (sizes[other],))


def size_peak(extraction: Extraction, solution: Solution) -> SizePeak:
    """The peak of a schedule whose buffers are allocated one by one, as the emitted program for a range has it."""
    instance, sizes = extraction.instance, buffer_bytes(extraction)
    spans, heirs, _ = separate_spans(instance, solution, library_buffers(extraction), always_equal(sizes))
    length = len(solution.kernels)
    change = [0] * (length + 2)
    for span in spans:
        change[span.first] = change[span.first] + sizes[span.buffer]
        change[max(span.last, 0) + 1] = change[max(span.last, 0) + 1] - sizes[span.buffer]
    timed = {span.buffer for span in spans} | heirs.keys()
    always = [
        number
        for number, buffer in enumerate(instance.buffers)
        if buffer.alias is None and buffer.kind != "temporary" and number not in timed
    ]
    base = sum([sizes[number] for number in always])
    return SizePeak(_largest(list(accumulate(change[: max(1, length)], initial=base))[1:]))


def _largest(terms: Sequence[int]) -> tuple[int, ...]:
    """The terms without those that another one is never below, the largest at the hint first."""
    kept: list[int] = []
    for term in sorted(terms, key=hint, reverse=True):
        if not any(never_less(other, term) for other in kept):
            kept.append(term)
    return tuple(kept)
