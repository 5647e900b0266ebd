"""Kernels that differ in names alone become one function, and others stay apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.compiler.codegen.deduplicate import share_kernels
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.tiles import TileConfig

TILE = TileConfig((("XBLOCK", 64),), 4, 1, "none")


def kernel(name: str, source: str, buffers: tuple[str, ...]) -> KernelSource:
    signature = (*((f"{buffer}_ptr", "*fp32") for buffer in buffers), ("XBLOCK", "constexpr"))
    text = f"@triton.jit\ndef {name}({', '.join(n for n, _ in signature)}):\n    # from {name}\n{source}"
    return KernelSource(name, text, buffers, buffers[-1:], signature, TILE, TILE, ((64, "XBLOCK"),), name)


def body(x: str, y: str, value: str, function: str = "exp") -> str:
    return (
        f"    i = tl.arange(0, XBLOCK)\n    {value} = tl.{function}(tl.load({x}_ptr + i))\n"
        f"    tl.store({y}_ptr + i, {value})\n"
    )


FIRST = kernel("k0", body("a", "b", "v"), ("a", "b"))


def test_repeats_call_the_first_function_with_their_own_buffers():
    again = kernel("k1", body("c", "d", "w"), ("c", "d"))
    one, two = share_kernels([FIRST, again])
    assert one.name == two.name == "k0"
    assert one.source == two.source
    assert "k1" in one.source
    assert (one.pointers, two.pointers) == (("a", "b"), ("c", "d"))
    assert two.written == ("d",)
    assert (one.label, two.label) == ("k0", "k1")


@pytest.mark.parametrize(
    "other",
    [
        kernel("k1", body("c", "d", "w", "sin"), ("c", "d")),  # another function
        kernel("k1", body("d", "c", "w"), ("c", "d")),  # the buffers change places
        replace(kernel("k1", body("c", "d", "w"), ("c", "d")), config=replace(TILE, num_warps=8)),
        replace(kernel("k1", body("c", "d", "w"), ("c", "d")), grid=((65, "XBLOCK"),)),
        replace(
            kernel("k1", body("c", "d", "w"), ("c", "d")),
            signature=(("c_ptr", "*bf16"), ("d_ptr", "*fp32"), ("XBLOCK", "constexpr")),
        ),
    ],
)
def test_whatever_computes_otherwise_stays_apart(other):
    assert share_kernels([FIRST, other]) == (FIRST, other)
