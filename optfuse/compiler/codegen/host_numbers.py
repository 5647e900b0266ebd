"""Copy numbers from the host's memory for kernels: several together, and each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.python_text import INDENT, call_text
from optfuse.compiler.codegen.uncaptured_steps import NAME as APART

#: The function that copies, of ``compiler.ops.host_numbers``.
NAME = "numbers_on"


@dataclass(slots=True)
class HostNumbers:
    """The text that copies a program's numbers in the host's memory to its device.

    Attributes:
        names: Variables of the buffers in the host's memory.
        moved: Those that a call finds on the device (``apart.moved_numbers``).
        cut: Whether such copies run outside of CUDA graphs.
        there: Variables of the copies that a program has at this point.
    """

    names: Mapping[str, str]
    moved: frozenset[str]
    cut: bool
    there: dict[str, str] = field(default_factory=dict)

    def copied(self, kernel: KernelSource) -> list[str]:
        """The lines before a kernel that copy what it reads and no kernel before it has read."""
        missing = list(dict.fromkeys(name for name in kernel.pointers if name in self.names and name not in self.there))
        if not missing:
            return []
        taken = {*self.names.values(), *self.there.values()}
        for name in missing:
            self.there[name] = next(v for k in count(1) if (v := f"{self.names[name]}_there{k}") not in taken)
        lines = [
            f"{INDENT}{self.there[name]} = {self.names[name]}.to(device)" for name in missing if name in self.moved
        ]
        rest = [name for name in missing if name not in self.moved]
        if rest:
            call = f'{APART}("reads numbers from host memory", {NAME}, ' if self.cut else f"{NAME}("
            lines += call_text("numbers = [", [self.names[name] for name in rest], tail="]")
            targets = [self.there[name] for name in rest]
            lines += call_text("(", targets, tail=f"{',' if len(rest) == 1 else ''}) = {call}device, numbers)")
        return lines

    def forget(self, written: Sequence[str]) -> None:
        """Numbers have new values: copies are made again."""
        for name in written:
            self.there.pop(name, None)
