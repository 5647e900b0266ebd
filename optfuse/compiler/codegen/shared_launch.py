"""Write several kernels as one function, whose programs are divided among them: one launch runs them all.

The kernels' own functions become functions of their program's number, those of the same text and blocks one function,
whatever number of programs each has. A few kernels are given their tensors as arguments. Many find them in a table: the
addresses of all tensors, kernel by kernel, and places: for each program its kernel, above its number in that kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from optfuse.compiler.codegen.deduplicate import likeness
from optfuse.compiler.codegen.kernel_source import KernelSource, grid_text
from optfuse.compiler.codegen.python_text import INDENT, call_text
from optfuse.compiler.codegen.tiles import TileConfig

#: The most kernels, and tensors of them all, that are given as arguments: each kernel is a branch of the function.
MOST_BRANCHES = 16
MOST_ARGUMENTS = 64
#: Kernels named at a launch.
LABELLED = 4

#: Triton's names of element types in signatures, where they differ from the types' own.
_TYPES = {
    **{"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"},
    **{"fp8e4nv": "float8e4nv", "fp8e5": "float8e5"},
}


@dataclass(frozen=True, slots=True)
class _Part:
    """Kernels that are alike: a function of the program's number, and its block sizes by their parameters."""

    name: str
    kernels: tuple[KernelSource, ...]  # those with the same number of programs side by side
    blocks: tuple[tuple[str, str], ...]  # own parameter, parameter of the launch

    def grid(self, kernel: KernelSource) -> tuple[tuple[int, str], ...]:
        """A kernel's grid in the launch's parameters."""
        renamed = dict(self.blocks)
        return tuple((points, renamed[block]) for points, block in kernel.grid)

    @property
    def runs(self) -> list[tuple[int, tuple[tuple[int, str], ...]]]:
        """(kernels, grid of each of them) in order."""
        return [(len(list(several)), grid) for grid, several in groupby(self.grid(kernel) for kernel in self.kernels)]

    @property
    def source(self) -> str:
        """The kernel's functions, of which the last is called with the program's number."""
        kernel = self.kernels[0]
        text = re.sub(rf"\bdef {kernel.name}\((\s*)", rf"def {self.name}(\1program, ", kernel.source.strip())
        return text.replace("tl.program_id(0)", "program") + "\n"

    def config(self, *, interpret: bool) -> list[tuple[str, int]]:
        """Block sizes by the launch's parameters; the interpreter's are those that suit every kernel: the least."""
        configs = [kernel.interpret if interpret else kernel.config for kernel in self.kernels]
        sizes = zip(*([size for _, size in config.blocks] for config in configs), strict=True)
        return [(renamed, min(several)) for (_, renamed), several in zip(self.blocks, sizes, strict=True)]


def share_launch(name: str, kernels: Sequence[KernelSource]) -> KernelSource:
    """One kernel that does what ``kernels``, which do not depend on each other, do in any order."""
    parts = _parts(name, kernels)
    ordered = [kernel for part in parts for kernel in part.kernels]
    arguments = list(dict.fromkeys(pointer for kernel in ordered for pointer in kernel.pointers))
    in_table = len(ordered) > MOST_BRANCHES or len(arguments) > MOST_ARGUMENTS
    blocks = [renamed for part in parts for _, renamed in part.blocks]
    constants = [*blocks, "ALIGNED"] if in_table else blocks
    aligned = [("ALIGNED", 1)] if in_table else []
    kinds = {
        pointer: kind
        for kernel in ordered
        for pointer, (_, kind) in zip(kernel.pointers, kernel.signature, strict=False)
    }
    if in_table:
        parameters, body = [("table_ptr", "*i64"), ("places_ptr", "*i64")], _table_body(parts)
    else:
        given = {pointer: f"{pointer}_ptr" for pointer in arguments}
        parameters, body = [(given[pointer], kinds[pointer]) for pointer in arguments], _branches(parts, given)
    head = [*(parameter for parameter, _ in parameters), *(f"{constant}: tl.constexpr" for constant in constants)]
    lines = [*call_text(f"def {name}(", head, indent="", tail="):"), f"{INDENT}program = tl.program_id(0)", *body]
    return KernelSource(
        name=name,
        source="\n\n".join([*(part.source for part in parts), "\n".join(["@triton.jit", *lines]) + "\n"]),
        pointers=tuple([pointer for kernel in ordered for pointer in kernel.pointers] if in_table else arguments),
        written=tuple(dict.fromkeys(written for kernel in ordered for written in kernel.written)),
        signature=(*parameters, *((constant, "constexpr") for constant in constants)),
        config=_config(parts, aligned, interpret=False),
        interpret=_config(parts, aligned, interpret=True),
        grid=(),
        label=", ".join([kernel.label or kernel.name for kernel in kernels[:LABELLED]])
        + (f" and {len(kernels) - LABELLED} more in one launch" if len(kernels) > LABELLED else " in one launch"),
        parts=tuple(run for part in parts for run in part.runs),
        in_table=in_table,
    )


