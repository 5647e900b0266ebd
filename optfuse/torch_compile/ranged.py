"""A graph's schedule for a range of sizes as a function: one solution and one text, run at each size that comes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from optfuse.api import Schedule
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.module import at_sizes
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.ir.sizes import Size, symbols_in
from optfuse.errors import CaptureError
from optfuse.runtime.program import Value
from optfuse.runtime.sized_module import SizedModule
from optfuse.schedule.emit import emitted_steps, module_text

Run = Callable[[list[Any]], Sequence[Value]]
#: An input, a dimension of it, and by what its size is divided. The dimension NUMBER is an input that is a number.
Place = tuple[int, int, int]
NUMBER = -1
#: Sizes whose programs a graph keeps.
MOST = 64


def require_same(problem: Extraction, schedule: Schedule, places: Mapping[str, Place]) -> None:
    """Check that the graph at other hints, ``problem``, has the text of ``schedule`` with its solution and its tiles.

    Raises
    ------
    CaptureError
        If a line differs: something depends on a size that no guard tells.
    PlanError, InvalidGraphError
        If they do not fit.
    """
    steps, _ = emitted_steps(schedule.extraction, schedule.result)
    tiles = {step.name: step.config for step in steps if isinstance(step, KernelSource)}
    again, layout = emitted_steps(problem, schedule.result, tiles=tiles)
    made = module_text(problem, schedule.result, again, layout)
    any_size = dict.fromkeys(places, 0)
    here, there = (at_sizes(text, any_size).splitlines() for text in (schedule.source, made))
    for line, other in itertools.zip_longest(here, there):
        if line != other:
            raise CaptureError(f"its kernels are not the same at other sizes: {line!r} and {other!r}")


@dataclass(slots=True)
class RangedRun:
    """Runs a module at the sizes of its inputs, which ``places`` has by symbol.

    Behind its ``tensors`` tensors the inputs have numbers. ``program`` makes what runs the module of a call's sizes,
    given the module and the product of these sizes over that of the first call's. The one used last is the last of
    ``runs``.
    """

    module: SizedModule
    places: Mapping[str, Place]
    tensors: int
    program: Callable[[ModuleType, float], Run]
    first: tuple[int, ...] = ()
    runs: dict[tuple[int, ...], Run] = field(default_factory=dict)

    def __call__(self, inputs: list[Any]) -> Sequence[Value]:
        """The outputs; the list is emptied."""
        sizes = tuple([_size(inputs[k], axis, factor) for k, axis, factor in self.places.values()])
        del inputs[self.tensors :]
        run = self.runs.pop(sizes, None)
        if run is None:
            if len(self.runs) == MOST:
                self.runs.pop(next(iter(self.runs)))
            self.first = self.first or sizes
            share = math.prod(sizes) / max(1, math.prod(self.first))
            run = self.program(self.module.at(dict(zip(self.places, sizes, strict=True))), share)
        self.runs[sizes] = run
        return run(inputs)


def _size(value: Any, axis: int, factor: int) -> int:
    return value if axis == NUMBER else value.shape[axis] // factor


def places_of(schedule: Schedule, names: Collection[str], numbers: Sequence[str] = ()) -> dict[str, Place]:
    """By symbol of the module: an input, and its dimension whose size is a multiple of the symbol.

    ``names`` are all symbols of the graph, ``numbers`` those whose values come behind its tensors.

    Raises
    ------
    CaptureError
        If a symbol is in no dimension's size alone, or the module reads one that is no size of a buffer.
    """
    buffers = {buffer.name: buffer for buffer in schedule.graph.buffers}
    given_numbers = {name: (len(schedule.graph.inputs) + k, NUMBER, 1) for k, name in enumerate(numbers)}
    found: dict[str, Place] = {}
    for name in sorted({name for buffer in buffers.values() for n in buffer.shape for name in symbols_in(n)}):
        for k, given in enumerate(schedule.graph.inputs):
            for axis, size in enumerate(buffers[given].shape):
                terms = size.formula.terms if isinstance(size, Size) else ()
                if len(terms) == 1 and terms[0][0] == (name,):
                    found.setdefault(name, (k, axis, terms[0][1]))
        if name in given_numbers:
            found.setdefault(name, given_numbers[name])
        if name not in found:
            raise CaptureError(f"the size {name} is no dimension's")
    for name in sorted(set(names) - found.keys()):
        if re.search(rf"\b{name}\b", schedule.source):
            if name not in given_numbers:
                raise CaptureError(f"the number {name} is no dimension's size")
            found[name] = given_numbers[name]
    return found
