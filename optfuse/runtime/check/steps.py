"""Watch a program step by step, and check that each launch and call writes what it should, and nothing else.

Before a step, what it touches is copied; after it the device is waited for, what it wrote is held against a reference
for the same inputs (``runtime.check.references``), and every value that is still needed against its copy. So a wrong
value shows at the step that wrote it, not where it arrives.

New memory holds nan, so that unwritten elements show, and lies between margins that no step may write. Where
the program has an arena, the margins are around the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from optfuse.compiler.codegen.host_program import last_uses
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.ir.subgraph import buffers_of, subgraph
from optfuse.runtime.check.judging import Judgement, judge
from optfuse.runtime.check.references import Generators, Reference, interpreted, repeated, strided_copy

#: Bytes on either side of new memory: a multiple of every alignment that kernels take for granted.
MARGIN = 512
_MARK = 0xA5


@dataclass(frozen=True, slots=True)
class Step:
    """A launch or call: its name, the positions of its ops in the graph, what it writes, and what is dead after it."""

    name: str
    ops: tuple[int, ...]
    touches: tuple[str, ...]
    writes: tuple[str, ...]
    dying: frozenset[str]
    call: LibraryCall | None = None


@dataclass(frozen=True, slots=True)
class StepCheck:
    """The verdict on one step: its worst value, and what it did to memory that is not its own.

    ``faults`` is empty when the step is right. ``ops`` names the graph's operations that it computes.
    """

    number: int
    name: str
    kind: str
    ops: tuple[str, ...]
    buffer: str
    judgement: Judgement
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the step is right."""
        return not self.faults


