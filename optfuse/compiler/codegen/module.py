"""Emit a schedule as one self-contained Python module, which needs only torch and triton.

Its parts, in order: a docstring with the certificate; small helpers; the kernels; the tables INPUTS, CONSTANTS and
KERNELS; the host program ``call(inputs, constants)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from optfuse.compiler.codegen.host_numbers import NAME as NUMBERS
from optfuse.compiler.codegen.host_program import MemoryLayout, Step, host_program, used_constants
from optfuse.compiler.codegen.kernel_source import KernelSource, grid_text
from optfuse.compiler.codegen.launch_table import DEFINITION as IN_TABLE_DEFINITION
from optfuse.compiler.codegen.launch_table import NAME as IN_TABLE
from optfuse.compiler.codegen.operator_sources import carried, definitions
from optfuse.compiler.codegen.prelude import PRELUDE
from optfuse.compiler.codegen.python_text import INDENT, call_text, docstring, tuple_text, with_callees
from optfuse.compiler.codegen.unaligned_matmul import DEFINITION, by_rows
from optfuse.compiler.codegen.unaligned_matmul import NAME as BY_ROWS
from optfuse.compiler.codegen.uncaptured_steps import DEFINITION as APART_DEFINITION
from optfuse.compiler.codegen.uncaptured_steps import NAME as APART
from optfuse.compiler.ir.collectives import communicates, in_flight_at_a_border, is_wait
from optfuse.compiler.ir.devices import HOST, main_device
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, LoopNest, View, views
from optfuse.errors import PlanError
from optfuse.version import __version__

_IMPORTS = """\
import functools
import operator

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

aten = torch.ops.aten

# Triton's interpreter checks results where there is no GPU: it runs the same kernels in larger tiles.
INTERPRET = triton.knobs.runtime.interpret
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
stream_of = triton.runtime.driver.active.get_current_stream if torch.cuda.is_available() else None
# Triton's own way to a launch allocates memory for kernels that ask for some; none of these does.
LAUNCH_DIRECTLY = triton.__version__.startswith("3.6.")
# Compiled kernels, which the modules of other sizes share.
COMPILED = {}
"""

_HELPERS = '''\
def window(tensor, shape, stride, offset=0):
    """A strided window of a tensor's memory; the offset is in elements from the tensor's first one."""
    return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


# the same in half the time, where this torch has it
window = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", window)


def allocator(device):
    """The function that makes a tensor there, out of shape, stride and dtype."""
    if device.type == "cuda" and device.index == torch.cuda.current_device():
        quick = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
        if quick is not None:
            return quick
    return lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype, device=device)


def scratch(size, device):
    """Memory for temporaries, of which the plan says what lies where."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def planned(tensor, shape, stride):
    """A library's result with the strides that the kernels were generated for: copied if it chose others."""
    if tensor.stride() == stride or all(n == 1 or a == b for n, a, b in zip(shape, tensor.stride(), stride)):
        return tensor
    once = [n if step else min(n, 1) for n, step in zip(shape, stride)]  # what is repeated is copied once
    copied = torch.empty_strided(once, stride, dtype=tensor.dtype, device=tensor.device)
    return copied.copy_(tensor[tuple(map(slice, once))]).expand(shape)


def launch(kernel, *pointers):
    """Run a kernel as its row of KERNELS says: from the second time on without triton's checks of every argument."""
    row = KERNELS[kernel.__name__]
    if INTERPRET:
        kernel[row["grid"](**row["interpret"])](*pointers, **row["interpret"])
        return
    addresses = [*map(torch.Tensor.data_ptr, pointers)]
    device = pointers[0].get_device()
    aligned = not functools.reduce(operator.or_, addresses) & 15  # triton has another variant for others
    ready = row.get(device) if aligned else None
    if ready is None:
        grid, constants = row["grid"](**row["constants"]), row["constants"]
        kinds = map(row["signature"].get, constants)
        key = (kernel.__name__, device, *map(variant, constants.values(), kinds)) if aligned else None
        made = COMPILED.get(key)
        if made is None:
            made = kernel[grid](*pointers, **constants, **row["options"])
            if aligned:
                COMPILED[key] = made
            return
        rest = [constants[name] for name in kernel.arg_names[len(pointers) :]]
        ready = row[device] = ready_to_launch(made, (*grid, 1, 1)[:3], rest)
    run, grid, facts, rest = ready
    run(*grid, stream_of(device), *facts, *addresses, *rest)


def variant(value, kind):
    """What of a kernel's number triton compiles for: all of a constant, and of an integer whether 16 divides it."""
    return value if kind == "constexpr" or not isinstance(value, int) else (value % 16 == 0, value == 1, value >> 31)


