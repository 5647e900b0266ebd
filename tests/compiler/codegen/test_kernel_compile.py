"""Every pattern, function and reduction compiles for sm_90 ahead of time, and nothing spills."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.compiler.codegen.block_sizes import LARGEST_TILE
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.dtypes import BITS
from optfuse.compiler.ir.nodes import Const, Load, Result
from optfuse.compiler.ir.scalar_functions import FUNCTIONS
from optfuse.runtime.aot import compile_kernels
from tests.compiler.codegen.running import module_text
from tests.compiler.codegen.specs import PATTERNS, Kernel, batch_norm, call, i0, r0
from tests.compiler.codegen.test_kernel_functions import FLOAT8, INTEGERS, KINDS, UNSIGNED, function_cases

LOOPED = 1


def renamed(kernel: KernelSource, name: str) -> KernelSource:
    return replace(kernel, name=name, source=kernel.source.replace(f"def {kernel.name}(", f"def {name}("))


def every_function(dtype: str) -> KernelSource:
    """One kernel that stores every function of a dtype's values."""
    k = Kernel((1000,), name=f"functions_{dtype}")
    for name in ("a", "b"):
        k.input(name, 1000, dtype=dtype)
    k.input("choose", 1000, dtype="bool")
    loads = [Load(name, i0, dtype) for name in ("a", "b")]
    outs = []
    for function in [f for f, d in function_cases() if d == dtype]:
        arity, rule = FUNCTIONS[function].arity, FUNCTIONS[function].rule
        args = [Load("choose", i0, "bool"), *loads] if rule == "where" else loads[:arity]
        outs.append(f"{function}_out")
        k.pointwise(outs[-1], call(function, *args, dtype="bool" if rule == "bool" else dtype))
    targets = ("bool", *INTEGERS, "float16", "bfloat16", "float32", "float64")
    for target in targets:
        outs.append(f"cast_{target}")
        k.pointwise(outs[-1], call("cast", loads[0], dtype=target))
    if dtype == "int64":
        for function in ("rand", "randn"):
            outs.append(f"{function}_out")
            k.pointwise(outs[-1], call(function, *loads, dtype="float32"))
    return emit_kernel(k.spec(*outs), k.buffers)


def every_function_of_a_constant(dtype: str) -> KernelSource:
    """One kernel that stores every function of several values with a constant in each place, and of constants alone."""
    k = Kernel((1000,), name=f"constants_{dtype}")
    k.input("a", 1000, dtype=dtype)
    load, constant = Load("a", i0, dtype), Const(True if dtype == "bool" else 3, dtype)
    outs = []
    for function in [f for f, d in function_cases() if d == dtype and FUNCTIONS[f].arity == 2]:
        for tag, args in (("left", (constant, load)), ("right", (load, constant)), ("both", (constant, constant))):
            outs.append(f"{function}_{tag}")
            kind = "bool" if FUNCTIONS[function].rule == "bool" else dtype
            k.pointwise(outs[-1], call(function, *args, dtype=kind))
    return emit_kernel(k.spec(*outs), k.buffers)


def every_move(dtype: str) -> KernelSource:
    """One kernel that converts to every dtype and from it, and does with its values what loops do with such ones."""
    k = Kernel((1000,), name=f"moves_{dtype}")
    for name in ("a", "b"):
        k.input(name, 1000, dtype=dtype)
    k.input("choose", 1000, dtype="bool")
    loads = [Load(name, i0, dtype) for name in ("a", "b")]
    outs = ["copied"]
    k.pointwise("copied", loads[0])
    for other in ("bool", *INTEGERS, *UNSIGNED, *FLOAT8, "float16", "bfloat16", "float32", "float64"):
        k.input(f"given_{other}", 1000, dtype=other)
        outs += [f"to_{other}", f"from_{other}"]
        k.pointwise(outs[-2], call("cast", loads[0], dtype=other))
        k.pointwise(outs[-1], call("cast", Load(f"given_{other}", i0, other), dtype=dtype))
    if dtype in UNSIGNED:
        for function in ("eq", "where", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"):
            outs.append(f"{function}_out")
            args = [Load("choose", i0, "bool"), *loads] if function == "where" else loads
            k.pointwise(outs[-1], call(function, *args, dtype="bool" if function == "eq" else dtype))
            if function != "where":
                outs.append(f"{function}_constant")
                args = (loads[0], Const((1 << BITS[dtype]) - 3, dtype))
                k.pointwise(outs[-1], call(function, *args, dtype="bool" if function == "eq" else dtype))
    return emit_kernel(k.spec(*outs), k.buffers)


def every_reduction(dtype: str, largest: int) -> KernelSource:
    k = Kernel((40,), (600,), name=f"reductions_{dtype}_{largest}")
    k.input("a", 40, 600, dtype=dtype)
    outs = []
    for kind in [kind for kind, dtypes in KINDS.items() if dtype in dtypes]:
        if kind == "welford":
            names = ("mean", "m2", "count")
            k.reduce(kind, k.load("a", i0, r0), *((n, Result(j, dtype)) for j, n in enumerate(names)))
            outs += names
        else:
            k.reduce(kind, k.load("a", i0, r0), (f"{kind}_out", Result(0, "int64" if "arg" in kind else dtype)))
            outs.append(f"{kind}_out")
    return emit_kernel(k.spec(*outs), k.buffers, largest)


@pytest.fixture(scope="module", params=[8, pytest.param(1, marks=pytest.mark.slow)])
def reports(request, tmp_path_factory):
    """Every eighth kernel, or all, in one module, compiled by processes of their own."""
    kernels = []
    for name, pattern in PATTERNS.items():
        for tag, sizes, largest in (("whole", (129, 1000), LARGEST_TILE), ("looped", (64, 9000), LOOPED)):
            kernels.append(renamed(emit_kernel(*pattern(*sizes, "bfloat16"), largest), f"{name}_{tag}"))
    for tag, largest in (("whole", LARGEST_TILE), ("looped", LOOPED)):
        kernels.append(renamed(emit_kernel(*batch_norm(32, 64, 196, "bfloat16"), largest), f"batch_norm_{tag}"))
    kernels += [every_function(dtype) for dtype in ("float32", "float64", "bool", "uint8", "int16", "int64")]
    kernels += [every_function_of_a_constant(dtype) for dtype in ("float32", "bool", "uint8", "int64")]
    kernels += [every_reduction(dtype, LARGEST_TILE) for dtype in ("float32", "float64", "int64", "uint8", "bool")]
    kernels += [every_reduction(dtype, LOOPED) for dtype in ("float32", "int64", "uint8", "bool")]
    kernels += [every_move(dtype) for dtype in (*UNSIGNED, *FLOAT8)]
    folder = tmp_path_factory.mktemp("compiled")
    path = folder / "kernels.py"
    path.write_text(module_text(kernels[:: request.param]))
    return compile_kernels(path, cache=folder / "cache")


def test_everything_compiles(reports):
    assert reports
    assert {report.name: report.error for report in reports if report.error} == {}


def test_nothing_spills(reports):
    assert {report.name: report.spills for report in reports if report.spills} == {}