@dataclass(slots=True)
class Watch:
    """Sees a program's steps; an emitted module calls ``before`` and ``after`` (``codegen.module.watched_module``)."""

    graph: LoopGraph
    steps: Sequence[Step]
    checks: list[StepCheck] = field(default_factory=list)
    _given: dict[str, torch.Tensor] = field(default_factory=dict)
    _generators: Generators | None = None
    # what is alive: the tensor, and a copy of what it held when it was last written
    _alive: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    # by the address of the memory between them; that of an arena is the step's business at any time
    _margins: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _arenas: set[int] = field(default_factory=set)
    _device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def start(self, inputs: Sequence[torch.Tensor], device: torch.device) -> None:
        """A run begins with these inputs."""
        self._device = device
        self._margins.clear()
        self._arenas.clear()
        self._alive = {name: (x, strided_copy(x, x.device)) for name, x in zip(self.graph.inputs, inputs, strict=True)}

    def before(self, number: int, tensors: dict[str, torch.Tensor]) -> None:
        """A step is about to run."""
        self._given = {name: strided_copy(x, x.device) for name, x in tensors.items()}
        call = self.steps[number].call
        self._generators = Generators.now(self._device) if call is not None and call.random else None

    def after(self, number: int, tensors: dict[str, torch.Tensor]) -> None:
        """A step has been launched."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        step = self.steps[number]
        faults = [*self._changed(step, tensors), *self._beyond(tensors)]
        reference = self._reference(step)
        if reference.fault:
            faults.append(f"it cannot be computed: {reference.fault}")
        rounded = any(x.is_floating_point() for x in self._given.values())
        found = {
            name: judge(tensors[name], reference.eager[name], reference.exact[name], rounded=rounded)
            for name in step.writes
            if name in tensors and isinstance(reference.eager.get(name), torch.Tensor)
        }
        worst = max(found, key=lambda name: found[name].severity, default="")
        faults += [f"{name}: {verdict.wrong}" for name, verdict in found.items() if verdict.wrong]
        kind = "kernel" if step.call is None else "library"
        ops = tuple(self.graph.ops[k].name for k in step.ops)
        verdict = found.get(worst, Judgement())
        self.checks.append(StepCheck(number, step.name, kind, ops, worst, verdict, tuple(faults)))
        self._remember(step, tensors)

    def _remember(self, step: Step, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the values that are alive after a step."""
        for name, x in tensors.items():
            if name in step.writes or name not in self._alive:
                self._alive[name] = (x, strided_copy(x, x.device))
        written = {tensors[name].data_ptr() for name in step.writes if name in tensors}
        for name in step.dying & self._alive.keys():
            tensor, _ = self._alive.pop(name)
            if tensor.data_ptr() not in written:
                self._margins.pop(tensor.data_ptr(), None)

    def _reference(self, step: Step) -> Reference:
        if step.call is not None:
            return repeated(step.call, self._given, self._device, self._generators)
        graph = subgraph(self.graph, step.ops, tuple(self._given), step.writes)
        return interpreted(graph, self._given, step.writes)

    def _changed(self, step: Step, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """The values that a step changed and must not have. A value that dies may lie where the step writes."""
        written = [tensors[name] for name in step.writes if name in tensors]
        faults = []
        for name, (tensor, copy) in list(self._alive.items()):
            if name in step.writes or _same_bits(tensor, copy):
                continue
            if name in step.dying and any(_overlap(tensor, other) for other in written):
                continue
            faults.append(f"{name} was changed, which it does not write")
            self._alive[name] = (tensor, strided_copy(tensor, tensor.device))
        return faults

    def _beyond(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        named = {x.data_ptr(): name for name, x in tensors.items()} | dict.fromkeys(self._arenas, "the arena")
        faults = []
        for address in named.keys() & self._margins.keys():
            for margin in self._margins[address]:
                if not bool((margin == _MARK).all()):
                    faults.append(f"memory beyond {named[address]} was written")
                    margin.fill_(_MARK)
        return faults

    # --- memory

    def memory(self, size: int, device: torch.device) -> torch.Tensor:
        """So many bytes between margins, all bits set: every float there is nan."""
        whole = torch.empty(size + 2 * MARGIN, dtype=torch.uint8, device=device)
        inside = whole[MARGIN : MARGIN + size].fill_(0xFF)
        self._margins[inside.data_ptr()] = (whole[:MARGIN].fill_(_MARK), whole[MARGIN + size :].fill_(_MARK))
        return inside

    def arena(self, size: int, device: torch.device) -> torch.Tensor:
        """What stands for a module's function ``scratch``."""
        inside = self.memory(size, device)
        self._arenas.add(inside.data_ptr())
        return inside

    def allocator(self, device: torch.device) -> Callable[..., torch.Tensor]:
        """What stands for a module's function of that name."""

        def empty(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            if 0 in shape:
                return torch.empty_strided(shape, stride, dtype=dtype, device=device)
            extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
            flat = self.memory(extent * dtype.itemsize, device)
            if dtype is torch.bool:
                flat.fill_(1)
            return flat.view(dtype).as_strided(shape, stride, MARGIN // dtype.itemsize)

        return empty


def steps_of(
    graph: LoopGraph, launched: Sequence[KernelSource | LibraryCall], ops: Sequence[Sequence[int]]
) -> tuple[Step, ...]:
    """The steps of a program: of each its kernel or call, and its ops' positions in the graph."""
    last = last_uses(launched)
    kept = {*graph.inputs, *graph.constants, *(getattr(out, "buffer", "") for out in graph.outputs)}
    found = []
    for number, (one, positions) in enumerate(zip(launched, ops, strict=True)):
        dying = frozenset(name for name, at in last.items() if at == number and name not in kept)
        if isinstance(one, LibraryCall):
            writes = tuple(name for name in (*one.outputs, *one.mutates) if name is not None)
            found.append(Step(one.name, tuple(positions), tuple(dict.fromkeys(buffers_of(one))), writes, dying, one))
        else:
            found.append(Step(one.name, tuple(positions), tuple(one.pointers), tuple(one.written), dying))
    return tuple(found)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors' memory has bytes in common, from the first to the last one of each."""
    (a0, a1), (b0, b1) = _range(a), _range(b)
    return a.device == b.device and a0 < b1 and b0 < a1


def _range(x: torch.Tensor) -> tuple[int, int]:
    extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.data_ptr(), x.data_ptr() + extent * x.element_size()
