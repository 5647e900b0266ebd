"""Kernels that compute products of matrices, in Triton's interpreter against float64, and compiled ahead of time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sympy

from optfuse.compiler.codegen.product_tiles import dot_tile
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.kernel_spec import Member, xdigit
from optfuse.compiler.ir.nodes import Dot, Load, LoopNest, Origin, Store, ivar, rvar
from optfuse.runtime.aot import compile_kernels
from tests.compiler.codegen.running import check, module_text
from tests.compiler.codegen.specs import Kernel, call, const

i, j, k0 = ivar(0), ivar(1), rvar(0)


def product(
    rows: int, columns: int, terms: int, dtype: str = "bfloat16", *, turned: bool = True, digits: tuple[int, ...] = ()
) -> Kernel:
    """relu(a @ b + bias) + c, where b is the transpose of a contiguous matrix if ``turned``.

    ``digits``: sizes whose product is ``rows``, if the kernel's space has these instead.
    """
    k = Kernel((*(digits or (rows,)), columns))
    k.input("a", rows, terms, dtype=dtype)
    k.input("b", *((columns, terms) if turned else (terms, columns)), dtype=dtype)
    k.input("bias", columns, dtype=dtype)
    k.input("c", rows, columns, dtype=dtype)
    k.buffer("ab", rows, columns, dtype=dtype)
    step, along = (terms, 1) if turned else (1, columns)
    element = Dot(Load("a", i * terms + k0, dtype), Load("b", j * step + k0 * along, dtype), terms)
    value = call("add", element, k.load("bias", j))
    nest = LoopNest(
        "ab", (rows, columns), (), (), (Store("ab", i * columns + j, value),), Origin("ab", "aten.mm.default")
    )
    row, weight = sympy.Integer(0), 1
    for place in reversed(range(len(k.x) - 1)):
        row, weight = row + weight * xdigit(place), weight * k.x[place]
    k.members.append(Member(nest, (row, xdigit(len(k.x) - 1)), (), True))
    flat = sympy.Add(*(ivar(n) * s for n, s in enumerate(_strides(k.x))))
    read = call("cast", Load("ab", flat, dtype), dtype="float32")
    other = call("cast", Load("c", flat, dtype), dtype="float32")
    k.pointwise("out", call("add", call("relu", read), call("mul", other, const(2.0))), dtype=dtype)
    return k


def _strides(sizes: tuple[int, ...]) -> list[int]:
    found = [1]
    for size in reversed(sizes[1:]):
        found.insert(0, found[0] * size)
    return found


SHAPES = [(256, 64, 64), (200, 96, 96), (130, 24, 40), (64, 16, 16), (100, 144, 24), (64, 200, 400)]


@pytest.mark.spread(5)
@pytest.mark.parametrize(("rows", "columns", "terms"), SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_whole_and_partial_tiles(rows: int, columns: int, terms: int, dtype: str) -> None:
    k = product(rows, columns, terms, dtype)
    spec = k.spec("out")
    check(emit_kernel(spec, k.buffers), spec, k.buffers)


def test_a_product_is_stored_beside_what_is_computed_of_it_and_its_factor_lies_either_way() -> None:
    k = product(96, 48, 32, turned=False)
    spec = k.spec("ab", "out")
    check(emit_kernel(spec, k.buffers), spec, k.buffers)


def test_rows_may_be_several_digits_of_the_kernels_space() -> None:
    k = product(120, 32, 48, digits=(4, 6, 5))
    spec = k.spec("out")
    kernel = emit_kernel(spec, k.buffers)
    assert "// 6" not in kernel.source, "rows are one run of digits, without a division"
    check(kernel, spec, k.buffers)


@pytest.mark.slow
def test_products_compile_for_a_gpu_without_spills(tmp_path: Path) -> None:
    kernels = []
    for rows, columns, terms in [(4096, 96, 96), (4096, 24, 96), (4096, 96, 16), (4096, 256, 512), (4096, 512, 2048)]:
        k = product(rows, columns, terms)
        made = emit_kernel(k.spec("out"), k.buffers)
        name = f"k_{columns}_{terms}"
        kernels.append(replace(made, name=name, source=made.source.replace("def k0(", f"def {name}(")))
        tile = dot_tile(rows, columns, terms)
        assert dict(made.config.blocks) == {"YBLOCK": tile.rows, "XBLOCK": tile.columns}
    path = tmp_path / "kernels.py"
    path.write_text(module_text(kernels))
    for report in compile_kernels(path, cache=tmp_path / "cache"):
        assert not report.error
        assert not report.spills, report.name
