"""Emit the host program: allocate by plan, launch and call in order, free by lifetime, return views.

Memory comes from four places. Temporaries with an offset in the plan are windows of one arena. An heir is written in
the place of another buffer, whose last use is in the same kernel. The graph's outputs, and buffers that the plan leaves
out, are allocated individually just before their first write, and deleted after their last use. Results of library
calls that cannot write into given memory are kept as they are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from optfuse.compiler.codegen.host_numbers import HostNumbers
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.launch_table import NAME as IN_TABLE
from optfuse.compiler.codegen.library_calls import (
    ALWAYS_CONTIGUOUS,
    arguments,
    out_call,
    quickest,
    returns_one_tensor,
    takes_out,
)
from optfuse.compiler.codegen.memory import bytes_of, is_contiguous, itemsize, same_layout
from optfuse.compiler.codegen.operator_sources import callee
from optfuse.compiler.codegen.python_text import INDENT, call_text, comment, docstring, literal, tuple_text, variables
from optfuse.compiler.codegen.split_matmul import matmul_parts
from optfuse.compiler.codegen.unaligned_matmul import NAME as BY_ROWS
from optfuse.compiler.codegen.unaligned_matmul import by_rows
from optfuse.compiler.codegen.uncaptured_steps import NAME as APART
from optfuse.compiler.codegen.uncaptured_steps import moved_numbers
from optfuse.compiler.ir.buffer_layout import padding, span
from optfuse.compiler.ir.collectives import is_start
from optfuse.compiler.ir.devices import main_device
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, Output, View, views
from optfuse.compiler.ir.sizes import same
from optfuse.errors import PlanError

ALIGNMENT = 16  # bytes: what kernels assume of every pointer that the plan has placed

Step = KernelSource | LibraryCall


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Where temporaries live: byte offsets into one arena. Buffers without an offset are allocated individually.

    ``heirs`` maps a buffer to the one in whose place it is written. ``donated`` are the inputs whose memory the caller
    does not need after the call: they are released after their last use. None: all of them.
    """

    arena_bytes: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)
    heirs: Mapping[str, str] = field(default_factory=dict)
    donated: frozenset[str] | None = None


def host_program(
    graph: LoopGraph,
    steps: Sequence[Step],
    memory: MemoryLayout,
    reserved: Iterable[str] = (),
    *,
    watched: bool = False,
    apart: Mapping[int, str] | None = None,
) -> str:
    """The text of ``call(inputs, constants)``, for the helpers of ``compiler.codegen.module``.

    Args:
        graph: A graph that verifies, of fixed sizes.
        steps: Kernels and library calls in the order in which they run.
        memory: The plan. Offsets of buffers that cannot live in the arena (outputs, results that a library allocates
            itself) are ignored, so that those buffers are allocated individually.
        reserved: Names of the module that a variable must not shadow.
        watched: Around every launch and call, call ``before(k, tensors)`` and ``after(k, tensors)`` of the module: the
            step's number, and the tensors that it touches (before: those that exist) by their buffers' names.
        apart: Why a step runs outside of CUDA graphs, by position; "" for one that is tried.

    Raises:
        PlanError: An offset that is unaligned or out of the arena, an heir of a buffer that is no temporary or still
            used, or a buffer that is read before it is written.
    """
    names = (*reserved, *(("before", "after") if watched else ()))
    host = _Host(graph, tuple(steps), memory, names, watched, apart or {})
    steps_and_results = [*host.body(), *host.epilogue()]
    allocates = any(" = empty(" in line or "(empty(" in line for line in steps_and_results)
    return "\n".join(["def call(inputs, constants):", *host.prologue(allocates=allocates), *steps_and_results]) + "\n"