def _config(parts: Sequence[_Part], more: Sequence[tuple[str, int]], *, interpret: bool) -> TileConfig:
    """The blocks of all parts, and the warps of the largest of them."""
    blocks = [block for part in parts for block in part.config(interpret=interpret)]
    configs = [part.kernels[0].config for part in parts]
    warps, stages = max(each.num_warps for each in configs), max(each.num_stages for each in configs)
    return TileConfig((*blocks, *more), warps, stages, "none")


def _parts(name: str, kernels: Sequence[KernelSource]) -> list[_Part]:
    alike: dict[object, list[KernelSource]] = {}
    for kernel in kernels:
        alike.setdefault(_text(kernel), []).append(kernel)
    sizes: dict[object, int] = {}
    return [
        _Part(
            f"{name}_part{k}",
            tuple(sorted(several, key=lambda kernel: sizes.setdefault(kernel.grid, len(sizes)))),
            tuple((block, f"{block}_{k}") for block, _ in several[0].config.blocks),
        )
        for k, several in enumerate(alike.values())
    ]


def _text(kernel: KernelSource) -> object:
    """A key that is equal for kernels of one text and the same blocks, whose numbers of programs may differ."""
    blocks = tuple(block for _, block in kernel.grid)
    return likeness(replace(kernel, grid=(), interpret=kernel.config)), blocks


def _branches(parts: Sequence[_Part], given: dict[str, str]) -> list[str]:
    """A branch for each kernel, with its tensors as arguments."""
    lines: list[str] = []
    runs = [(part, kernel) for part in parts for kernel in part.kernels]
    for k, (part, kernel) in enumerate(runs):
        if k:
            before, previous = runs[k - 1]
            lines.append(f"{INDENT}program -= {grid_text(before.grid(previous))}")
        called = [*(given[pointer] for pointer in kernel.pointers), *(renamed for _, renamed in part.blocks)]
        lines.append(f"{INDENT}if (program >= 0) & (program < {grid_text(part.grid(kernel))}):")
        lines += call_text(f"{part.name}(", ["program", *called], indent=INDENT * 2)
    return lines


def _table_body(parts: Sequence[_Part]) -> list[str]:
    """A branch for each part, with the tensors of the program's kernel from the table."""
    lines = [
        f"{INDENT}place = tl.load(places_ptr + program)",
        f"{INDENT}kernel, program = (place >> 32).to(tl.int32), place.to(tl.int32)",
    ]
    first = before = 0
    for part in parts:
        width, last = len(part.kernels[0].pointers), first + len(part.kernels)
        types = [kind.removeprefix("*") for _, kind in part.kernels[0].signature[:width]]
        lines.append(f"{INDENT}if (kernel >= {first}) & (kernel < {last}):")
        lines.append(f"{INDENT * 2}row = table_ptr + {before} + (kernel - {first}) * {width}")
        found = [
            f"tensor_at(row + {k}, tl.{_TYPES.get(kind, _integer(kind))}, ALIGNED)" for k, kind in enumerate(types)
        ]
        called = [*found, *(renamed for _, renamed in part.blocks)]
        lines += call_text(f"{part.name}(", ["program", *called], indent=INDENT * 2)
        first, before = last, before + width * len(part.kernels)
    return lines


def _integer(kind: str) -> str:
    """An integer type of a signature as Triton's language calls it: "int32" for "i32", "uint8" for "u8"."""
    return kind.replace("u", "uint") if kind.startswith("u") else kind.replace("i", "int")