def ready_to_launch(made, grid, rest):
    """The function that launches a compiled kernel, and its arguments around the stream and the addresses."""
    run, facts = made.run, (made.function, made.packed_metadata, None, None, None)
    if LAUNCH_DIRECTLY and not run.global_scratch_size and not run.profile_scratch_size:
        flags = (run.launch_cooperative_grid, run.launch_pdl)
        return run.launch, grid, (facts[0], *flags, None, None, *facts[1:]), rest
    return run, grid, facts, rest
'''

_MAIN = '''\
def example(table):
    """Tensors of a table's shapes: random numbers, or zeros where they may be positions."""
    tensors = {}
    for name, dtype, shape, stride, *_ in table:
        tensor = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=DEVICE)
        tensors[name] = tensor.normal_() if tensor.is_floating_point() and tensor.itemsize > 1 else tensor.zero_()
    return tensors


if __name__ == "__main__":
    for output in call(list(example(INPUTS).values()), example(CONSTANTS)):
        print(f"{output.dtype}{list(output.shape)}" if isinstance(output, torch.Tensor) else output)
'''

#: The line of a module's docstring about versions.
VERSIONS = f"Emitted by optfuse {__version__}, for torch 2.11 and triton 3.6 or newer."

#: Matches the host program in a module's text.
_CALL = re.compile(r"^def call\(inputs, constants\):\n(?:[ ].*\n|\n(?!\n))*", re.MULTILINE)

#: Names of a module that variables of the host program must not shadow.
_RESERVED = (
    *("torch", "triton", "tl", "libdevice", "aten", "INTERPRET", "DEVICE", "INPUTS", "CONSTANTS", "KERNELS"),
    *("stream_of", "window", "scratch", "planned", "launch", "example", "call"),
    *("functools", "operator", "LAUNCH_DIRECTLY", "COMPILED", "allocator", "ready_to_launch", "variant"),
    *("is_recorded", "address_table", "places_of_programs"),
)


def emit_module(
    graph: LoopGraph,
    steps: Sequence[Step],
    memory: MemoryLayout,
    *,
    certificate: str = "",
    apart: Mapping[int, str] | None = None,
) -> str:
    """The source of a module that computes ``graph``.

    Args:
        graph: A graph that verifies, of fixed sizes.
        steps: Kernels and library calls, in the order in which they run.
        memory: Where temporaries live.
        certificate: A line of the docstring: what was proved.
        apart: Why a step runs outside of CUDA graphs, by position; "" for one that is tried.

    Returns:
        The text: the same for the same arguments.

    Raises:
        PlanError: Two kernels of one name, or a memory plan that does not fit (see ``host_program``).
    """
    kernels = _functions(steps)
    names = [kernel.name for kernel in kernels]
    prelude = _prelude(kernels)
    calls = [step for step in steps if isinstance(step, LibraryCall)]
    library = carried(call.target for call in calls)
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    if any(by_rows(call, buffers) for call in calls):
        library[BY_ROWS] = DEFINITION
    if apart:
        library[APART] = APART_DEFINITION
    if any(kernel.in_table for kernel in kernels):
        library[IN_TABLE] = IN_TABLE_DEFINITION
    reserved = [*_RESERVED, *prelude, *library, NUMBERS]
    taken = sorted(set(names) & set(reserved))
    if taken:
        raise PlanError(f"the kernel name {taken[0]} is taken; names must be unique in a module")
    program = host_program(graph, steps, memory, [*reserved, *names], apart=apart)
    if re.search(rf"\b{NUMBERS}\b", program):
        library |= definitions([NUMBERS])
    parts = [
        _docstring(graph, kernels, steps, certificate) + "\n" + _IMPORTS,
        _HELPERS,
        *library.values(),
        *prelude.values(),
        *(kernel.source.strip() + "\n" for kernel in kernels),
        _tables(graph, steps) + "\n" + _kernel_table(kernels),
        program,
        _MAIN,
    ]
    parts[-3] = _sizes(dict(graph.symbols), parts[-3:]) + parts[-3]
    return "\n\n".join(parts)


def kernels_module(kernels: Sequence[KernelSource]) -> str:
    """The source of a module without a host program: helpers, kernels of unique names, and KERNELS."""
    prelude = _prelude(kernels)
    functions = [kernel.source.strip() + "\n" for kernel in kernels]
    parts = ['"""Kernels."""\n\n' + _IMPORTS, _HELPERS, *prelude.values(), *functions, _kernel_table(kernels)]
    return "\n\n".join(parts)


def watched_module(source: str, graph: LoopGraph, steps: Sequence[Step], memory: MemoryLayout) -> str:
    """The module ``source`` with a host program that calls ``before`` and ``after`` around each step.

    ``source`` is a module of the same graph and steps from ``emit_module``, perhaps with another ``memory``; see also
    ``host_program``. Raises PlanError if the text has no host program.
    """
    found = _CALL.search(source)
    if found is None:
        raise PlanError(f"the module of {graph.name} has no function call(inputs, constants); emit it again")
    names = re.findall(r"^(?:def )?(\w+)(?:\(| = )", source[: found.start()], flags=re.MULTILINE)
    program = host_program(graph, steps, memory, [*_RESERVED, *names], watched=True)
    return source[: found.start()] + program + source[found.end() :]


def mutated_inputs(graph: LoopGraph) -> frozenset[str]:
    """Inputs that the graph writes in place."""
    written: set[str] = set()
    for op in graph.ops:
        if isinstance(op, LoopNest):
            written |= {store.buffer for store in op.stores}
        else:
            written |= set(op.mutates)
    return frozenset(written & set(graph.inputs))


def _sizes(hints: Mapping[str, int], parts: Iterable[str]) -> str:
    """The definitions of the symbols that parts of a text read, by their hints: ``at_sizes`` puts in other numbers."""
    read = {name for part in parts for name in re.findall(r"\b\w+\b", part)} if hints else set[str]()
    lines = [f"{name} = {hints[name]}\n" for name in sorted(hints.keys() & read)]
    head = "# sizes: the text is the same for every size of a range, but for these\n"
    return "".join([head, *lines, "\n"]) if lines else ""


def at_sizes(source: str, sizes: Mapping[str, int]) -> str:
    """The module with other numbers for its sizes, which must be in the range that it is valid for."""
    for name, size in sizes.items():
        source, found = re.subn(rf"^{name} = \d+$", f"{name} = {size}", source, flags=re.MULTILINE)
        if found != 1:
            raise PlanError(f"the module defines the size {name} {found} times")
    return source


def _functions(steps: Sequence[Step]) -> list[KernelSource]:
    """Each kernel function once; several steps may call one (``codegen.deduplicate``)."""
    functions: dict[str, KernelSource] = {}
    for step in steps:
        if isinstance(step, KernelSource) and functions.setdefault(step.name, step).source != step.source:
            raise PlanError(f"the kernel name {step.name} is taken; names must be unique in a module")
    return list(functions.values())


def _docstring(graph: LoopGraph, kernels: Sequence[KernelSource], steps: Sequence[Step], certificate: str) -> str:
    launches = sum(isinstance(step, KernelSource) for step in steps)
    made = f"{_count(launches, 'launch', 'es')} of {_count(len(kernels), 'kernel')} and "
    made += _count(len(steps) - launches, "library call")
    lines = [f"{graph.name}: {made} for {_count(len(graph.ops), 'op')}.", "", certificate, VERSIONS]
    text = "\n".join(line for k, line in enumerate(lines) if line or k == 1)
    return f'"""{docstring(text).strip()}\n"""\n'


def _count(number: int, thing: str, plural: str = "s") -> str:
    return f"{number} {thing}{'' if number == 1 else plural}"


def _tables(graph: LoopGraph, steps: Sequence[Step]) -> str:
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    mutated = mutated_inputs(graph)

    def row(name: str, *more: object) -> str:
        buffer = buffers[name]
        shape, stride = tuple_text(buffer.shape), tuple_text(buffer.stride)
        facts = [f'"{name}"', f'"{buffer.dtype}"', shape, stride, f'"{buffer.device}"', *map(str, more)]
        return f"    ({', '.join(facts)}),"

    inputs = [row(name, name in mutated) for name in graph.inputs]
    constants = [row(name) for name in used_constants(graph, steps)]
    return "\n".join(
        [
            "# name, dtype, shape, stride, device, whether it is written in place",
            _table("INPUTS", inputs),
            "",
            "# name, dtype, shape, stride, device",
            _table("CONSTANTS", constants),
            "",
            *_host_facts(graph, steps),
        ]
    )


def _table(name: str, rows: Sequence[str]) -> str:
    return "\n".join([f"{name} = (", *rows, ")"]) if rows else f"{name} = ()"


def _host_facts(graph: LoopGraph, steps: Sequence[Step]) -> list[str]:
    """The definitions of HOST, if inputs or constants must stay in the host's memory, and of other facts.

    They must stay there if operators on the host use them or the caller gets them back; others may be moved to the GPU.
    """
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    main = main_device(buffer.device for buffer in graph.buffers)
    lines: list[str] = []
    if any(communicates(step) or is_wait(step) for step in steps if isinstance(step, LibraryCall)):
        lines += ["# a CUDA graph of this would hold communicators", "HAS_COLLECTIVES = True", ""]
        sent = [row for step in steps if isinstance(step, LibraryCall) for row in _sent(step, buffers)]
        lines += ["# group, collective, dtype and shape of what it sends", _table("COLLECTIVES", sent), ""]
    if in_flight_at_a_border(graph):
        lines += ["# a collective is started elsewhere, or waited for elsewhere", "IS_PART_OF_COLLECTIVE = True", ""]
    if main == HOST:
        return lines
    calls = [step for step in steps if isinstance(step, LibraryCall) and _writes_host(step, buffers)]
    used = {out.buffer for out in graph.outputs if isinstance(out, View)}
    used |= {view.buffer for call in calls for view in views(call)}
    kept = [f'"{name}"' for name in (*graph.inputs, *graph.constants) if name in used and buffers[name].device == HOST]
    if kept:
        lines += ["# inputs and constants that stay in the host's memory", f"HOST = {tuple_text(kept)}", ""]
    if any(call.random for call in calls):
        lines += ["# random numbers are drawn on the host: a CUDA graph would repeat them", "DRAWS_ON_HOST = True", ""]
    if graph.inputs and all(buffers[name].device != main for name in graph.inputs):
        lines += ["# all inputs are on the host, and kernels run on DEVICE", "MAKES_DEVICE = True", ""]
    return lines


def _sent(call: LibraryCall, buffers: Mapping[str, Buffer]) -> list[str]:
    """Rows of COLLECTIVES: what a call sends. The group is "" where it is not known."""
    if not communicates(call):
        return []
    facts = [(buffers[view.buffer].dtype, tuple_text(view.shape)) for view in views(call)]
    return [f'    ("{call.group}", "{call.target}", "{dtype}", {shape}),' for dtype, shape in facts]


def _writes_host(call: LibraryCall, buffers: Mapping[str, Buffer]) -> bool:
    return any(buffers[name].device == HOST for name in (*call.outputs, *call.mutates) if name is not None)


def _kernel_table(kernels: Sequence[KernelSource]) -> str:
    if not kernels:
        return "KERNELS = {}\n"
    lines = [
        "# constants, options: for a GPU; interpret: blocks for Triton's interpreter; signature: what to compile for a",
        "# GPU that is not here",
        "KERNELS = {",
    ]
    for kernel in kernels:
        blocks = ", ".join((*kernel.sizes, *(block for block, _ in kernel.config.blocks)))
        sizes = tuple((name, name) for name in kernel.sizes)
        options = [("num_warps", kernel.config.num_warps), ("num_stages", kernel.config.num_stages)]
        options += [("debug", True), ("sanitize_overflow", False)] if "tl.device_assert(" in kernel.source else []
        signature = [f'"{name}": "{kind}"' for name, kind in kernel.signature]
        lines += [
            f'{INDENT}"{kernel.name}": {{',
            f'{INDENT * 2}"function": {kernel.name},',
            f'{INDENT * 2}"grid": lambda {blocks}: ({kernel.grid_text},),',
            f'{INDENT * 2}"constants": {_dict((*sizes, *kernel.config.blocks))},',
            f'{INDENT * 2}"options": {_dict(options)},',
            f'{INDENT * 2}"interpret": {_dict((*sizes, *kernel.interpret.blocks))},',
            *call_text('"signature": {', signature, indent=INDENT * 2, tail="},"),
            *([f'{INDENT * 2}"programs": lambda {blocks}: ({_programs(kernel)}),'] if kernel.in_table else []),
            f"{INDENT}}},",
        ]
    return "\n".join([*lines, "}"]) + "\n"


def _programs(kernel: KernelSource) -> str:
    """Of a launch of kernels in a table: how many kernels have so many programs, as pairs."""
    return " ".join(f"({count}, {grid_text(grid, 'triton')})," for count, grid in kernel.parts)


def _dict(items: Iterable[tuple[str, object]]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in items) + "}"


def _prelude(kernels: Sequence[KernelSource]) -> dict[str, str]:
    """The functions of the prelude that the kernels use, directly or through each other, in their order."""
    functions = {
        name: text.strip() + "\n"
        for text in re.split(r"^(?=@triton\.jit$)", PRELUDE, flags=re.MULTILINE)
        for name in re.findall(r"^def (\w+)", text, flags=re.MULTILINE)
    }
    return with_callees(functions, [kernel.source for kernel in kernels])