class _Host:
    """The state of the host program under construction."""

    def __init__(
        self,
        graph: LoopGraph,
        steps: tuple[Step, ...],
        memory: MemoryLayout,
        reserved: tuple[str, ...],
        watched: bool,
        apart: Mapping[int, str],
    ) -> None:
        self.graph = graph
        self.watched = watched
        self.steps = steps
        self.memory = memory
        self.buffers = {buffer.name: buffer for buffer in graph.buffers}
        self.returned = {out.buffer for out in graph.outputs if isinstance(out, View)}
        self.offsets = _placed(steps, self.buffers, memory, self.returned)
        self.arena_bytes = -(-memory.arena_bytes // 128) * 128 if self.offsets else 0
        arenas = {f"arena_{self.buffers[name].dtype}" for name in self.offsets}
        local = {"arena", "device", "empty", "numbers", "inputs", "constants", "call", *arenas}
        self.names = variables(self.buffers, {*reserved, *local})
        self.device_of_program, self.device_source = _main_device(graph, steps, self.buffers)
        self.last_use = last_uses(steps)
        self.read = {view.buffer for step in steps if isinstance(step, LibraryCall) for view in views(step)}
        self.read |= {name for step in steps if not isinstance(step, LibraryCall) for name in step.pointers}
        self.read |= self.returned
        self.position = 0
        self.apart = apart
        taken = {name for step in steps if isinstance(step, KernelSource) for name in step.pointers}
        elsewhere = {name: self.names[name] for name in taken if self.buffers[name].device != self.device_of_program}
        self.numbers = HostNumbers(elsewhere, moved_numbers(graph, steps), bool(self.apart))
        self.given = {*graph.inputs, *graph.constants}
        self.alive = set(self.given)

    # --- the three parts

    def prologue(self, *, allocates: bool) -> list[str]:
        """Docstring, inputs and constants by name, the arena; ``allocates``: single tensors are allocated as well."""
        name = docstring(self.graph.name)
        lines = [f'{INDENT}"""Run {name}: a list of tensors, which is emptied, to a tuple of outputs."""']
        if self.graph.inputs:
            used = self.last_use.keys() | self.returned | {self.device_source}
            targets = [self.names[name] if name in used else "_" for name in self.graph.inputs]
            trailing = ",)" if len(targets) == 1 else ")"
            lines += call_text("(", targets, tail=f"{trailing} = inputs")
            lines.append(f"{INDENT}inputs.clear()")
        lines += [
            f'{INDENT}{self.names[name]} = constants["{name}"]' for name in used_constants(self.graph, self.steps)
        ]
        source = f"{self.names[self.device_source]}.device" if self.device_source else "DEVICE"
        lines.append(f"{INDENT}device = {source}")
        if allocates:
            lines.append(f"{INDENT}empty = allocator(device)")
        if self.arena_bytes:
            lines.append(f"{INDENT}arena = scratch({self.arena_bytes}, device)")
            for dtype in sorted({self.buffers[name].dtype for name in self.offsets}):
                lines.append(f"{INDENT}arena_{dtype} = arena.view(torch.{dtype})")
        return lines

    def body(self) -> list[str]:
        """By step: allocations for its results, the launch or call, and the release of dead buffers."""
        lines: list[str] = []
        for position, step in enumerate(self.steps):
            self.position = position
            lines.append("")
            if isinstance(step, LibraryCall):
                lines += self._library(step)
                self.numbers.forget(step.mutates)
            else:
                lines += self._kernel(step)
            lines += self._watch("after")
            dead = [self.names[name] for name, last in self.last_use.items() if last == position and self._dies(name)]
            if dead:
                lines.append(f"{INDENT}del {', '.join(dead)}")
        return lines

    def epilogue(self) -> list[str]:
        """The outputs."""
        lines: list[str] = [""]
        for out in self.graph.outputs:
            if isinstance(out, View):
                lines += self._ready(out.buffer, "the graph's outputs")
        items = [self._output(out) for out in self.graph.outputs]
        trailing = ",)" if len(items) == 1 else ")"
        return lines + call_text("return (", items, tail=trailing)

    # --- steps

    def _kernel(self, kernel: KernelSource) -> list[str]:
        lines: list[str] = []
        for name in kernel.written:
            if self.buffers[name].device != self.device_of_program:
                where = self.buffers[name].device
                raise PlanError(
                    f"{kernel.name} writes {name}, which is on {where}; kernels run on {self.device_of_program}"
                )
        for name in kernel.pointers:
            lines += self._ready(name, kernel.name, writes=name in kernel.written)
        lines += self.numbers.copied(kernel)
        if kernel.label:
            lines.insert(0, comment(kernel.label))
        lines += self._watch("before")
        function = IN_TABLE if kernel.in_table else "launch"
        return lines + self._call(function, [kernel.name, *(self._pointer(name) for name in kernel.pointers)])

    def _call(self, function: str, given: Sequence[str], target: str = "") -> list[str]:
        """The current step's call, through ``apart`` where a CUDA graph cannot hold it, or perhaps cannot."""
        start = f"{target} = " if target else ""
        if self.position not in self.apart:
            return call_text(f"{start}{function}(", given)
        return call_text(f"{start}{APART}(", [repr(self.apart[self.position]).replace("'", '"'), function, *given])

    def _pointer(self, name: str) -> str:
        """A buffer as a kernel's argument; of a scalar on another device the copy."""
        return self.numbers.there.get(name, self.names[name])

    def _library(self, call: LibraryCall) -> list[str]:
        origin = call.origin
        target = callee(call.target).removeprefix("aten.").removesuffix(".default")
        lines = [comment(f"{origin.module or origin.node}: {target}").rstrip()]
        for view in views(call):
            lines += self._ready(view.buffer, call.name)
        outputs = [name for name in call.outputs if name is not None]
        whole = by_rows(call, self.buffers)
        if whole is not None:
            lines += [*self._ready(outputs[0], call.name, writes=True), *self._watch("before")]
            operands = [self._window(view) for view in (whole.a, whole.b)]
            given = [] if whole.bias is None else [self._window(whole.bias)]
            return lines + call_text(f"{BY_ROWS}(", [*operands, self.names[outputs[0]], *given])
        parts = matmul_parts(call, self.buffers)
        if parts:
            lines += [*self._ready(outputs[0], call.name, writes=True), *self._watch("before")]
            for part in parts:
                operands = [self._window(view) for view in part.operands]
                lines += call_text(f"{quickest(part.overload)}(", [*operands, f"out={self._window(part.out)}"])
            return lines
        given = arguments(call, self._window, self._device)
        if takes_out(call) and outputs and outputs[0] in self.offsets:
            lines += [*self._ready(outputs[0], call.name, writes=True), *self._watch("before")]
            overload, where = out_call(call.target, self.names[outputs[0]])
            return lines + self._call(overload, [*given, where])
        lines += self._watch("before")
        self.alive |= set(outputs)
        if not outputs:
            return lines + self._call(callee(call.target), given)
        if returns_one_tensor(call.target):
            target = self.names[outputs[0]]
        else:
            slots = [self.names[name] if name is not None else "_" for name in call.outputs]
            target = tuple_text(slots)[1:-1]
        lines += self._call(callee(call.target), given, target)
        for name in () if is_start(call) else outputs:  # what is in flight is laid out anew by its wait
            buffer = self.buffers[name]
            contiguous = call.target in ALWAYS_CONTIGUOUS and is_contiguous(buffer.shape, buffer.stride)
            if contiguous or 0 in buffer.shape or name not in self.read:  # the result may be None
                continue
            layout = f"{tuple_text(buffer.shape)}, {tuple_text(buffer.stride)}"
            lines.append(f"{INDENT}{self.names[name]} = planned({self.names[name]}, {layout})")
        return lines

    def _watch(self, when: str) -> list[str]:
        """The call of ``before`` or ``after`` with the buffers of the current step."""
        if not self.watched:
            return []
        seen = self.alive & (self.read | self.given)
        found = [name for name in touched(self.steps[self.position]) if name in seen]
        pairs = ", ".join(f'"{name}": {self.names[name]}' for name in found)
        return [f"{INDENT}{when}({self.position}, {{{pairs}}})"]

    def _ready(self, name: str, user: str, *, writes: bool = False) -> list[str]:
        """The lines that allocate a buffer, if it is not alive yet."""
        if name in self.alive:
            return []
        buffer = self.buffers[name]
        if not writes and 0 not in buffer.shape:
            raise PlanError(f"{user} reads {name} before any step has written it; the steps are out of order")
        self.alive.add(name)
        layout = f"{tuple_text(buffer.shape)}, {tuple_text(buffer.stride)}"
        if name in self.offsets:
            offset = self.offsets[name] // itemsize(buffer.dtype)
            return [f"{INDENT}{self.names[name]} = window(arena_{buffer.dtype}, {layout}, {offset})"]
        if name in self.memory.heirs:
            return [f"{INDENT}{self.names[name]} = window({self._inherited(name)}, {layout})"]
        if buffer.device == self.device_of_program:
            if padding(buffer):
                made = f"empty(({span(buffer)},), (1,), torch.{buffer.dtype})"
                return [f"{INDENT}{self.names[name]} = window({made}, {layout})"]
            return [f"{INDENT}{self.names[name]} = empty({layout}, torch.{buffer.dtype})"]
        where = f"dtype=torch.{buffer.dtype}, device={self._device(buffer.device)}"
        return [f"{INDENT}{self.names[name]} = torch.empty_strided({layout}, {where})"]

    def _inherited(self, name: str) -> str:
        """The tensor in whose place a buffer is written, as one of the buffer's dtype."""
        old, new = self.buffers[self.memory.heirs[name]], self.buffers[name]
        free = old.kind == "temporary" and old.name not in self.returned and old.name in self.alive
        free = free and old.device == new.device and same((bytes_of(old),), (bytes_of(new),))
        if not free or self.last_use[old.name] != self.position:
            raise PlanError(
                f"the plan lets {name} take the place of {old.name}, which is not free then, or not as large"
            )
        return self.names[old.name] if old.dtype == new.dtype else f"{self.names[old.name]}.view(torch.{new.dtype})"

    # --- values

    def _dies(self, name: str) -> bool:
        """Whether a variable holds memory that can be freed before the program ends."""
        if name in self.returned or name not in self.alive:
            return False
        match self.buffers[name].kind:
            case "temporary":
                return name not in self.offsets
            case "input":
                return self.memory.donated is None or name in self.memory.donated
            case "constant":
                return False

    def _device(self, text: str) -> str:
        return "device" if text == self.device_of_program else f'torch.device("{text}")'

    def _output(self, out: Output) -> str:
        return self._window(out) if isinstance(out, View) else literal(out)

    def _window(self, view: View) -> str:
        """A view of a buffer by the simplest expression that gives exactly its strides."""
        buffer, name = self.buffers[view.buffer], self.names[view.buffer]
        if view.offset == 0 and same_layout(view, buffer):
            return name
        if view.offset == 0 and len(view.shape) == 2:
            flipped = View(view.buffer, view.shape[::-1], view.stride[::-1])
            if same_layout(flipped, buffer):
                return f"{name}.t()"
        dense = is_contiguous(view.shape, view.stride) and is_contiguous(buffer.shape, buffer.stride)
        if view.offset == 0 and dense and prod(view.shape) == prod(buffer.shape):
            return f"{name}.view({tuple_text(view.shape)})"
        offset = f", {view.offset}" if view.offset else ""
        return f"window({name}, {tuple_text(view.shape)}, {tuple_text(view.stride)}{offset})"


def used_constants(graph: LoopGraph, steps: Sequence[Step]) -> tuple[str, ...]:
    """The constants that the program uses; others are inlined in kernels."""
    used = last_uses(steps).keys() | {out.buffer for out in graph.outputs if isinstance(out, View)}
    return tuple(name for name in graph.constants if name in used)


# --- facts about buffers and steps --------------------------------------------------------------------------------


def _placed(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], memory: MemoryLayout, returned: set[str]
) -> dict[str, int]:
    """The offsets of the buffers that can live in the arena, checked."""
    outside = set(returned)
    for step in steps:
        if isinstance(step, LibraryCall) and not takes_out(step):
            outside |= {name for name in step.outputs if name is not None}
    placed = {}
    for name, offset in memory.offsets.items():
        buffer = buffers.get(name)
        if buffer is None or buffer.kind != "temporary":
            raise PlanError(f"the plan places {name}, which is no temporary of the graph")
        if name in outside or 0 in buffer.shape:
            continue
        end = offset + bytes_of(buffer)
        if offset < 0 or offset % ALIGNMENT or end > memory.arena_bytes:
            raise PlanError(
                f"the plan places {name} at bytes {offset} to {end} of an arena of {memory.arena_bytes}: "
                f"offsets must be multiples of {ALIGNMENT} inside the arena"
            )
        placed[name] = offset
    return placed


def touched(step: Step) -> list[str]:
    """The buffers that a step reads or writes, each once."""
    if isinstance(step, LibraryCall):
        read = [*(view.buffer for view in views(step)), *step.holds]
        return list(dict.fromkeys([*read, *(name for name in step.outputs if name is not None)]))
    return list(dict.fromkeys(step.pointers))


def last_uses(steps: Sequence[Step]) -> dict[str, int]:
    """By buffer, in order of first use: the last step that accesses it."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        last.update(dict.fromkeys(touched(step), position))
    return last


def _main_device(graph: LoopGraph, steps: Sequence[Step], buffers: Mapping[str, Buffer]) -> tuple[str, str]:
    """The device of the program as planned, and the argument whose device it is at run time ("" if there is none).

    Tensors with dimensions are preferred: a GPU program may have scalars on the CPU.
    """
    device = main_device(buffer.device for buffer in graph.buffers)
    given = (*graph.inputs, *used_constants(graph, steps))
    there = [name for name in given if buffers[name].device == device]
    return device, next((name for name in there if buffers[name].shape), there[0] if there else "")
