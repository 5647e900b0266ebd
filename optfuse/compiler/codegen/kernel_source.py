"""A generated kernel: its text, and the facts needed to launch it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.compiler.ir.sizes import is_data_size


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A generated kernel.

    Attributes:
        name: The function's name.
        source: Its ``@triton.jit`` function, after those with which its scans combine elements. It uses ``triton``,
            ``tl``, ``libdevice`` and the functions of ``compiler.codegen.prelude.PRELUDE``, nothing else.
        pointers: Buffers in the order of the function's parameters; block sizes follow as keyword arguments.
        written: Those of ``pointers`` that the kernel writes.
        signature: (parameter, Triton's type of it), block sizes as "constexpr".
        config, interpret: Blocks and warps for a GPU, and large blocks for Triton's interpreter.
        grid: (points, block's parameter) of every parallel axis.
        sizes: The symbols of sizes that it takes, after the pointers.
        parts: Of a launch of several kernels: (kernels that are alike, grid of each of them), in the order of programs.
        in_table: Whether the function takes tables of the ``pointers``, of which each kernel has its own, instead.
        label: A comment for the launch: which part of the model this is.
    """

    name: str
    source: str
    pointers: tuple[str, ...]
    written: tuple[str, ...]
    signature: tuple[tuple[str, str], ...]
    config: TileConfig
    interpret: TileConfig
    grid: tuple[tuple[int, str], ...]
    label: str = ""
    sizes: tuple[str, ...] = ()
    parts: tuple[tuple[int, tuple[tuple[int, str], ...]], ...] = ()
    in_table: bool = False

    @property
    def grid_text(self) -> str:
        """The number of programs as an expression in the block parameters: "triton.cdiv(1000, XBLOCK)"."""
        texts = [f"{count} * {grid_text(grid, 'triton')}" for count, grid in self.parts]
        return " + ".join(texts) or grid_text(self.grid, "triton")

    def programs(self, config: TileConfig) -> int:
        """The number of programs, all on the grid's first axis, with the blocks of a configuration."""
        blocks = dict(config.blocks)
        return sum(
            count * math.prod(-(-size // blocks[block]) for size, block in grid)
            for count, grid in self.parts or ((1, self.grid),)
        )


def grid_text(grid: Sequence[tuple[int, str]], module: str = "tl") -> str:
    """The product of the numbers of blocks of all parallel axes; "1" if there are none."""
    return " * ".join(f"{module}.cdiv({size}, {block})" for size, block in grid) or "1"


def decorator(sizes: Sequence[str]) -> str:
    """How a function becomes a kernel: compiled once for sizes that data decides, few of which 16 divides."""
    once = ", ".join(f'"{name}"' for name in sizes if is_data_size(name))
    return f"@triton.jit(do_not_specialize=[{once}])" if once else "@triton.jit"
